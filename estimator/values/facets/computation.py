"""Kernels, and what is saved for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, key
from estimator.values.kinds import Choice, Flag, WholeNumber
from estimator.values.specs import AttnImplementation

_ATTENTION = Choice(
    tuple(AttnImplementation),
    enum=AttnImplementation,
    later=("flash_attention_3", "flex_attention"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation(Checked):
    """By which kernels layers are computed, and what is kept for the backward pass."""

    __hash__ = Hashed.__hash__

    gradient_checkpointing: bool = key(
        False,
        Flag(),
        "save only each layer's input and recompute the layer in backward",
        remark="TRL's is on",
        code="gc",
        aliases=("activation_checkpointing",),
        widget=Widget(
            shape="toggle",
            section=Section.ALWAYS,
            label="Gradient checkpointing",
            help="Save only each layer's input and recompute the layer in backward.",
            decides=True,
        ),
    )
    vision_gradient_checkpointing: bool | None = key(
        None,
        Flag(nullable=True),
        "gradient checkpointing of the image tower's layers, apart from the text's",
        default_from=DefaultSource.TRANSFORMERS,
        remark="ms-swift's vit_gradient_checkpointing",
        null="as gradient_checkpointing",
        code="vgc",
        widget=Widget(
            shape="select",
            section=Section.IMAGES,
            label="Checkpoint the image tower",
            help="activation_checkpointing_enable of the tower alone, or of the language model alone; Trainer turns "
            "both on.",
        ),
    )
    use_reentrant: bool = key(
        False,
        Flag(),
        "use torch's older, reentrant checkpointing",
        default_from=DefaultSource.TRANSFORMERS,
        code="re",
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Reentrant checkpointing",
            help="use_reentrant of gradient_checkpointing_kwargs: torch's older variant, which holds each block's "
            "input and output during its recomputation.",
            decides=True,
        ),
    )
    checkpoint_every_n_layers: int = key(
        1,
        WholeNumber(4096),
        "with gradient checkpointing: checkpoint every so many layers, the others keep their tensors",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(
            shape="number",
            section=Section.MORE,
            label="Checkpoint every n-th layer",
            help="every_n_layers of gradient_checkpointing_kwargs: the layers between keep all their tensors and are "
            "not computed again.",
            ends=(1, 128),
        ),
    )
    offload_checkpoints: bool = key(
        False,
        Flag(),
        "with gradient checkpointing: keep the layers' inputs in pinned memory of the host",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Checkpoints on the host",
            help="offload of gradient_checkpointing_kwargs: the layers' inputs are copied to the host, and back in "
            "backward.",
        ),
    )
    selective_checkpointing: bool = key(
        False,
        Flag(),
        "with gradient checkpointing: keep attention's output, and compute the rest again",
        default_from=DefaultSource.TRL,
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Selective checkpoints",
            help="selective of SFTTrainer's gradient_checkpointing_kwargs: attention's output is kept, the rest of a "
            "layer is computed again.",
        ),
    )
    activation_offloading: bool = key(
        False,
        Flag(),
        "TRL's: saved tensors are copied to the host in forward, and back in backward",
        default_from=DefaultSource.TRL,
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Activation offloading",
            help="TRL's activation_offloading: saved tensors of at least 1 KiB are copied to the host in forward, and "
            "back in backward.",
        ),
    )
    attn_implementation: AttnImplementation = key(
        AttnImplementation.SDPA,
        _ATTENTION,
        "the attention kernel",
        default_from=DefaultSource.TRANSFORMERS,
        code="at",
        widget=Widget(
            shape="select",
            section=Section.ALWAYS,
            label="Attention",
            help="The attention kernel. eager keeps the full matrix of attention scores.",
        ),
    )
    use_liger_kernel: bool = key(
        False,
        Flag(),
        "Liger's fused norm, MLP, rope and loss",
        code="lk",
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Liger kernels",
            help="Trainer's use_liger_kernel: fused norm, MLP, rotary embedding and loss.",
        ),
    )

    @property
    def checkpoints_vision(self) -> bool:
        """Whether the image tower's layers are checkpointed."""
        own = self.vision_gradient_checkpointing
        return self.gradient_checkpointing if own is None else own
