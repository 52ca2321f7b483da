"""The moments of a schedule as rows of coefficients over the distinct sizes of its program.

A moment's bytes are a sum of sizes, each so many times: a row. Sizes are never negative, so a row whose every
coefficient is at most another's is never higher, and falls away where many cells are asked about. What remains are the
few moments that can be the peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimator.grid.arrays import LARGEST, Numbers, Table
from estimator.step.timeline import Gathered, Schedule
from estimator.values.remembered import remembered

EXACT = 2.0**52
"""Sums of integers in float64 below this bound are exact in any order: half of 2⁵³, the mantissa's range."""


MOST_BYTES = 32 * 2**20
"""Bytes of rows that are remembered: ours."""


class Rows(NamedTuple):
    """The moments that can be the highest."""

    times: Numbers
    """[moments, sizes]: number of live tensors of each size."""
    gathered: Numbers
    """[moments]: bytes of weights gathered by ZeRO-3."""


def _bytes_of(of: Rows) -> list[tuple[object, int]]:
    return [(of, of.times.nbytes)]


@remembered(64, MOST_BYTES, _bytes_of)
def rows(schedule: Schedule, gathered: Gathered | None) -> Rows:
    """The moments of a schedule that can be its highest: counts of each size, and gathered bytes.

    Of equal segments in a row the first or the last is highest, as in ``Walk``.

    Source: derived.
    """
    program = schedule.program
    prefixes = [_prefixes(schedule, segment) for segment in range(len(program.spans))]
    before = np.zeros(len(program.places), dtype=np.int64)
    found = []
    for index, run in enumerate(schedule.runs):
        inside = prefixes[run.segment]
        net = inside[-1]
        if run.has_moments:
            for first, last, levels in _repetitions(schedule, gathered, index):
                held = _with(inside, schedule, run.segment, levels)
                found += [held + np.append(before + place * net, 0) for place in {first, last}]
        before = before + run.length * net
    moments = np.concatenate(found)
    return Rows(moments[:, :-1], moments[:, -1])


@remembered(64, MOST_BYTES, _bytes_of)
def highest_rows(schedule: Schedule, gathered: Gathered | None) -> Rows:
    """The same without moments that another dominates: a third or less, found in the time of thousands of cells.

    Source: derived.
    """
    kept = highest(np.column_stack(rows(schedule, gathered)))
    return Rows(kept[:, :-1], kept[:, -1])


def _prefixes(schedule: Schedule, segment: int) -> Numbers:
    """[events + 1, sizes]: what a segment has allocated before each event, and at its end."""
    program = schedule.program
    start, end = program.spans[segment]
    steps = np.zeros((end - start + 1, len(program.places)), dtype=np.int64)
    for event in range(start, end):
        steps[event - start + 1, program.slots[event]] = program.signs[event]
    held: Numbers = steps.cumsum(axis=0)
    return held


def _repetitions(
    schedule: Schedule, gathered: Gathered | None, index: int
) -> Iterator[tuple[int, int, Sequence[int]]]:
    """First and last of the equal repetitions of a run, and the bytes gathered in each of their parts."""
    if gathered is None:
        yield 0, schedule.runs[index].length - 1, (0,)
        return
    for first, last, _ in gathered.alike[index]:
        yield first, last, gathered.levels[index][first]


def _with(inside: Numbers, schedule: Schedule, segment: int, levels: Sequence[int]) -> Numbers:
    """A segment's moments that can be its highest, with the bytes gathered at each.

    They come after an allocation and before a release, or where the gathered bytes change: others are lower.
    """
    program = schedule.program
    start, end = program.spans[segment]
    cuts = [call.start - start for call in program.calls[segment]] if len(levels) > 1 else []
    # between calls and at each, in turn
    firsts = np.array([0, *(cut for cut in cuts for _ in range(2))])
    lasts = np.array([*(cut for cut in cuts for _ in range(2)), end - start])
    lengths = lasts - firsts + 1
    places = np.repeat(lasts + 1 - lengths.cumsum(), lengths) + np.arange(lengths.sum())
    rises = np.diff(inside.sum(axis=1)) > 0
    begins = np.append(True, rises)[places] | (places == np.repeat(firsts, lengths))
    ends = np.append(~rises, True)[places] | (places == np.repeat(lasts, lengths))
    tops = begins & ends
    gathered = np.repeat(np.array(levels, dtype=np.int64), lengths)
    return np.column_stack([inside[places[tops]], gathered[tops]])


def highest(moments: Numbers) -> Numbers:
    """The rows that no other row dominates in every column, each once; in their own unit.

    Source: derived.

    >>> highest(np.array([[1, 2], [2, 1], [1, 1], [2, 1]])).tolist()
    [[1, 2], [2, 1]]
    """
    # none dominates another whose sum is larger, so the first of the rest always stays
    rest = moments[np.argsort(-moments.sum(axis=1), kind="stable")]
    kept = []
    while len(rest):
        kept.append(rest[0])
        rest = rest[(rest > rest[0]).any(axis=1)]
    return np.stack(kept)


def peaks(of: Rows, sizes: Sequence[Numbers | int], cells: int) -> Numbers:
    """Bytes of the highest moment above those at the start, per cell.

    In float64, whose sums are exact below 2⁵³, where no partial sum can come near it; else in whole numbers.

    Source: derived.
    """
    exact = np.empty((len(sizes), cells), dtype=np.int64)
    for slot, size in enumerate(sizes):
        exact[slot] = size
    rounded = exact.astype(np.float64)
    most = np.abs(of.times).max(axis=0).astype(np.float64)
    top = float(of.gathered.max(initial=0))
    heights: NDArray[np.float64] = of.times.astype(np.float64) @ rounded
    heights += of.gathered[:, None]
    peak: Numbers = heights.max(axis=0).astype(np.int64)
    large = most @ rounded + top >= EXACT
    if large.any():
        assert (most @ rounded).max() < LARGEST
        peak[large] = (of.times @ exact[:, large] + of.gathered[:, None]).max(axis=0)
    return peak


def sizes_of(schedule: Schedule, table: Table) -> list[Numbers | int]:
    """The distinct sizes of a schedule's program, in bytes.

    Source: derived.
    """
    return [table[place] for place in schedule.program.places]
