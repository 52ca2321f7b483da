"""Which tensors of a run are as large as one that PyTorch could not allocate."""

from __future__ import annotations

from collections.abc import Iterator

from estimator.step.allocations import allocations, hardware_of
from estimator.step.blocks import (
    LARGE_SEGMENT,
    SMALL,
    SMALL_SEGMENT,
    TAKE,
    TAKE_ONCE,
    WHOLE,
    Log,
    Played,
)
from estimator.step.reserved import located, rank_runs
from estimator.values.arithmetic import ceil_div
from estimator.values.range import Range
from estimator.values.results import Refused
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model


def segment_bytes(size: int) -> int:
    """Bytes of the segment that PyTorch asks the driver for, which is what its message names.

    Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``get_allocation_size``.

    >>> [segment_bytes(size) // 2**20 for size in (512, 3 * 2**20, 11 * 2**20)]
    [2, 20, 12]
    """
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < WHOLE else ceil_div(size, SMALL_SEGMENT) * SMALL_SEGMENT


def of_this_size(
    model: Model, gpu: Gpu, setup: TrainingSetup, segment: Range[int], room: int
) -> Iterator[Refused]:
    """The requests of a run whose segments have a size within these ends, each the first of its layer and operator.

    ``room``: bytes of the card that PyTorch can have. Only for a run that is replayed.

    Source: as ``estimator.step.reserved.replayed``.
    """
    hardware = hardware_of(gpu)
    run = rank_runs(model, hardware, setup)[0]
    log = run.log(room)
    _, trace = allocations(model, hardware, setup, run.rank, on_host=run.is_narrow(room))
    seen = set()
    for at, (_, piece) in enumerate(trace.ran):
        if piece.stretch in seen:
            continue
        seen.add(piece.stretch)
        for request in _within(log, piece.stretch, segment):
            yield located(model, hardware, setup, room, Played(0, 0, at, 0, request), run)


def _within(log: Log, stretch: int, segment: Range[int]) -> Iterator[int]:
    """The requests of a stretch whose segments have a size within these ends."""
    what, _, sizes, _ = log.requests
    starts, ends = log.spans
    for request in range(starts[stretch], ends[stretch]):
        size = segment_bytes(sizes[request])
        if what[request] in (TAKE, TAKE_ONCE) and segment.low <= size <= segment.high:
            yield request
