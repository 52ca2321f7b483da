"""What the work of one GPU depends on: not how GPUs share it.

A question asks about the same work under many strategies, on many numbers of GPUs and on several cards.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from estimator.values.arithmetic import StandIn
from estimator.values.facets.batch import Batch
from estimator.values.setup import FACETS, TrainingSetup

_FACETS = tuple(name for name in FACETS if name != "mesh")

Facets = tuple[object, ...]
"""Of a setup without its mesh: a key that setups of equal work share."""


def is_shared(setup: TrainingSetup) -> bool:
    """Whether the work is the same however GPUs share it; else it is recorded, or has rows by their number."""
    alone = not setup.task.objective.generates and setup.mesh.tp_size == 1
    return alone and not isinstance(setup.batch.per_device_train_batch_size, StandIn)


def of_step(setup: TrainingSetup) -> Facets:
    """What a step's work depends on."""
    return tuple(getattr(setup, name) for name in _FACETS)


def of_micro_step(setup: TrainingSetup) -> Facets:
    """What a micro-step's work depends on: not how many there are in a step."""
    same = {"batch": _alone(setup.batch)}
    return tuple(same.get(name) or getattr(setup, name) for name in _FACETS)


@lru_cache(maxsize=1024)
def _alone(batch: Batch) -> Batch:
    return batch.without_accumulation()


def setup_of(facets: Facets) -> TrainingSetup:
    """The setup of one GPU with these facets."""
    given: dict[str, Any] = dict(zip(_FACETS, facets, strict=True))
    return TrainingSetup(**given)
