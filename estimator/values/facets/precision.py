"""The dtypes that a run loads and computes in."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, Hashed, Section, Whose, Widget, key
from estimator.values.kinds import Choice
from estimator.values.specs import Dtype, MixedPrecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision(Checked):
    """What weights are loaded in, and what the forward pass computes in."""

    __hash__ = Hashed.__hash__

    dtype: Dtype = key(
        Dtype.BFLOAT16,
        Choice(tuple(Dtype), enum=Dtype),
        "what the weights are loaded in",
        whose=Whose.OURS,
        beside="as in TRL's guides",
        code="dt",
        widget=Widget(
            shape="segments",
            section=Section.MORE,
            label="Weights",
            help="The dtype behind Precision.",
        ),
    )
    mixed_precision: MixedPrecision = key(
        MixedPrecision.BF16,
        Choice(tuple(MixedPrecision), enum=MixedPrecision),
        "autocast",
        whose=Whose.TRL,
        code="mp",
        widget=Widget(
            shape="segments",
            section=Section.MORE,
            label="Autocast",
            help="Trainer's bf16 or fp16 behind Precision.",
        ),
    )

    @property
    def uses_bf16(self) -> bool:
        """Whether any arithmetic is in bfloat16."""
        return self.dtype is Dtype.BFLOAT16 or self.mixed_precision is MixedPrecision.BF16
