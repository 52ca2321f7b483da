"""The dtype of the weights and of the computation."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, key
from estimator.values.kinds import Choice, Flag
from estimator.values.specs import Dtype, Fp8Backend, MixedPrecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision(Checked):
    """The dtype the weights are loaded in, and the dtype of the forward pass."""

    __hash__ = Hashed.__hash__

    dtype: Dtype = key(
        Dtype.BFLOAT16,
        Choice(tuple(Dtype), member=Dtype),
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
        Choice(tuple(MixedPrecision), member=MixedPrecision),
        "autocast around the forward pass",
        default_from=DefaultSource.TRL,
        code="mp",
        widget=Widget(
            shape="segments",
            section=Section.MORE,
            label="Autocast",
            help="Trainer's bf16 or fp16, or accelerate's fp8. Precision above sets it.",
        ),
    )
    fp8_backend: Fp8Backend = key(
        Fp8Backend.AO,
        Choice(
            tuple(Fp8Backend),
            member=Fp8Backend,
            aliases={word.value.upper(): word.value for word in Fp8Backend},
            later=("msamp", "MSAMP"),
        ),
        "with mixed_precision fp8: whose linears multiply in FP8",
        default_from=DefaultSource.ACCELERATE,
        widget=Widget(
            shape="segments",
            section=Section.ALWAYS,
            label="FP8 backend",
            help="fp8_backend of accelerate: ao is torchao, te is transformer-engine.",
        ),
    )

    fp8_pad_inner_dim: bool = key(
        True,
        Flag(),
        "with fp8_backend ao: copy both factors of a product, padded to multiples of 16",
        default_from=DefaultSource.ACCELERATE,
        remark="axolotl's is false",
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="FP8 products are padded",
            help="fp8_pad_inner_dim of accelerate: torchao copies both factors of a product, whether or not the copy "
            "needs padding.",
        ),
    )

    @property
    def uses_bf16(self) -> bool:
        """Whether any arithmetic is in bfloat16."""
        bf16 = (MixedPrecision.BF16, MixedPrecision.FP8)
        return self.dtype is Dtype.BFLOAT16 or self.mixed_precision in bf16

    @property
    def uses_fp8(self) -> bool:
        """Whether linears multiply in FP8."""
        return self.mixed_precision is MixedPrecision.FP8

    @property
    def uses_torchao(self) -> bool:
        """Whether torchao's linears replace the model's."""
        return self.uses_fp8 and self.fp8_backend is Fp8Backend.AO
