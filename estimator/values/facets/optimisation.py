"""The optimizer, its states, and gradient clipping."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, flag, key
from estimator.values.kinds import Choice, Number
from estimator.values.specs import Dtype, Optimizer

_OPTIM = Choice(
    tuple(Optimizer),
    member=Optimizer,
    # transformers 5, training_args.OptimizerNames: aliases, and the optimizers that are not modelled
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
    """The optimizer, its states, and gradient clipping."""

    __hash__ = Hashed.__hash__

    optim: Optimizer = key(
        Optimizer.ADAMW_TORCH_FUSED,
        _OPTIM,
        "the optimizer, as Trainer names it",
        widget=Widget(Section.ALWAYS, "Optimizer"),
    )
    optim_state_dtype: Dtype | None = key(
        None,
        Choice((Dtype.FLOAT32, Dtype.BFLOAT16), member=Dtype, nullable=True),
        "what-if: optimizer states in this dtype",
        default_from=DefaultSource.OURS,
        null="as the optimizer keeps them",
        widget=Widget(Section.MORE, "Optimizer states (what-if)"),
    )
    max_grad_norm: float = key(
        1.0,
        Number(1_000_000),
        "maximum gradient norm; 0 turns clipping off",
        "Without it no norm is computed.",
        widget=Widget(Section.MORE, "Max gradient norm", step=0.1),
    )
    optimizer_in_bwd: bool = flag(
        False,
        "torchtune's: each weight is stepped when its gradient arrives, which is then freed",
        "It allows neither accumulation nor clipping.",
        default_from=DefaultSource.TORCHTUNE,
        widget=Widget(Section.MORE, "Optimizer in backward"),
    )
