"""How long a context and how large a micro-batch each change allows, the gentlest change first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from estimator.answer.needs import is_refused
from estimator.parallel.combinations import refusal, sharing_keys
from estimator.passes.batch import least_batch
from estimator.search.best_ways import COUNTS, Reach, reach
from estimator.search.free_changes import splits
from estimator.search.limits import WAYS, Keys, largest_micro_batch, longest_context, shortest_row
from estimator.search.remedies import offloaded, with_adapters
from estimator.values.methods import Method
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model


class Rung(NamedTuple):
    """A change, and how far the setup goes with it."""

    name: str
    """The change in words; empty for the setup as it is, and where ``titles`` say it all."""
    titles: tuple[str, ...]
    """Changes that cost no quality and come with it, in words."""
    keys: Keys
    """Keys to set, by the contract's names."""
    limit: int
    """The longest context in tokens, or the largest micro-batch; 0 if none fits."""


def context_rungs(model: Model, gpu: Gpu, setup: TrainingSetup, within: int = 0) -> Iterator[Rung]:
    """The setup as it is, then each change that reaches a longer context than all before it, in tokens.

    First the smallest micro-batch of the same effective batch, then every change that costs no quality; with both,
    LoRA, QLoRA, offload to the CPU, and 2, 4 and 8 GPUs, which take the next effective batch that they divide. The
    setup's own context does not matter. ``within``: as of ``longest_context``, for all but the setup as it is.

    Raises ``ValueError`` as ``estimate`` does.
    Source: derived, from ``longest_context`` and ``reach``.
    """
    shortest = setup.replace(max_length=shortest_row(model, setup))
    now = Rung("", (), {}, longest_context(model, gpu, shortest))
    yield from _ascending(now, _to_longer_contexts(model, gpu, shortest, within))


def batch_rungs(model: Model, gpu: Gpu, setup: TrainingSetup, within: int = 0) -> Iterator[Rung]:
    """The setup as it is, then each change that allows a larger micro-batch than all before it, at its own context.

    The changes are those of ``context_rungs`` at the setup's own micro-batch, which does not matter. ``within``: as of
    ``largest_micro_batch``, for all but the setup as it is.

    Raises ``ValueError`` as ``estimate`` does.
    Source: derived, from ``largest_micro_batch`` and ``reach``.
    """
    smallest = setup.replace(per_device_train_batch_size=least_batch(setup))
    now = Rung("", (), {}, largest_micro_batch(model, gpu, smallest))
    yield from _ascending(
        now,
        (
            Rung(name, found.titles, {**keys, **found.keys}, found.largest_micro_batch)
            for name, keys, found in _reached(model, gpu, smallest, {}, within)
        ),
    )


def _ascending(now: Rung, others: Iterable[Rung]) -> Iterator[Rung]:
    """The first rung, and each that goes further than all before it."""
    yield now
    furthest = now.limit
    for rung in others:
        if rung.limit > furthest:
            yield rung
            furthest = rung.limit


def _to_longer_contexts(
    model: Model, gpu: Gpu, setup: TrainingSetup, within: int
) -> Iterator[Rung]:
    split: Keys = next((keys for keys in splits(setup) if not _is_refused(model, setup, keys)), {})
    size = split.get("per_device_train_batch_size", setup.batch.per_device_train_batch_size)
    if size < setup.batch.per_device_train_batch_size:
        smaller = replace(setup, **split)
        limit = longest_context(model, gpu, smaller, within)
        yield Rung(f"Micro-batch {size:,}", (), split, limit)
    else:
        split = {}
    for name, keys, found in _reached(model, gpu, setup, split, within):
        yield Rung(name, found.titles, {**split, **keys, **found.keys}, found.longest_context)


def _reached(
    model: Model, gpu: Gpu, setup: TrainingSetup, split: Keys, within: int
) -> Iterator[tuple[str, Keys, Reach]]:
    """Each costly change that is not refused, after ``split``: its name, its keys, and how far it goes."""
    for name, keys in _costly(model, gpu, replace(setup, **split)):
        together = {**split, **keys}
        if not _is_refused(model, setup, together):
            yield name, keys, reach(model, gpu, replace(setup, **together), within)


def _costly(model: Model, gpu: Gpu, setup: TrainingSetup) -> Iterator[tuple[str, Keys]]:
    yield "", {}
    adapters = {} if setup.adapters.uses_adapters else with_adapters(model, setup)
    for method in list(Method)[list(Method).index(setup.adapters.method) + 1 :]:
        yield method.label, {**adapters, "method": method}
    if (keys := next(offloaded(setup, gpu), None)) is not None:
        yield "CPU offload", keys
    for number in COUNTS:
        if number > setup.mesh.num_gpus:
            shared = (sharing_keys(setup, way, number) for way in WAYS)
            able = (keys for keys in shared if not _is_refused(model, setup, keys))
            if (keys := next(able, None)) is not None:
                yield f"{number} GPUs", keys


def _is_refused(model: Model, setup: TrainingSetup, keys: Keys) -> bool:
    try:
        changed = replace(setup, **keys)
    except ValueError:
        return True
    return refusal(changed) is not None or is_refused(model, changed)
