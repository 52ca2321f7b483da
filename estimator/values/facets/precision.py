"""The dtype of the weights and of the computation."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, key
from estimator.values.kinds import Choice
from estimator.values.specs import Dtype, MixedPrecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision(Checked):
    """The dtype the weights are loaded in, and the dtype of the forward pass."""

    __hash__ = Hashed.__hash__

    dtype: Dtype = key(
        Dtype.BFLOAT16,
        Choice(tuple(Dtype), enum=Dtype),
        "dtype the weights are loaded in",
        default_from=DefaultSource.OURS,
        remark="as in TRL's guides",
        code="dt",
        widget=Widget(
            shape="segments",
            section=Section.MORE,
            label="Weights",
            help="The dtype the weights are loaded in. Precision above sets it.",
        ),
    )
    mixed_precision: MixedPrecision = key(
        MixedPrecision.BF16,
        Choice(tuple(MixedPrecision), enum=MixedPrecision),
        "autocast around the forward pass",
        default_from=DefaultSource.TRL,
        code="mp",
        widget=Widget(
            shape="segments",
            section=Section.MORE,
            label="Autocast",
            help="Trainer's bf16 or fp16. Precision above sets it.",
        ),
    )

    @property
    def uses_bf16(self) -> bool:
        """Whether any arithmetic is in bfloat16."""
        return self.dtype is Dtype.BFLOAT16 or self.mixed_precision is MixedPrecision.BF16
