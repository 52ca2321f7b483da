"""Marks that name setups in the page's HTML, so that a script sees which parts show which setup."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType

from estimator import Gpu, Model, TrainingSetup, contract


@lru_cache(maxsize=256)
def fields(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Mapping[str, object]:
    """The setup as the contract writes it, once for all that a page makes of it."""
    return MappingProxyType(contract.write_fields(model, gpu, setup))


@lru_cache(maxsize=2048)
def mark(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> str:
    """Equal for equal setups.

    >>> from estimator import catalog
    >>> one, other = (mark(catalog.model("openai-community/gpt2"), None, TrainingSetup(lora_r=r)) for r in (8, 16))
    >>> one == other, len(one)
    (False, 12)
    """
    return digest(fields(model, gpu, setup))


def digest(facts: Mapping[str, object]) -> str:
    """A short text that is equal for equal facts."""
    return sha256(json.dumps(dict(facts), sort_keys=True, default=str).encode()).hexdigest()[:12]
