"""The what-if of float32 states on 16-bit weights, and the real setups near it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.words import markup, units
from estimator import Dtype, Estimate, MixedPrecision


def real_neighbours(of: Estimate) -> Mapping[str, Mapping[str, Any]]:
    """Real setups near the what-if of float32 states on 16-bit weights, in the 16 bits that the card multiplies."""
    has_bf16 = of.gpu is None or of.gpu.supports_bf16
    half = Dtype.BFLOAT16 if has_bf16 else Dtype.FLOAT16
    autocast = MixedPrecision.BF16 if has_bf16 else MixedPrecision.FP16
    return {
        f"{half} states too": {"dtype": half, "optim_state_dtype": None},
        f"float32 weights with {half} autocast": {
            "dtype": Dtype.FLOAT32,
            "mixed_precision": autocast,
            "optim_state_dtype": None,
        },
    }


def is_what_if(of: Estimate) -> bool:
    """Whether a setup has float32 states on 16-bit weights, which no Trainer run has."""
    setup = of.setup
    return (
        not setup.adapters.uses_adapters
        and setup.optimisation.optim_state_dtype is Dtype.FLOAT32
        and setup.precision.dtype is not Dtype.FLOAT32
    )


WHAT_IF_HTML = (
    '<p class="hr-text"><b>Float32 states on 16-bit weights are a what-if.</b> No Trainer run has them: AdamW keeps '
    "its states in the dtype of the weights. A real run is one of these two; click to open it.</p>"
)


def proposal_html(estimate: Estimate, name: str) -> str:
    """A setup that a click opens: its name, its need as in its bar, its verdict."""
    return markup.card(name, estimate.verdict, f"needs up to {units.gib(estimate.need_high_bytes)}")
