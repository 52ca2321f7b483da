"""Limits of a setup: the largest batch, the longest context, the smallest GPU, and the fewest that hold it together.

Found by a search on the need, so each is exact: it fits, and one more does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from estimator.answer.estimate import bound, fits
from estimator.answer.needs import least_need, need
from estimator.families.vision_family import row_of_images, sees
from estimator.inference.rows import longest_row
from estimator.parallel.combinations import refusal, sharing_keys
from estimator.passes.batch import least_batch, least_length
from estimator.values.keys import LARGEST
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model
from estimator.values.strategies import Strategy


def holds(model: Model, gpu: Gpu, setup: TrainingSetup) -> bool:
    """The same, but False for a setup that is refused.

    Checks the lower bound first, which does not need a step.
    """
    try:
        return may_hold(model, gpu, setup) and fits(model, gpu, setup)
    except ValueError:
        return False


def may_hold(model: Model, gpu: Gpu, setup: TrainingSetup) -> bool:
    """Whether what stays on the GPU leaves the setup a chance; False too for a setup that is refused."""
    try:
        return least_need(model, gpu, setup) <= gpu.memory_bytes
    except ValueError:
        return False


def largest_micro_batch(model: Model, gpu: Gpu, setup: TrainingSetup, within: int = 0) -> int:
    """The largest micro-batch, in examples per GPU, that fits at this length; 0 if not even one does.

    ``within``: the number may be too small by its share of one in so many, which costs less; 0: it is exact.
    """
    smallest = setup.replace(per_device_train_batch_size=least_batch(setup))
    return _largest_micro_batch(model, gpu, smallest, within)


@lru_cache(maxsize=1024)
def _largest_micro_batch(model: Model, gpu: Gpu, setup: TrainingSetup, within: int) -> int:
    """Cached by everything but the micro-batch: while that moves, this stays."""
    step = least_batch(setup) if setup.task.objective.generates else 1
    least = least_batch(setup) // step

    def of(steps: int) -> TrainingSetup:
        return setup.replace(per_device_train_batch_size=step * max(steps, least))

    most = LARGEST["per_device_train_batch_size"] // step
    return step * _largest(model, gpu, of, most, within)


def longest_context(model: Model, gpu: Gpu, setup: TrainingSetup, within: int = 0) -> int:
    """The longest example, in tokens, that fits at this micro-batch; 0 if not even the shortest fits.

    Capped at the number of learned positions, if the model has them. ``within``: as of ``largest_micro_batch``.
    """
    shortest = setup.replace(max_length=shortest_row(model, setup))
    return _longest_context(model, gpu, shortest, within)


@lru_cache(maxsize=1024)
def _longest_context(model: Model, gpu: Gpu, setup: TrainingSetup, within: int) -> int:
    """Cached by everything but the context: while that moves, this stays."""
    least = shortest_row(model, setup)
    return _largest(
        model,
        gpu,
        lambda length: setup.replace(max_length=max(length, least)),
        min(model.position_limit or LARGEST["max_length"], _most_generated(model, setup)),
        within,
    )


def _largest(
    model: Model, gpu: Gpu, of: Callable[[int], TrainingSetup], most: int, within: int
) -> int:
    """The largest number up to ``most`` whose setup fits, so that one more does not; 0 if none does.

    No number beyond what the tensors leave can fit; below it PyTorch's allocator decides, near it.
    """
    high = _largest_within(gpu.memory_bytes, lambda number: bound(model, gpu, of(number)), most) + 1
    near = high // within if within else 0
    low, below = 0, max(1, near)
    while low < high - 1 and not (low and high - low <= near):
        middle = max(low + 1, high - below) if low == 0 else (low + high) // 2
        if fits(model, gpu, of(middle)):
            low = middle
        else:
            high, below = middle, max(1, high // 32, 2 * below)
    return low


def shortest_row(model: Model, setup: TrainingSetup) -> int:
    """The shortest row that leaves the loss a token and holds the images of an example, in tokens."""
    seen = row_of_images(model, setup.images) if sees(model, setup.adapters) else 0
    return max(least_length(setup.task), seen)


def _most_generated(model: Model, setup: TrainingSetup) -> int:
    """The longest row that vLLM takes, where it generates."""
    if setup.task.objective.generates and setup.generation.use_vllm:
        return longest_row(model, setup)
    return LARGEST["max_length"]


EVERY = (8, 6, 4, 3, 2)
"""Distances between checkpointed layers that are tried, the fewest checkpoints first."""


def fewer_checkpoints(model: Model, gpu: Gpu, setup: TrainingSetup) -> dict[str, bool | int]:
    """The keys that leave the most layers without a checkpoint and still fit; empty if none does.

    What is not checkpointed is not computed again: memory that is left over buys time.
    """
    if not setup.computation.gradient_checkpointing or setup.mesh.checkpoint_around_fsdp:
        return {}
    none = {
        "gradient_checkpointing": False,
        "checkpoint_every_n_layers": 1,
        "offload_checkpoints": False,
        "selective_checkpointing": False,
    }
    changed = {key: value for key, value in none.items() if setup.value(key) != value}
    if holds(model, gpu, replace(setup, **changed)):  # type: ignore[arg-type]
        return changed
    for distance in EVERY:
        if not setup.computation.checkpoint_every_n_layers < distance < model.num_hidden_layers:
            continue
        if holds(model, gpu, setup.replace(checkpoint_every_n_layers=distance)):
            return {"checkpoint_every_n_layers": distance}
    return {}


def evaluation_stops(model: Model, gpu: Gpu, setup: TrainingSetup, **larger: int) -> bool:
    """Whether only its evaluation keeps the setup with these numbers from fitting."""
    if setup.run.eval_strategy == "no":
        return False
    try:
        beyond = replace(setup, **larger)  # type: ignore[arg-type]  # the names of counts
        alone = beyond.replace(eval_strategy="no")
        return fits(model, gpu, alone) and not fits(model, gpu, beyond)
    except ValueError:  # out of range, or beyond the learned positions
        return False


def smallest_gpu(model: Model, gpus: Iterable[Gpu], setup: TrainingSetup) -> Gpu | None:
    """The GPU with the least memory that holds the setup; None if none does.

    Skips GPUs without units for the dtypes that the setup computes in.
    """
    by_size = sorted(
        (gpu for gpu in gpus if setup.runs_on(gpu)),
        key=lambda gpu: gpu.memory_bytes,
    )
    return next((gpu for gpu in by_size if fits(model, gpu, setup)), None)


def _largest_within(capacity: int, needed: Callable[[int], int], most: int) -> int:
    """The largest n up to ``most`` whose need, which grows with n, is within the capacity; 0 if none is.

    Doubling, then interpolation, since the need is nearly linear in n. Every third guess bisects, for needs that are
    not.

    >>> _largest_within(100, lambda n: 7 + 3 * n, 1000), _largest_within(100, lambda n: 7 + n * n, 1000)
    (31, 9)
    """
    low = high = 1
    at_low = at_high = needed(1)
    if at_low > capacity:
        return 0
    while at_high <= capacity:
        if high == most:
            return most
        low, at_low = high, at_high
        high = min(2 * high, most)
        at_high = needed(high)
    guesses = 0
    while high - low > 1:
        guesses += 1
        share = 0.5 if guesses % 3 == 0 else (capacity - at_low) / (at_high - at_low)
        middle = min(max(low + int(share * (high - low)), low + 1), high - 1)
        at_middle = needed(middle)
        if at_middle <= capacity:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return low


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
