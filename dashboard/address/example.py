"""What a bare address opens on."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLE: Mapping[str, object] = {
    "model": "mistralai/Mistral-7B-v0.1",
    "gpu": "A100-SXM4-80GB",
    "mixed_precision": "no",
    "optim_state_dtype": "float32",
}
"""The setup that the rule of thumb is usually explained with, by the contract's keys."""
