"""How long a context each change allows, the gentlest change first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from estimator.answer.estimate import is_refused
from estimator.parallel.combinations import refusal
from estimator.search.best_ways import COUNTS, reach
from estimator.search.fewest_gpus import WAYS, Keys, sharing_keys
from estimator.search.free_changes import splits
from estimator.search.limits import longest_context, shortest_row
from estimator.search.remedies import offloaded, with_adapters
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Method, Model


class ContextRung(NamedTuple):
    """A change, and the longest context that fits with it."""

    name: str
    """The change in words; empty for the setup as it is, and where ``titles`` say it all."""
    titles: tuple[str, ...]
    """Changes that cost no quality and come with it, in words."""
    keys: Keys
    """Keys to set, by the contract's names."""
    longest_context: int
    """In tokens; 0 if not even the shortest fits."""


def context_rungs(model: Model, gpu: Gpu, setup: TrainingSetup) -> tuple[ContextRung, ...]:
    """The setup as it is, then each change that reaches further than all before it, in tokens.

    First the smallest micro-batch of the same effective batch, then every change that costs no quality; with both,
    LoRA, QLoRA, offload to the CPU, and 2, 4 and 8 GPUs, which take the next effective batch that they divide. The
    setup's own context does not matter.

    Raises ``ValueError`` as ``estimate`` does.
    Source: derived, from ``longest_context`` and ``reach``.
    """
    return _context_rungs(model, gpu, replace(setup, max_length=shortest_row(model, setup)))


@lru_cache(maxsize=256)
def _context_rungs(model: Model, gpu: Gpu, setup: TrainingSetup) -> tuple[ContextRung, ...]:
    found = [ContextRung("", (), {}, longest_context(model, gpu, setup))]
    for rung in _changes(model, gpu, setup):
        if rung.longest_context > found[-1].longest_context:
            found.append(rung)
    return tuple(found)


def _changes(model: Model, gpu: Gpu, setup: TrainingSetup) -> Iterator[ContextRung]:
    split: Keys = next((it for it in splits(setup) if not _is_refused(model, setup, it)), {})
    size = split.get("per_device_train_batch_size", setup.per_device_train_batch_size)
    if size < setup.per_device_train_batch_size:
        smaller = replace(setup, **split)
        yield ContextRung(f"Micro-batch {size:,}", (), split, longest_context(model, gpu, smaller))
    else:
        split = {}
    for name, keys in _costly(model, gpu, replace(setup, **split)):
        together = {**split, **keys}
        if not _is_refused(model, setup, together):
            found = reach(model, gpu, replace(setup, **together))
            every = {**together, **found.keys}
            yield ContextRung(name, found.titles, every, found.longest_context)


def _costly(model: Model, gpu: Gpu, setup: TrainingSetup) -> Iterator[tuple[str, Keys]]:
    yield "", {}
    adapters = with_adapters(model, setup) if setup.method is Method.FULL else {}
    for method in list(Method)[list(Method).index(setup.method) + 1 :]:
        yield _NAMES[method], {**adapters, "method": method}
    if (keys := next(offloaded(setup, gpu), None)) is not None:
        yield "CPU offload", keys
    for number in COUNTS:
        if number > setup.num_gpus:
            shared = (sharing_keys(setup, way, number) for way in WAYS)
            if (
                keys := next((it for it in shared if not _is_refused(model, setup, it)), None)
            ) is not None:
                yield f"{number} GPUs", keys


_NAMES = {Method.LORA: "LoRA", Method.QLORA: "QLoRA"}


def _is_refused(model: Model, setup: TrainingSetup, keys: Keys) -> bool:
    try:
        changed = replace(setup, **keys)
    except ValueError:
        return True
    return refusal(changed) is not None or is_refused(model, changed)
