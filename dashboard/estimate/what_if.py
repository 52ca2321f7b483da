"""The what-if of float32 states on 16-bit weights, and the real setups near it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.words import markup, units
from estimator import Dtype, Estimate, Method, MixedPrecision

REAL_NEIGHBOURS: Mapping[str, Mapping[str, Any]] = {
    "bfloat16 states too": {
        "dtype": Dtype.BFLOAT16,
        "optim_state_dtype": None,
    },
    "float32 weights with bfloat16 autocast": {
        "dtype": Dtype.FLOAT32,
        "mixed_precision": MixedPrecision.BF16,
        "optim_state_dtype": None,
    },
}
"""Real setups near the what-if of float32 states on 16-bit weights."""


def is_what_if(of: Estimate) -> bool:
    """Whether a setup has float32 states on 16-bit weights, which no Trainer run has."""
    setup = of.setup
    return (
        setup.method is Method.FULL
        and setup.optim_state_dtype is Dtype.FLOAT32
        and setup.dtype is not Dtype.FLOAT32
    )


WHAT_IF_HTML = (
    '<p class="hr-text"><b>Float32 states on 16-bit weights are a what-if.</b> No Trainer run has them: AdamW keeps '
    "its states in the dtype of the weights. A real run is one of these two; click to open it.</p>"
)


def proposal_html(estimate: Estimate, name: str) -> str:
    """A setup that a click opens: its name, its need as in its bar, its verdict."""
    return markup.card(name, estimate.verdict, f"needs up to {units.gib(estimate.need_high_bytes)}")
