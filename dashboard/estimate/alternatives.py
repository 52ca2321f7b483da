"""What lies around one setup: each method's smallest card, every GPU, and a grid of batches and contexts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from estimator import catalog
from estimator.answer.estimate import estimate, need
from estimator.parallel.combinations import sharing
from estimator.search.fewest_gpus import smallest_set, why_not_shared
from estimator.search.limits import largest_micro_batch, longest_context, smallest_gpu
from estimator.search.ranking import Ranking, rank_gpus
from estimator.search.scaling import COUNTS, Curve, curves
from estimator.values.results import Estimate
from estimator.values.specs import LARGEST, Gpu, Strategy, TrainingSetup

MAP_STEPS = 8
"""Doublings that a side of the map shows."""


class Place(NamedTuple):
    """Where a setup fits at the least. Bytes."""

    gpu: Gpu
    setup: TrainingSetup
    """As it is trained there."""
    headroom_bytes: int
    """What is left of each GPU at the high end of the need."""
    keys: Mapping[str, object]
    """What a click sets to go there; none where a larger card alone is enough."""


def smallest_place(of: Estimate) -> Place | str:
    """The smallest card of the same maker that holds the setup, or as few GPUs together as do; and the room there.

    Else why no GPUs can share it, in one sentence; empty where they can, and are too few.
    """
    cards = catalog.gpus_like(of.gpu)
    if (alone := smallest_gpu(of.model, cards, of.setup)) is not None:
        return _place(of, alone, of.setup, {})
    together = smallest_set(of.model, of.gpu, cards, of.setup)
    if together is None:
        return why_not_shared(of.model, of.setup)
    another = {} if together.gpu == of.gpu else {"gpu": together.gpu.name}
    return _place(of, together.gpu, together.setup, {**together.keys, **another})


def _place(of: Estimate, gpu: Gpu, setup: TrainingSetup, keys: Mapping[str, object]) -> Place:
    return Place(gpu, setup, gpu.memory_bytes - need(of.model, gpu, setup)[1], keys)


def every_gpu(of: Estimate) -> tuple[list[Estimate], Ranking]:
    """The setup on every card of the catalogue and the chosen one, by size; and the best of them."""
    cards = list(catalog.gpus().values())
    if of.gpu is not None and of.gpu not in cards:
        cards.append(of.gpu)
    ranking = rank_gpus(of.model, of.setup, cards)
    return sorted(ranking.estimates, key=lambda it: it.gpu.memory_bytes if it.gpu else 0), ranking


def on_more_gpus(of: Estimate) -> tuple[Curve, ...]:
    """The setup under every strategy on 1 to 64 of its card, and on as many as it has."""
    return curves(of.model, of.gpu, of.setup, (*COUNTS, of.setup.num_gpus))


def over_devices(of: Estimate) -> Estimate | str:
    """The setup over a device map: as it is, or as it would be on its GPUs or two; or why it cannot be."""
    setup = of.setup
    if setup.strategy is Strategy.DEVICE_MAP:
        return of
    number = min(max(2, setup.num_gpus), setup.gpus_per_node)
    try:
        shared = replace(setup, **sharing(setup, Strategy.DEVICE_MAP, number))
        return estimate(of.model, of.gpu, shared)
    except ValueError as problem:
        return str(problem)


class Around(NamedTuple):
    """Headroom in bytes for batches (rows) × contexts (columns); None where the setup cannot be trained."""

    batches: list[int]
    lengths: list[int]
    headroom: list[list[int | None]]


def around(of: Estimate) -> Around:
    """Doublings of micro-batch and context around the setup, as far as two beyond the first that does not fit."""
    assert of.gpu is not None
    setup, gpu = of.setup, of.gpu
    shortest = replace(setup, per_device_train_batch_size=1)
    lengths = _doublings(
        setup.max_length,
        longest_context(of.model, gpu, shortest),
        128 << MAP_STEPS - 1,
        of.model.position_limit or LARGEST["max_length"],
    )
    batches = _doublings(
        setup.per_device_train_batch_size,
        largest_micro_batch(of.model, gpu, replace(setup, max_length=lengths[0])),
        8,
        LARGEST["per_device_train_batch_size"],
    )
    return Around(batches, lengths, [[_headroom(of, gpu, b, s) for s in lengths] for b in batches])


def _doublings(current: int, limit: int, least_top: int, most: int) -> list[int]:
    """Powers of two that end just beyond the limit, and the current number among them."""
    top = 1
    while top < max(limit, current, least_top):
        top *= 2
    chosen = {max(1, top >> step) for step in range(MAP_STEPS)}
    return sorted({min(number, most) for number in chosen} | {current})


def _headroom(of: Estimate, gpu: Gpu, batch: int, length: int) -> int | None:
    setup = replace(of.setup, per_device_train_batch_size=batch, max_length=length)
    try:
        return gpu.memory_bytes - need(of.model, gpu, setup)[1]
    except ValueError:
        return None
