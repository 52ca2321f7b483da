"""The fewest GPUs that hold a setup together, and the keys that shard it over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from estimator.answer.estimate import need
from estimator.parallel.combinations import refusal, sharing_keys
from estimator.search.limits import holds, smallest_gpu
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model
from estimator.values.strategies import Strategy

MOST_GPUS = 64
"""GPUs proposed at most: ours, eight machines of eight."""
WAYS = (Strategy.FSDP, Strategy.ZERO3)
"""Strategies that shard weights, gradients and states; the first that a setup allows is used."""

Keys = Mapping[str, Any]


class GpuSet(NamedTuple):
    """GPUs of one model that hold a setup together."""

    gpu: Gpu
    setup: TrainingSetup
    """The sharded setup."""
    keys: Keys
    """The contract's keys that shard it, without the GPU."""


def fewest_gpus(model: Model, gpu: Gpu, setup: TrainingSetup, way: Strategy) -> GpuSet | None:
    """The fewest of 2, 4, 8 … GPUs, more than the setup has, that hold it under a strategy; None if none do."""
    for keys in _more(setup, way):
        shared = replace(setup, **keys)
        if holds(model, gpu, shared):
            return GpuSet(gpu, shared, keys)
    return None


def smallest_set(
    model: Model, chosen: Gpu | None, gpus: Iterable[Gpu], setup: TrainingSetup
) -> GpuSet | None:
    """The fewest of the chosen GPU that hold the setup; else the fewest of any, on the smallest GPU that holds it.

    Skips GPUs without units for the dtypes that the setup computes in.
    """
    if chosen is not None and setup.runs_on(chosen):
        for way in WAYS:
            if (found := fewest_gpus(model, chosen, setup, way)) is not None:
                return found
    cards = list(gpus)
    for way in WAYS:
        for keys in _more(setup, way):
            shared = replace(setup, **keys)
            if (card := _smallest_holding(model, cards, shared)) is not None:
                return GpuSet(card, shared, keys)
    return None


def why_not_shared(model: Model, setup: TrainingSetup) -> str:
    """Why this setup cannot be sharded over any number of GPUs by ``WAYS``, in one sentence; empty if it can."""
    why = ""
    number = 2
    while number <= MOST_GPUS:
        for way in WAYS:
            if number > setup.mesh.num_gpus:
                shared = replace(setup, **sharing_keys(setup, way, number))
                said = refusal(shared) or _refused(model, shared)
                if not said:
                    return ""
                why = why or said
        number *= 2
    return why


def _refused(model: Model, setup: TrainingSetup) -> str:
    try:
        need(model, None, setup)
    except ValueError as problem:
        return str(problem)
    return ""


def _smallest_holding(model: Model, cards: Iterable[Gpu], setup: TrainingSetup) -> Gpu | None:
    """The smallest GPU that holds the setup; None also if the setup is refused, which may depend on the model."""
    try:
        return smallest_gpu(model, cards, setup)
    except ValueError:
        return None


def _more(setup: TrainingSetup, way: Strategy) -> Iterator[dict[str, Any]]:
    """The keys for 2, 4, 8 … GPUs, more than the setup has, where this way is allowed."""
    number = 2
    while number <= MOST_GPUS:
        if number > setup.mesh.num_gpus:
            keys = sharing_keys(setup, way, number)
            if refusal(replace(setup, **keys)) is None:
                yield keys
        number *= 2
