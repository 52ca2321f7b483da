"""The gentlest method that fits each card, and how far it goes with changes that cost no quality."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from estimator.answer.estimate import bound, estimate
from estimator.answer.needs import is_refused
from estimator.families.adapters import default_targets
from estimator.parallel.combinations import sharing_keys
from estimator.search.free_changes import lossless, splits
from estimator.search.limits import (
    WAYS,
    Keys,
    holds,
    largest_micro_batch,
    longest_context,
    may_hold,
)
from estimator.search.ranking import middle_dollars
from estimator.search.remedies import changed_setup, offloaded
from estimator.values.methods import Method
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model
from estimator.values.strategies import Strategy

COUNTS = (1, 2, 4, 8)
"""Numbers of GPUs considered, all within one machine."""

NEAR = 16
"""How far a way goes is searched to one in so many, for there are many ways; what it says fits, fits."""


class Reach(NamedTuple):
    """How far a setup goes on its GPUs."""

    keys: Keys
    """Further keys to set, by the contract's names."""
    titles: tuple[str, ...]
    """The changes in words, in order."""
    longest_context: int
    """Tokens of an example, at the setup's micro-batch."""
    largest_micro_batch: int
    """Examples per GPU, at the setup's context."""


class BestWay(NamedTuple):
    """The gentlest method that fits a number of GPUs of one kind."""

    gpu: Gpu
    num_gpus: int
    keys: Keys
    """Keys to set for it, by the contract's names, without the GPU; empty if no method fits."""
    titles: tuple[str, ...]
    """The changes needed to fit, in words."""
    answer: Estimate | None
    """None if no method fits."""
    reach: Reach | None
    """How far it goes with every change that costs no quality, searched to one in ``NEAR``."""


def best_ways(model: Model, gpus: Iterable[Gpu], setup: TrainingSetup) -> tuple[BestWay, ...]:
    """The best way on 1, 2, 4 and 8 of each GPU: fitting ones first, then the cheapest.

    The user's price, ``mfu`` and ``pace`` hold for one GPU, so they are ignored here.
    """
    same = setup.replace(usd_per_gpu_hour=None, mfu=None, pace=None)
    ways = [best_way(model, gpu, number, same) for gpu in gpus for number in COUNTS]
    return tuple(sorted(ways, key=_order))


def _order(way: BestWay) -> tuple[bool, bool, float, float, int]:
    cost = None if way.answer is None or way.answer.cost is None else middle_dollars(way.answer)
    size = -way.gpu.memory_bytes
    return way.answer is None, cost is None, cost or 0.0, size, way.num_gpus


@lru_cache(maxsize=4096)
def best_way(model: Model, gpu: Gpu, number: int, setup: TrainingSetup) -> BestWay:
    """The gentlest method that fits this many GPUs at the setup's effective batch and context.

    Full fine-tuning before LoRA before QLoRA; for each, DDP before a strategy that shards, and the fewest of the
    changes that cost no quality. The micro-batch is the largest that then fits, however the setup splits its batch.
    Offload to the CPU, which costs hours, only where no method fits without it.
    """
    if not setup.runs_on(gpu):
        return BestWay(gpu, number, {}, (), None, None)
    candidates = [
        candidate for method in Method for candidate in _candidates(model, setup, method, number)
    ]
    for keys, titles in candidates:
        if (found := _fitting(model, gpu, setup, keys, titles)) is not None:
            return found
    for keys, titles in candidates:
        changed = changed_setup(setup, keys)
        for more in () if changed is None else offloaded(changed, gpu):
            together = {**keys, **more}
            if (
                found := _fitting(model, gpu, setup, together, (*titles, "CPU offload"))
            ) is not None:
                return found
    return BestWay(gpu, number, {}, (), None, None)


def _fitting(
    model: Model, gpu: Gpu, setup: TrainingSetup, keys: Keys, titles: tuple[str, ...]
) -> BestWay | None:
    """The way with the fewest lossless changes; None if it does not fit even with all of them."""
    changed = changed_setup(setup, keys)
    if changed is None or not may_hold(model, gpu, changed):  # no lossless change lowers this bound
        return None
    parts = [part for part in splits(changed) if not is_refused(model, replace(changed, **part))]
    if not parts:
        return None
    for more, names in _steps(model, gpu, replace(changed, **parts[0])):
        further = [replace(changed, **part, **more) for part in parts]
        if not holds(model, gpu, further[0]):
            continue
        largest = bisect_left(further, True, 1, key=lambda trial: not holds(model, gpu, trial)) - 1
        every = {**keys, **parts[largest], **more}
        return BestWay(
            gpu,
            changed.mesh.num_gpus,
            {key: value for key, value in every.items() if setup.value(key) != value},
            (*titles, *names),
            estimate(model, gpu, further[largest]),
            reach(model, gpu, further[largest], NEAR),
        )
    return None


def _candidates(
    model: Model, setup: TrainingSetup, method: Method, number: int
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Keys that set a method on a number of GPUs, and the strategy's name."""
    keys: dict[str, Any] = {}
    if method is not setup.adapters.method:
        keys = {"method": method}
        if setup.optimisation.optim_state_dtype is not None:  # a what-if applies to its method only
            keys["optim_state_dtype"] = None
        if method.has_adapters:
            adapted = replace(setup, **keys)
            targets = default_targets(model, adapted.adapters)
            if targets != adapted.adapters.lora_target_modules:
                keys["lora_target_modules"] = targets
    for way in (Strategy.NONE,) if number == 1 else (Strategy.DDP, *WAYS):
        shared = changed_setup(setup, keys)
        if shared is None:
            return
        yield {**keys, **sharing_keys(shared, way, number)}, (way.label,) * (not way.is_alone)


def _steps(
    model: Model, gpu: Gpu, setup: TrainingSetup
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """First no change, then one more lossless change at a time, skipping those that do not lower the need."""
    keys: dict[str, Any] = {}
    names: tuple[str, ...] = ()
    yield keys, names
    lowest = _high(model, gpu, setup)
    for change in lossless(model, gpu, setup):
        (option,) = change.options
        further = changed_setup(setup, {**keys, **option})
        high = None if further is None else _high(model, gpu, further)
        if high is not None and (lowest is None or high < lowest):
            keys, names, lowest = {**keys, **option}, (*names, change.title), high
            yield keys, names


@lru_cache(maxsize=4096)
def reach(model: Model, gpu: Gpu, setup: TrainingSetup, within: int = 0) -> Reach:
    """How far a setup goes on its GPUs with every lossless change, under the strategy that goes furthest.

    ``within``: as of ``largest_micro_batch``. Raises ``ValueError`` as ``estimate`` does.
    """
    found = [_reach(model, gpu, setup, {}, (), within)]
    now = setup.mesh.strategy
    if now.averages_in_buckets or now.partitions_flat or now.keeps_gathered:
        for way in WAYS:
            keys = sharing_keys(setup, way, setup.mesh.num_gpus)
            shared = changed_setup(setup, keys)
            if shared is not None and _high(model, gpu, shared) is not None:
                found.append(_reach(model, gpu, shared, keys, (way.label,), within))
                break
    return max(found, key=attrgetter("longest_context"))


def _reach(
    model: Model, gpu: Gpu, setup: TrainingSetup, keys: Keys, titles: tuple[str, ...], within: int
) -> Reach:
    # a change that lowers the need of a small step may not lower that of a large one, and vice versa
    large = setup.replace(per_device_train_batch_size=16, max_length=model.position_limit or 16_384)
    more, names = _furthest(model, gpu, large)
    all_of_them = replace(setup, **more)
    return Reach(
        {**keys, **more},
        (*titles, *names),
        longest_context(model, gpu, all_of_them, within),
        largest_micro_batch(model, gpu, all_of_them, within),
    )


@lru_cache(maxsize=256)
def _furthest(model: Model, gpu: Gpu, large: TrainingSetup) -> tuple[Keys, tuple[str, ...]]:
    """All lossless changes that lower the need, and their names: the same wherever batch and context stand."""
    *_, furthest = _steps(model, gpu, large)
    return furthest


def _high(model: Model, gpu: Gpu, setup: TrainingSetup) -> int | None:
    """The bound of the need in bytes; None for a setup that is refused."""
    try:
        return bound(model, gpu, setup)
    except ValueError:
        return None


def ways_on(model: Model, gpu: Gpu, setup: TrainingSetup) -> Sequence[BestWay]:
    """The same for one kind of GPU, by number of GPUs."""
    return [best_way(model, gpu, number, setup) for number in COUNTS]
