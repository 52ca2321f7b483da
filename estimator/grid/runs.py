"""Hours and dollars of many setups of one model at once.

The formulas of ``estimator.time`` are run once on numbers that record what becomes of them, and the record is evaluated
in arrays: the same operations in the same order. Where a comparison comes out differently, another record is made.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from estimator.answer.estimate import per_structure
from estimator.grid.arrays import Some, evaluate, holds
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
)
from estimator.inference.seconds import time_of
from estimator.objectives.registry import as_trained
from estimator.resident.model import Resident
from estimator.resident.overhead import workspace_bytes
from estimator.run.prequantized import as_loaded
from estimator.step.timeline import structure
from estimator.tape.symbols import Recording
from estimator.time.cost import run_cost
from estimator.time.throughput import missing_rate
from estimator.values.facets.batch import Batch
from estimator.values.setup import FACETS, TrainingSetup
from estimator.values.specs import Gpu, Model

Reals = NDArray[np.float64]
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

    hours_low: Reals
    hours_high: Reals
    dollars_low: Reals
    dollars_high: Reals


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
    low, high, dollars_low, dollars_high = (end.reshape(shape) for end in ends)
    return Runs(hours_low=low, hours_high=high, dollars_low=dollars_low, dollars_high=dollars_high)


def _groups(
    model: Model, gpu: Gpu, setup: TrainingSetup, cells: Cells
) -> Iterator[tuple[_Group, NDArray[np.int64]]]:
    columns, number = distinct([cells[RANK], cells[GPUS], np.minimum(cells[ACCUMULATION], 2)])
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number))
    found = zip(*(column.tolist() for column in columns), strict=True)
    for (rank, gpus, accumulation), members in zip(found, np.split(order, ends[:-1]), strict=True):
        try:
            one = replace(
                setup, lora_r=rank, num_gpus=gpus, gradient_accumulation_steps=accumulation
            )
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
                ends[:, member] = self._ends(_with(self._setup, numbers[:, place].tolist()))
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
            sample = [int(it[place]) for it, place in zip(values, first, strict=True)]
            try:
                recording, outcome = self._recorded(sample)
            except TypeError:  # a formula does what a record does not know
                break
            for start in range(0, len(open_), along):
                part = slice(start, start + along)
                if open_[part].any():
                    block = values[0][part], values[1], values[2]
                    _evaluated_block(recording, outcome, block, open_[part], found[:, part])
            if open_[first]:
                break
        for place in zip(*np.nonzero(open_), strict=True):
            numbers = [int(it[at]) for it, at in zip(values, place, strict=True)]
            found[:, *place] = self._ends(_with(self._setup, numbers))

    def _read_some(
        self, numbers: NDArray[np.int64], members: NDArray[np.int64], ends: Reals
    ) -> None:
        """Cell by cell, in chunks; ``members``: where each one's ends are written."""
        rest = np.arange(len(members))
        for _ in range(MOST_RECORDS):
            if not len(rest):
                return
            if self._setup.objective.generates:  # generation is not recorded
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
            ends[:, members[place]] = self._ends(_with(self._setup, numbers[:, place].tolist()))

    def _ends(self, setup: TrainingSetup) -> list[Any]:
        time = time_of(self._model, self._gpu, setup, self._whole)
        cost = run_cost(time, self._gpu, setup)
        dollars = [np.nan] * 2 if cost is None else [cost.cost_usd_low, cost.cost_usd_high]
        return [time.total_hours_low, time.total_hours_high, *dollars]

    def _recorded(self, sample: Sequence[int]) -> tuple[Recording, list[Any]]:
        recording = _RealRecording()
        inputs = [recording.input(number) for number in sample]
        return recording, self._ends(_with(self._setup, inputs))


def _with(setup: TrainingSetup, numbers: Sequence[Any]) -> TrainingSetup:
    """The setup with another batch, length and accumulation, which need not be ints."""
    batch = object.__new__(Batch)
    for row in fields(Batch):
        object.__setattr__(batch, row.name, getattr(setup.batch, row.name))
    for name, number in zip((BATCH, LENGTH, ACCUMULATION), numbers, strict=True):
        object.__setattr__(batch, name, number)
    facets: dict[str, Any] = {name: getattr(setup, name) for name in FACETS}
    return TrainingSetup(**{**facets, "batch": batch})


def _evaluated_block(
    recording: Recording,
    outcome: Sequence[Any],
    block: Sequence[NDArray[np.int64]],
    open_: Some,
    into: Reals,
) -> None:
    """Write the ends of a block's open cells that take the record's course, and close these."""
    with np.errstate(all="ignore"):  # in cells that it does not hold for
        table = evaluate(recording, list(np.ix_(*(it.astype(np.float64) for it in block))))
        held = open_.copy()
        for (compare, left, right), said in recording.guards.items():
            same = np.asarray(compare(table[left], table[right])) == said
            if not same.all():
                held &= same
    whole = held.all()
    for end, value in enumerate(outcome):
        number = table[value.place] if isinstance(value, Recorded) else value
        if whole:
            into[end] = number
        else:
            np.copyto(into[end], number, where=held)
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


class Recorded:
    """A number that records its arithmetic and comparisons; other operations raise ``TypeError``."""

    __slots__ = ("place", "recording", "value")

    def __init__(self, recording: Recording, place: int, value: float) -> None:
        self.recording, self.place, self.value = recording, place, value

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return self._decided(operator.ne, 0)

    def __ceil__(self) -> Recorded:
        return self._computed(_ceil, self, 0)

    def __neg__(self) -> Recorded:
        return self._computed(operator.sub, 0, self)

    def _computed(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Recorded:
        place = self.recording.computed(function, left, right, 0).position
        return Recorded(self.recording, place, function(_value(left), _value(right)))

    def _decided(self, compare: Callable[[Any, Any], bool], other: Any) -> bool:
        outcome = bool(compare(self.value, _value(other)))
        self.recording.decided(compare, self, other, outcome)  # type: ignore[arg-type]  # by its place
        return outcome


def _ceil(number: Any, _: Any) -> Any:
    return np.ceil(number)


def _value(number: Any) -> Any:
    return number.value if isinstance(number, Recorded) else number


def _arithmetic(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    def forward(self: Recorded, other: Any) -> Any:
        return self._computed(function, self, other)

    def backward(self: Recorded, other: Any) -> Any:
        return self._computed(function, other, self)

    return forward, backward


def _comparison(compare: Callable[[Any, Any], bool]) -> Any:
    return lambda self, other: self._decided(compare, other)


_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod")
}
for _name, _function in _ARITHMETIC.items():
    _forward, _backward = _arithmetic(_function)
    setattr(Recorded, f"__{_name}__", _forward)
    setattr(Recorded, f"__r{_name}__", _backward)
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Recorded, f"__{_name}__", _comparison(getattr(operator, _name)))


class _RealRecording(Recording):
    """A recording of floats."""

    def input(self, value: float) -> Recorded:
        self.inputs += 1
        return Recorded(self, self.inputs - 1, value)

    def position(self, number: Any) -> int:
        return number.place if isinstance(number, Recorded) else super().position(number)
