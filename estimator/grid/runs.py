"""Hours and dollars of many setups of one model at once.

The formulas of ``estimator.time`` are run once on numbers that record what becomes of them, and the record is evaluated
in arrays: the same operations in the same order. Where a comparison comes out differently, another record is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from estimator.answer.needs import per_structure
from estimator.grid.arrays import Reals, Some, evaluate, holds
from estimator.grid.cells import (
    ACCUMULATION,
    BATCH,
    GPUS,
    LENGTH,
    RANK,
    Cells,
    distinct,
    of,
    present,
    sized,
)
from estimator.grid.reals import RealRecording, Recorded
from estimator.inference.seconds import time_of
from estimator.passes.prepared import as_trained
from estimator.resident.model import Resident
from estimator.resident.overhead import workspace_bytes
from estimator.run.prequantized import as_loaded
from estimator.step.timeline import structure
from estimator.tape.symbols import Recording
from estimator.time.cost import run_cost
from estimator.time.rates import missing_rate
from estimator.values.facets.batch import Batch
from estimator.values.range import Range
from estimator.values.setup import FACETS, TrainingSetup
from estimator.values.specs import Gpu, Model

AT_ONCE = 8192
"""Cells evaluated at once (our choice, so that a chunk stays in the processor's cache)."""
MOST_RECORDS = 64
"""Maximum number of recordings per group; setups for which none is valid are computed one by one."""
FEW = 16
"""Maximum number of runs in a group that are computed one by one (our choice; a recording costs as much as several)."""
CELLS_OF_BLOCK = 65_536
"""Cells of a block evaluated at once (our choice, so that its largest arrays stay in the processor's cache)."""
MOST_SPARSE = 2
"""Maximum cells of the full grid per requested cell (our choice; a cell of the grid is several times cheaper)."""
ENDS = 4
"""Hours, low and high, and dollars, low and high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Hours and US dollars of each run, whole job, in the shape of the arguments; NaN if unknown."""

    hours: Range[Reals]
    dollars: Range[Reals]


def runs(model: Model, gpu: Gpu, setup: TrainingSetup, **asked: ArrayLike) -> Runs:
    """Hours and US dollars of each of many runs, whole job, equal to ``time_of`` and ``run_cost`` of each.

    ``asked`` is as in ``needs``, which says which setups are refused; here any setup is computed. Sums are
    taken one by one in float64, so the last of sixteen digits may differ.

    Source: derived.
    """
    cells, shape = of(setup, asked)
    model, setup = as_trained(model, setup)
    ends = np.full((ENDS, len(cells[BATCH])), np.nan)
    for group, members in _groups(model, gpu, setup, cells):
        group.read(cells, members, ends)
    of_hours, of_dollars = ends.reshape(2, 2, *shape)
    return Runs(hours=Range(*of_hours), dollars=Range(*of_dollars))


def _groups(
    model: Model, gpu: Gpu, setup: TrainingSetup, cells: Cells
) -> Iterator[tuple[_Group, NDArray[np.int64]]]:
    columns, number = distinct([cells[RANK], cells[GPUS], np.minimum(cells[ACCUMULATION], 2)])
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number))
    found = zip(*(column.tolist() for column in columns), strict=True)
    for (rank, gpus, accumulation), members in zip(found, np.split(order, ends[:-1]), strict=True):
        try:
            one = sized(setup, rank=rank, gpus=gpus, accumulation=accumulation)
            one = as_loaded(model, one)
            whole = per_structure(model, structure(one), workspace_bytes(gpu)).whole
        except ValueError:
            continue
        if missing_rate(gpu, one) is None:
            yield _Group(model, gpu, one, whole), members


class _Group:
    """Runs that differ only in batch, length and accumulation."""

    def __init__(self, model: Model, gpu: Gpu, setup: TrainingSetup, whole: Resident) -> None:
        self._model, self._gpu, self._setup, self._whole = model, gpu, setup, whole

    def read(self, cells: Cells, members: NDArray[np.int64], ends: Reals) -> None:
        numbers = np.stack([cells[key][members] for key in (BATCH, LENGTH, ACCUMULATION)])
        if len(members) <= FEW:
            for place, member in enumerate(members.tolist()):
                ends[:, member] = self._known(numbers[:, place].tolist())
            return
        values, places = zip(*(present(row) for row in numbers), strict=True)
        if math.prod(map(len, values)) <= MOST_SPARSE * len(members):
            found = np.full((ENDS, *map(len, values)), np.nan)
            self._read_all(values, found)
            ends[:, members] = found[:, *places]
            return
        self._read_some(numbers, members, ends)

    def _read_all(self, values: Sequence[NDArray[np.int64]], found: Reals) -> None:
        """Every batch at every length and accumulation: [4, batches, lengths, accumulations].

        Each number of a record has the axes that it depends on alone, so what depends on the length is computed once
        for each length.
        """
        open_ = np.ones(found.shape[1:], np.bool_)
        along = max(1, CELLS_OF_BLOCK // (found.shape[2] * found.shape[3]))
        for _ in range(MOST_RECORDS):
            if not open_.any():
                return
            first = np.unravel_index(int(open_.argmax()), open_.shape)
            sample = [int(column[place]) for column, place in zip(values, first, strict=True)]
            try:
                recording, outcome = self._recorded(sample)
            except TypeError:  # a formula does what a record does not know
                break
            for start in range(0, len(open_), along):
                part = slice(start, start + along)
                box = _box_around(open_[part])
                block = [
                    column[span]
                    for column, span in zip((values[0][part], *values[1:]), box, strict=True)
                ]
                if all(map(len, block)):
                    _evaluated_block(
                        recording, outcome, block, open_[part][box], found[:, part][:, *box]
                    )
            if open_[first]:
                break
        for place in zip(*np.nonzero(open_), strict=True):
            numbers = [int(column[at]) for column, at in zip(values, place, strict=True)]
            found[:, *place] = self._known(numbers)

    def _read_some(
        self, numbers: NDArray[np.int64], members: NDArray[np.int64], ends: Reals
    ) -> None:
        """Cell by cell, in chunks; ``members``: where each one's ends are written."""
        rest = np.arange(len(members))
        for _ in range(MOST_RECORDS):
            if not len(rest):
                return
            if self._setup.task.objective.generates:  # generation is not recorded
                break
            try:
                recording, outcome = self._recorded(numbers[:, rest[0]].tolist())
            except TypeError:  # a formula uses an operation that cannot be recorded
                break
            held = np.zeros(len(rest), np.bool_)
            for start in range(0, len(rest), AT_ONCE):
                part = rest[start : start + AT_ONCE]
                held[start : start + AT_ONCE] = _evaluated(
                    recording, outcome, numbers[:, part], members[part], ends
                )
            if not held[0]:
                break
            rest = rest[~held]
        for place in rest.tolist():
            ends[:, members[place]] = self._known(numbers[:, place].tolist())

    def _known(self, numbers: Sequence[int]) -> list[Any]:
        batch, length, accumulation = numbers
        here = self._setup
        one = sized(
            here,
            rank=here.adapters.lora_r,
            gpus=here.mesh.num_gpus,
            accumulation=accumulation,
            batch=batch,
            length=length,
        )
        return _known_ends(self._model, self._gpu, one, self._whole)

    def _recorded(self, sample: Sequence[int]) -> tuple[Recording, list[Any]]:
        recording = RealRecording()
        inputs = [recording.input(number) for number in sample]
        setup = _with(self._setup, inputs)
        return recording, _ends(self._model, self._gpu, setup, self._whole)


def _ends(model: Model, gpu: Gpu, setup: TrainingSetup, whole: Resident) -> list[Any]:
    time = time_of(model, gpu, setup, whole)
    cost = run_cost(time, gpu, setup)
    return [*time.total_hours, *(Range.of(np.nan) if cost is None else cost.cost_usd)]


@lru_cache(maxsize=16384)
def _known_ends(model: Model, gpu: Gpu, setup: TrainingSetup, whole: Resident) -> list[Any]:
    """The same of one setup, remembered for the next question."""
    return _ends(model, gpu, setup, whole)


def _with(setup: TrainingSetup, numbers: Sequence[Any]) -> TrainingSetup:
    """The setup with another batch, length and accumulation, which need not be ints."""
    batch = object.__new__(Batch)
    for row in fields(Batch):
        object.__setattr__(batch, row.name, getattr(setup.batch, row.name))
    for name, number in zip((BATCH, LENGTH, ACCUMULATION), numbers, strict=True):
        object.__setattr__(batch, name, number)
    facets: dict[str, Any] = {name: getattr(setup, name) for name in FACETS}
    return TrainingSetup(**{**facets, "batch": batch})


def _box_around(chosen: Some) -> tuple[slice, ...]:
    """The smallest block that holds all chosen cells; empty if none is chosen."""
    spans = []
    for axis in range(chosen.ndim):
        others = tuple(other for other in range(chosen.ndim) if other != axis)
        places = np.flatnonzero(chosen.any(axis=others))
        spans.append(slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0))
    return tuple(spans)


def _evaluated_block(
    recording: Recording,
    outcome: Sequence[Any],
    block: Sequence[NDArray[np.int64]],
    open_: Some,
    into: Reals,
) -> None:
    """Write the ends of a block's open cells that take the record's course, and close these."""
    inputs = np.ix_(*(column.astype(np.float64) for column in block))
    held = open_.copy()
    compared = {place for _, *both in recording.guards for place in both}
    with np.errstate(all="ignore"):  # in cells that it does not hold for
        table = evaluate(recording, inputs, compared)
        for (compare, left, right), said in recording.guards.items():
            same = np.asarray(compare(table[left], table[right])) == said
            if not same.all():
                held &= same
        box = _box_around(held)
        inputs = np.ix_(
            *(column[part].astype(np.float64) for column, part in zip(block, box, strict=True))
        )
        places = [number.place for number in outcome if isinstance(number, Recorded)]
        table = evaluate(recording, inputs, places)
    chosen = held[box]
    where = True if chosen.all() else chosen
    for end, value in enumerate(outcome):
        number = table[value.place] if isinstance(value, Recorded) else value
        np.copyto(into[end][box], number, where=where)
    open_ &= ~held


def _evaluated(
    recording: Recording,
    outcome: Sequence[Any],
    numbers: NDArray[np.int64],
    members: NDArray[np.int64],
    ends: Reals,
) -> Some:
    with np.errstate(all="ignore"):  # in cells for which it is not valid
        table = evaluate(recording, list(numbers.astype(np.float64)))
    held = holds(recording, table, len(members))
    for end, value in enumerate(outcome):
        found = table[value.place] if isinstance(value, Recorded) else value
        ends[end, members[held]] = np.broadcast_to(found, held.shape)[held]
    return held
