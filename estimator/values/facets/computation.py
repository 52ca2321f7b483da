"""Kernels, and what is kept for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, Hashed, Section, Whose, Widget, key
from estimator.values.kinds import Choice, Flag
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
        "keep only each layer's input and play the layer again",
        beside="TRL's is on",
        code="gc",
        aliases=("activation_checkpointing",),
        widget=Widget(
            shape="toggle",
            section=Section.ALWAYS,
            label="Gradient checkpointing",
            help="Keep only each layer's input and compute the layer again in backward.",
            decides=True,
        ),
    )
    use_reentrant: bool = key(
        False,
        Flag(),
        "checkpoint in the older, reentrant way",
        whose=Whose.TRANSFORMERS,
        code="re",
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Reentrant checkpoints",
            help="use_reentrant of gradient_checkpointing_kwargs: the older way, which holds each block's input and "
            "output while it is replayed.",
            decides=True,
        ),
    )
    attn_implementation: AttnImplementation = key(
        AttnImplementation.SDPA,
        _ATTENTION,
        "the attention kernel",
        whose=Whose.TRANSFORMERS,
        code="at",
        widget=Widget(
            shape="select",
            section=Section.ALWAYS,
            label="Attention",
            help="The attention kernel; eager keeps the whole table of scores.",
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
            help="Trainer's use_liger_kernel: fused norm, MLP, rotation and loss.",
        ),
    )
