"""What torch reserves, the least memory on which a run goes through, and what nvidia-smi shows.

A run's requests are replayed through PyTorch's caching allocator: with memory to spare for what it reserves, and on
smaller and smaller cards for the least that suffices. The tape gives the tensors and their order, the allocator their
blocks; nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from estimator.families.counts import tied_head
from estimator.resident.overhead import (
    exchange_bytes,
    median_context_bytes,
    shown_bytes,
)
from estimator.step.allocations import MADE, MOVED, Hardware, allocations, hardware_of
from estimator.step.blocks import NO_LIMIT, play
from estimator.values.facets.mesh import Mesh
from estimator.values.results import Estimate, Shown
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Strategy, Verdict

AMPLE = 2
"""Memory, as a multiple of a run's tensors, on which it is not replayed: of 170 runs on PyTorch's allocator none needed
more than 1.26 times its blocks, and none reserved more than 1.39 times."""
MOST_LAYERS_REPLAYED = 256
"""Layers up to which a verdict replays a run, for its cost: twice as many as the deepest published model has."""
RESOLUTION = 512
"""The least memory is found to this share of itself."""
FINEST = 2**20
"""And to no less than a MiB."""


def is_replayed(model: Model, setup: TrainingSetup) -> bool:
    """Whether a run's requests are known well enough to decide its need: one whole model in one process, not compiled.

    Shards, device maps and generation are taken in equal pieces, which is near enough for what nvidia-smi shows.

    Source: derived, as ``estimator.step.allocations``.
    """
    return (
        setup.strategy in (Strategy.NONE, Strategy.DDP)
        and not setup.task.objective.generates
        and not setup.computation.torch_compile
        and model.num_hidden_layers <= MOST_LAYERS_REPLAYED
    )


def goes_through(
    model: Model, gpu: Gpu | None, setup: TrainingSetup, room: int, highest: int
) -> bool:
    """Whether the run goes through where PyTorch can have ``room`` bytes of a card.

    ``highest``: bytes of its tensors at their most. A model with a tied head must go through whether it is made on the
    GPU or moved there. Raises ``ValueError`` as ``estimate`` does.

    Source: as ``replayed``.
    """
    if highest > room:
        return False
    if room >= highest * AMPLE:
        return True
    return _passes(model, hardware_of(gpu), setup, room)


@lru_cache(maxsize=4096)
def _passes(model: Model, hardware: Hardware, setup: TrainingSetup, room: int) -> bool:
    return all(
        play(allocations(model, hardware, setup, made), room).died is None for made in _ways(model)
    )


def _ways(model: Model) -> Sequence[bool]:
    return (MOVED, MADE) if tied_head(model) else (MOVED,)


class Replayed(NamedTuple):
    """What PyTorch's allocator makes of a run, in bytes."""

    allocated: int
    """Most bytes of blocks in use (``torch.cuda.max_memory_allocated``)."""
    least: int
    """The least memory on which the run goes through."""


@lru_cache(maxsize=1024)
def replayed(
    model: Model, hardware: Hardware, setup: TrainingSetup, rooms: tuple[int, ...] = ()
) -> Replayed:
    """The blocks of a run and the least memory that it needs, without the CUDA context.

    Runs may go through on a card and die on a slightly larger one, since other cached blocks are reused. Of ``rooms``,
    what the card of a verdict leaves to PyTorch, ascending, the smallest through which the run goes is no less than the
    least memory.

    Error: of 92 runs on PyTorch's allocator, allocated 0.01 % at p95, least 0.00 % in the median, 0.1 % at p95, 0.7 %
    at worst; of 71 of real trainers on one GPU (data/played.csv) 0.01, 0.00, 0.7 and 4.9 %.
    Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp.
    """
    found = [_replayed(model, hardware, setup, made, rooms) for made in _ways(model)]
    return Replayed(*map(max, zip(*found, strict=True)))


def _replayed(
    model: Model, hardware: Hardware, setup: TrainingSetup, made: bool, rooms: tuple[int, ...]
) -> Replayed:
    log = allocations(model, hardware, setup, made)
    spare = play(log)
    low, high = spare.allocated - 1, spare.reserved

    def cut(room: int) -> None:
        nonlocal low, high
        if low < room < high:
            if play(log, room).died is None:
                high = room
            else:
                low = room

    for room in rooms:  # once it goes through, a larger one decides nothing
        cut(room)
    while high - low > max(FINEST, high // RESOLUTION):
        cut((low + high) // 2)
    return Replayed(spare.allocated, high)


@lru_cache(maxsize=256)
def reserved_bytes(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> int:
    """Bytes that torch reserves on one GPU over three steps (``torch.cuda.max_memory_reserved``).

    Error: 0.04 % at p95 of 92 runs on PyTorch's allocator, 0.2 % of 71 of real trainers; for other strategies see the
    readings of ``reserved`` and ``device`` in data/measurements.csv.
    Source: as ``replayed``.
    """
    room = NO_LIMIT if gpu is None else gpu.memory_bytes - sum(_outside(gpu, setup))
    hardware = hardware_of(gpu)
    return max(
        play(allocations(model, hardware, setup, made), room).reserved for made in _ways(model)
    )


def outside_bytes(gpu: Gpu | None, mesh: Mesh, processes: int = 1) -> tuple[int, int]:
    """Bytes outside torch's allocator: of each process's CUDA context, the median, and of NCCL, the midpoint.

    Source: ``estimator.resident.overhead``.
    """
    return median_context_bytes(gpu, processes), sum(exchange_bytes(mesh)) // 2


def _outside(gpu: Gpu | None, setup: TrainingSetup) -> tuple[int, int]:
    return outside_bytes(gpu, setup.mesh, setup.processes_per_gpu)


def reserved(answer: Estimate) -> int:
    """Bytes that torch reserves for an answer; under a device map the midpoint of published runs, as its GPUs differ.

    Source: ``reserved_bytes``; ``estimator.resident.overhead.shown_bytes``.
    """
    if answer.setup.strategy is Strategy.DEVICE_MAP:
        shares = shown_bytes(answer.decisive.bytes, answer.need_low_bytes, 1, answer.gpu)
        return shares.middle - sum(_outside(answer.gpu, answer.setup))
    return reserved_bytes(answer.model, answer.gpu, answer.setup)


def device_bytes(answer: Estimate) -> int:
    """Bytes of one GPU that the process occupies: what torch reserves, the CUDA context, NCCL's buffers.

    Capped at the GPU's memory, unless the need exceeds it.
    Source: ``reserved``; ``estimator.resident.overhead.shown_bytes``.
    """
    held = max(reserved(answer), answer.decisive.bytes) + sum(_outside(answer.gpu, answer.setup))
    if answer.gpu is None or answer.verdict is Verdict.DOES_NOT_FIT:
        return held
    return min(held, answer.gpu.memory_bytes)


def shown(answer: Estimate) -> Shown | None:
    """Bytes that nvidia-smi shows: ``device_bytes`` with the range of published runs; None if the run does not fit, or
    not in the memory of CUDA or HIP.

    It counts freed blocks that the allocator keeps, and decides nothing.

    Source: ``device_bytes``; ``estimator.resident.overhead.shown_bytes``.
    """
    if not answer.can_run or (answer.gpu is not None and not answer.gpu.monitor):
        return None
    held = (answer.decisive.bytes, answer.need_low_bytes, answer.setup.replicas, answer.gpu)
    low, _, high = shown_bytes(*held)
    middle = max(device_bytes(answer), answer.need_low_bytes)
    return Shown(min(low, middle), middle, max(high, middle))
