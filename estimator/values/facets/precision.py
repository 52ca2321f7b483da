"""The dtype of the weights and of the computation."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, flag, key
from estimator.values.kinds import Choice
from estimator.values.specs import Dtype, Fp8Backend, MixedPrecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision(Checked):
    """The dtype the weights are loaded in, and the dtype of the forward pass."""

    __hash__ = Hashed.__hash__

    dtype: Dtype = key(
        Dtype.BFLOAT16,
        Choice(tuple(Dtype), member=Dtype),
        "dtype the weights are loaded in",
        "Precision above sets it.",
        default_from=DefaultSource.OURS,
        remark="as in TRL's guides",
        widget=Widget(Section.MORE, "Weights", shape="segments"),
    )
    mixed_precision: MixedPrecision = key(
        MixedPrecision.BF16,
        Choice(tuple(MixedPrecision), member=MixedPrecision),
        "autocast around the forward pass",
        "Trainer's bf16 or fp16, or accelerate's fp8. Precision above sets it.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.MORE, "Autocast", shape="segments"),
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
        "ao is torchao, te is transformer-engine.",
        default_from=DefaultSource.ACCELERATE,
        widget=Widget(Section.ALWAYS, "FP8 backend", shape="segments"),
    )

    fp8_pad_inner_dim: bool = flag(
        True,
        "with fp8_backend ao: copy both factors of a product, padded to multiples of 16",
        "torchao copies them whether or not they need it.",
        default_from=DefaultSource.ACCELERATE,
        remark="axolotl's is false",
        widget=Widget(Section.MORE, "FP8 products are padded"),
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
