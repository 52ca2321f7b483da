"""The optimizer, and how its gradients and states are kept."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, Hashed, Section, Whose, Widget, key
from estimator.values.kinds import Choice, Number
from estimator.values.specs import Dtype, Optimizer

_OPTIM = Choice(
    tuple(Optimizer),
    enum=Optimizer,
    # transformers 5, training_args.OptimizerNames: second names of the same optimizer, and the rest
    aliases={
        "adamw_8bit": "adamw_bnb_8bit",
        "paged_adamw": "paged_adamw_32bit",
        "lion": "lion_32bit",
        "rmsprop_bnb_32bit": "rmsprop_bnb",
    },
    later=(
        "adalomo",
        "adamw_anyprecision",
        "adamw_apex_fused",
        "adamw_torch_4bit",
        "adamw_torch_8bit",
        "apollo_adamw_layerwise",
        "galore_adafactor",
        "galore_adafactor_layerwise",
        "galore_adamw_8bit",
        "galore_adamw_8bit_layerwise",
        "galore_adamw_layerwise",
        "grokadamw",
        "lomo",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisation(Checked):
    """What becomes of the gradients."""

    __hash__ = Hashed.__hash__

    optim: Optimizer = key(
        Optimizer.ADAMW_TORCH_FUSED,
        _OPTIM,
        "the optimizer, by Trainer's name",
        code="op",
        widget=Widget(
            shape="select",
            section=Section.ALWAYS,
            label="Optimizer",
            help="Trainer's optim, by its own names.",
        ),
    )
    optim_state_dtype: Dtype | None = key(
        None,
        Choice((Dtype.FLOAT32, Dtype.BFLOAT16), enum=Dtype, nullable=True),
        "a what-if: optimizer states in this dtype",
        whose=Whose.OURS,
        null="as the optimizer keeps them",
        code="os",
        widget=Widget(
            shape="select",
            section=Section.MORE,
            label="Optimizer states (what-if)",
            help="A what-if: hold the states in this dtype.",
        ),
    )
    max_grad_norm: float = key(
        1.0,
        Number(1_000_000),
        "norm that gradients are clipped to; 0: never",
        code="gn",
        widget=Widget(
            shape="number",
            section=Section.MORE,
            label="Gradients clipped to a norm of",
            help="Trainer's max_grad_norm; 0 never clips, and takes no norm.",
            step=0.1,
        ),
    )
