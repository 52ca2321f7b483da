"""How many GPUs hold together what fewer do not, and the keys by which they share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from estimator.answer.estimate import need
from estimator.parallel.combinations import refusal, sharing
from estimator.parallel.sharding import is_packed_divided
from estimator.search.limits import holds, smallest_gpu
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Method, Model, Strategy

MOST_GPUS = 64
"""GPUs that are proposed at most: ours, eight machines of eight."""
WAYS = (Strategy.FSDP, Strategy.ZERO3)
"""What divides weights, gradients and states; the first that goes with a setup is taken."""

Keys = Mapping[str, Any]


class GpuSet(NamedTuple):
    """GPUs of one kind that hold a setup together."""

    gpu: Gpu
    setup: TrainingSetup
    """As they train it."""
    keys: Keys
    """What makes it so, by the contract's keys; the GPU is not among them."""


def fewest_gpus(model: Model, gpu: Gpu, setup: TrainingSetup, way: Strategy) -> GpuSet | None:
    """As few of 2, 4, 8 … GPUs, more than the setup has, as hold it by a strategy; None if not so many do."""
    for keys in _more(setup, way):
        shared = replace(setup, **keys)
        if holds(model, gpu, shared):
            return GpuSet(gpu, shared, keys)
    return None


def smallest_set(
    model: Model, chosen: Gpu | None, gpus: Iterable[Gpu], setup: TrainingSetup
) -> GpuSet | None:
    """As few of the chosen GPU as hold it; else as few of any kind as do, and of these kinds the smallest.

    A card without bfloat16 units is passed over where the setup computes in bfloat16.
    """
    if chosen is not None and (chosen.supports_bf16 or not setup.uses_bf16):
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
    """Why no number of GPUs can divide this setup by any of ``WAYS``, in one sentence; empty where one can."""
    why = ""
    number = 2
    while number <= MOST_GPUS:
        for way in WAYS:
            if number > setup.num_gpus:
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
    """The smallest card, and None also where the setup cannot be trained so, which may depend on the model."""
    try:
        return smallest_gpu(model, cards, setup)
    except ValueError:
        return None


def sharing_keys(setup: TrainingSetup, way: Strategy, number: int) -> dict[str, Any]:
    """The keys by which so many GPUs share a setup, with the same effective batch if they divide it."""
    keys = sharing(setup, way, number)
    if setup.method is Method.QLORA and not is_packed_divided(setup):
        keys["bnb_4bit_quant_storage"] = str(setup.dtype)
    if setup.effective_batch_size % number == 0:
        of_each = setup.effective_batch_size // number
        most = min(setup.per_device_train_batch_size, of_each)
        batch = next(size for size in range(most, 0, -1) if of_each % size == 0)
        keys["per_device_train_batch_size"] = batch
        keys["gradient_accumulation_steps"] = of_each // batch
    return {key: value for key, value in keys.items() if getattr(setup, key) != value}


def _more(setup: TrainingSetup, way: Strategy) -> Iterator[dict[str, Any]]:
    """The keys of 2, 4, 8 … GPUs, more than there are, that may share the setup so."""
    number = 2
    while number <= MOST_GPUS:
        if number > setup.num_gpus:
            keys = sharing_keys(setup, way, number)
            if refusal(replace(setup, **keys)) is None:
                yield keys
        number *= 2
