"""Links: the URL that opens a setup."""

from __future__ import annotations

import json
from urllib.parse import urlencode

from estimator import ALL_LINEAR, Estimate, Gpu, Model, TrainingSetup, contract, default_targets


def query(of: Estimate) -> str:
    """The query of a URL, without the question mark: every key that differs from the contract's defaults."""
    return query_of(of.model, of.gpu, of.setup)


def query_of(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> str:
    """``query`` of a setup that need not be estimated."""
    pairs = []
    for key, value in contract.write_fields(model, gpu, setup).items():
        values = value if isinstance(value, list) else [value]
        pairs += [(key, it if isinstance(it, str) else json.dumps(it)) for it in values]
    return urlencode(pairs)


def targets_as_chosen(model: Model, setup: TrainingSetup) -> str | tuple[str, ...]:
    """LoRA's targets as stored in the session.

    A model's default targets are stored as ``ALL_LINEAR``, so that another model gets its own defaults.
    """
    targets = setup.adapters.lora_target_modules
    return ALL_LINEAR if targets == default_targets(model, setup) else targets
