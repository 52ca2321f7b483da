"""The memory needed by many setups of one model, equal to ``need`` of each to the byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from estimator.answer.needs import PerStructure, need, per_structure
from estimator.answer.refusals import check_sizes
from estimator.grid.arrays import LARGEST, Numbers, Some, bound, evaluate, holds
from estimator.grid.cells import (
    ACCUMULATION,
    BATCH,
    GPUS,
    KEYS,
    LENGTH,
    RANK,
    Cells,
    distinct,
    of,
    sized,
)
from estimator.grid.rows import highest_rows, peaks, rows, sizes_of
from estimator.passes.batch import scored_tokens
from estimator.passes.prepared import as_trained
from estimator.resident.overhead import context_bytes, exchange_bytes, need_bytes, workspace_bytes
from estimator.run.prequantized import as_loaded
from estimator.run.record import RunOnGpu
from estimator.step.evaluation import evaluation_plan
from estimator.step.timeline import Plan, Schedule, Sizes, at_begin, at_step, risen, structure
from estimator.values.facets.batch import Batch
from estimator.values.range import Range
from estimator.values.refusals import InputError
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Verdict

AT_ONCE = 8192
"""Cells evaluated at once (our choice, so that a chunk stays in the processor's cache)."""
SINGLE = 256
"""Cells whose sizes are read from a record one by one (our choice; for fewer, arrays take longer)."""
FEW = 4096
"""Cells for which all moments are evaluated (our choice; which of them dominate takes as long to find)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What each setup needs, in the shape of the arguments."""

    low_bytes: Numbers
    high_bytes: Numbers
    refused: Some
    """Which setups ``need`` refuses; their bytes are 0."""

    def verdicts(self, gpu: Gpu) -> Mapping[Verdict, Some]:
        """Which setups fit, are tight or do not fit, as by ``verdict``."""
        fits = self.high_bytes <= gpu.memory_bytes
        begins = self.low_bytes <= gpu.memory_bytes
        return {
            Verdict.FITS: fits & ~self.refused,
            Verdict.TIGHT: begins & ~fits & ~self.refused,
            Verdict.DOES_NOT_FIT: ~begins & ~fits & ~self.refused,
        }


def needs(model: Model, gpu: Gpu | None, setup: TrainingSetup, **asked: ArrayLike) -> Needs:
    """Bytes needed per GPU, low and high, by each of many setups, equal to ``need`` of each to the byte.

    ``asked``: keys of ``KEYS`` with arrays that are broadcast against each other; the others are the setup's. A device
    map is read setup by setup, and so are grpo and rloo, whose rows must be whole groups, and metrics of logits.

    Source: derived, from the moments of ``StepTimeline`` and ``evaluation_walk``.
    """
    return needs_on_each(model, (gpu,), setup, asked)[0]


def needs_on_each(
    model: Model,
    gpus: Sequence[Gpu | None],
    setup: TrainingSetup,
    asked: Mapping[str, ArrayLike],
    *,
    plays: bool = True,
) -> list[Needs]:
    """``needs`` on each of several cards, whose steps are the same.

    Without ``plays``, lower bounds of both ends, of loading, the optimizer's step and saving; which setups are refused,
    they say exactly.

    Source: derived, as ``needs``.
    """
    cells, shape = of(setup, asked)
    accumulation = cells[ACCUMULATION]
    if not setup.task.objective.generates:
        # it matters only whether there is accumulation, so many cells share one result
        accumulation = np.minimum(accumulation, 2)
    columns, number = distinct([*(cells[key] for key in KEYS[:-1]), accumulation])
    model, setup = as_trained(model, setup)
    reader = _Reader(model, gpus, setup, dict(zip(KEYS, columns, strict=True)), plays=plays)
    back = number.reshape(shape)
    return [
        Needs(low_bytes=low[back], high_bytes=high[back], refused=refused[back])
        for low, high, refused in reader.read()
    ]


class _Group:
    """Setups that differ only in batch and length."""

    def __init__(self, fixed: Sequence[PerStructure], setup: TrainingSetup, cells: Numbers) -> None:
        self.fixed, self.setup, self.cells = fixed, setup, cells
        """``fixed``: one for each size of the workspace."""

    @property
    def plan(self) -> Plan:
        """The plan, which no card changes."""
        return self.fixed[0].plan


class _Reader:
    def __init__(
        self,
        model: Model,
        gpus: Sequence[Gpu | None],
        setup: TrainingSetup,
        cells: Cells,
        *,
        plays: bool,
    ) -> None:
        self._model, self._gpus, self._setup, self._cells = model, gpus, setup, cells
        self._plays = plays
        self._workspaces = tuple(dict.fromkeys(map(workspace_bytes, gpus)))
        """Of a card only this and the context matter."""
        # rank, GPUs and accumulation, in which groups differ, do not matter to these
        self._scored: dict[int, int] = {}
        """Scored tokens by length."""
        self._is_allowed: dict[tuple[int, int], bool] = {}
        """Whether a batch at a length is not refused."""
        self._count = len(cells[BATCH])
        self._peaks = np.zeros((len(self._workspaces), self._count), np.int64)
        self._paged = np.zeros(self._count, np.int64)
        self._exchange = Range(*np.zeros((2, self._count), np.int64))
        self._apart: list[int] = []
        """Cells that are read one by one, on each card."""
        self._refused = np.zeros(self._count, np.bool_)

    def read(self) -> Iterator[tuple[Numbers, Numbers, Some]]:
        by_plan: dict[object, list[_Group]] = {}
        for group in self._groups():
            setup = group.setup
            evaluates = setup.run.eval_strategy != "no"
            if (
                setup.mesh.strategy.places_layers
                or setup.task.objective.generates
                or (evaluates and setup.run.compute_metrics)
            ):
                self._apart += group.cells.tolist()
            elif len(self._refuse_rows(group)):
                key = group.plan, evaluates and evaluation_plan(self._model, structure(setup))
                by_plan.setdefault(key, []).append(group)
        for groups in by_plan.values():
            self._read(groups)
        need_of: Callable[..., Range[Any]] = need_bytes  # one formula, for a number and for arrays
        for gpu in self._gpus:
            peak = self._peaks[self._workspaces.index(workspace_bytes(gpu))]
            low, high = need_of(peak, self._paged, context_bytes(gpu), self._exchange)
            refused = self._refused.copy()
            self._one_by_one(gpu, low, high, refused)
            low[refused] = high[refused] = 0
            yield low, high, refused

    def _groups(self) -> Iterator[_Group]:
        """The setups that are not refused, grouped by structure."""
        cells = self._cells
        columns, number = distinct([cells[RANK], cells[GPUS], cells[ACCUMULATION]])
        found = zip(*(column.tolist() for column in columns), strict=True)
        ends = np.cumsum(np.bincount(number))
        order = np.argsort(number, kind="stable")
        for (rank, gpus, accumulation), members in zip(
            found, np.split(order, ends[:-1]), strict=True
        ):
            try:
                numbers = sized(self._setup, rank=rank, gpus=gpus, accumulation=accumulation)
                setup = as_loaded(self._model, numbers)
                fixed = [
                    per_structure(self._model, structure(setup), workspace)
                    for workspace in self._workspaces
                ]
            except ValueError:
                self._refused[members] = True
                continue
            yield _Group(fixed, setup, members)

    def _refuse_rows(self, group: _Group) -> Numbers:
        """Take the refused batches and lengths out of a group; of batches only one row or several matters."""
        batches, lengths = self._cells[BATCH][group.cells], self._cells[LENGTH][group.cells]
        columns, number = distinct([np.minimum(batches, 2), lengths])
        pairs = list(zip(*(column.tolist() for column in columns), strict=True))
        for pair in pairs:
            if pair not in self._is_allowed:
                self._is_allowed[pair] = self._allows(group.setup, *pair)
        allowed = np.array([self._is_allowed[pair] for pair in pairs], np.bool_)[number]
        self._refused[group.cells[~allowed]] = True
        group.cells = group.cells[allowed]
        return group.cells

    def _allows(self, setup: TrainingSetup, batch: int, length: int) -> bool:
        try:
            check_sizes(self._model, _sized(setup, batch, length))
        except ValueError:
            return False
        return True

    def _one_by_one(self, gpu: Gpu | None, low: Numbers, high: Numbers, refused: Some) -> None:
        for cell in self._apart:
            own: dict[str, Any] = {key: int(self._cells[key][cell]) for key in KEYS}
            try:
                low[cell], high[cell] = need(self._model, gpu, replace(self._setup, **own))
            except ValueError:
                refused[cell] = True

    def _read(self, groups: Sequence[_Group]) -> None:
        """The peaks of groups with the same programs, and what is beside them."""
        cells = np.concatenate([group.cells for group in groups])
        number = np.repeat(np.arange(len(groups)), [len(group.cells) for group in groups])
        highest, left_over = self._walked(groups[0].plan, groups, cells, None)
        evaluated = None
        first = groups[0].setup
        if first.run.eval_strategy != "no":
            plan = evaluation_plan(self._model, structure(first))
            evaluated, _ = self._walked(plan, groups, cells, first.run.per_device_eval_batch_size)
        for at, workspace in enumerate(self._workspaces):
            fixed = [
                _fixed(self._model, group.setup, group.fixed[at], workspace) for group in groups
            ]
            begins, rests, step, beside = np.array(fixed).T[:, number]
            peak = np.maximum(begins + highest, step + left_over)
            np.maximum(peak, beside, out=peak)
            if evaluated is not None:
                np.maximum(peak, rests + evaluated, out=peak)
            self._peaks[at, cells] = peak
        paged = [group.fixed[0].resident.states.paged_bytes for group in groups]
        self._paged[cells] = np.array(paged)[number]
        exchange = zip(*(exchange_bytes(group.setup.mesh) for group in groups), strict=True)
        for end, of_groups in zip(self._exchange, exchange, strict=True):
            end[cells] = np.array(of_groups)[number]

    def _walked(
        self, plan: Plan, groups: Sequence[_Group], cells: Numbers, batch: int | None
    ) -> tuple[Numbers, Numbers]:
        """Bytes of the highest moment above the resident ones, and bytes left over after backward, per cell."""
        highest, left_over = np.zeros(len(cells), np.int64), np.zeros(len(cells), np.int64)
        if not self._plays:
            return highest, left_over
        ends = np.cumsum([len(group.cells) for group in groups])
        spans = list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
        inputs = np.concatenate([self._inputs(group, batch) for group in groups], axis=1)
        # ZeRO-3's gathers depend on rank and number of GPUs; otherwise all groups are evaluated together
        joint = spans if self._setup.mesh.strategy.gathers_modules else [(0, len(cells))]
        for first, last in joint:
            for start in range(first, last, AT_ONCE):
                part = np.arange(start, min(start + AT_ONCE, last))
                self._read_part(plan, inputs, part, highest, left_over)
        return highest, left_over

    def _inputs(self, group: _Group, batch: int | None) -> Numbers:
        """[sizes, cells]: ``Sizes.of`` each setup of a group."""
        lengths = self._cells[LENGTH][group.cells]
        batches = self._cells[BATCH][group.cells] if batch is None else np.full_like(lengths, batch)
        (found,), number = distinct([lengths])
        first = Sizes.of(_sized(group.setup, 1, int(found[0])))
        scores = [self._scored_at(group.setup, length) for length in found.tolist()]
        at_once = batches
        if (mini := group.setup.task.mini_batch_size) is not None:
            at_once = np.minimum(batches, mini)
        rank, gpus = np.full_like(lengths, first.rank), np.full_like(lengths, first.gpus)
        return np.stack([batches, lengths, rank, gpus, np.array(scores)[number], at_once])

    def _scored_at(self, setup: TrainingSetup, length: int) -> int:
        if length not in self._scored:
            self._scored[length] = scored_tokens(_sized(setup, 1, length))
        return self._scored[length]

    def _read_part(
        self, plan: Plan, inputs: Numbers, part: Numbers, highest: Numbers, left_over: Numbers
    ) -> None:
        if self._count <= SINGLE:
            for cell in part.tolist():
                sizes = Sizes(*inputs[:, cell].tolist())
                step = plan.step(sizes)
                highest[cell], left_over[cell] = risen(step, sizes.gpus), step[0].left_over
            return
        known = iter(tuple(plan.schedules))
        while len(part):
            schedule = next(known, None)
            if schedule is None:
                _, schedule = plan.step(Sizes(*inputs[:, part[0]].tolist()))
            held = self._read_with(schedule, inputs[:, part], part, highest, left_over)
            part = part[~held]

    def _read_with(
        self,
        schedule: Schedule,
        inputs: Numbers,
        part: Numbers,
        highest: Numbers,
        left_over: Numbers,
    ) -> Some:
        """Evaluates the cells for which a schedule is valid, and returns which those are."""
        recording = schedule.program.recording
        if bound(recording, inputs.max(axis=1).tolist()) > LARGEST:
            raise InputError("These sizes are too large for arrays; ask for fewer tokens.")
        table = evaluate(recording, list(inputs))
        held = holds(recording, table, len(part))
        if not held.any():
            return held
        if not held.all():
            table = evaluate(recording, list(inputs[:, held]))
        sized = schedule.program.at(inputs[:, held][:, 0].tolist())
        assert sized is not None
        gathered = schedule.gathered(sized, int(inputs[3, held][0]))
        moments = highest_rows if self._count > FEW else rows
        highest[part[held]] = peaks(
            moments(schedule, gathered), sizes_of(schedule, table), int(held.sum())
        )
        left_over[part[held]] = table[schedule.program.left_over]
        return held


def _fixed(
    model: Model, setup: TrainingSetup, of: PerStructure, workspace: int
) -> tuple[int, int, int, int]:
    """Bytes as a micro-step begins, between steps, in an optimizer's step, and at most in what lasts beside them."""
    begins = at_begin(setup, of.resident, workspace)
    rests, step = of.resident.sizes(workspace), at_step(begins, of.resident)
    lasting = RunOnGpu(model, setup, of, workspace).lasting
    beside = max(moment.bytes for moment in lasting)
    return sum(begins.values()), sum(rests.values()), sum(step.values()), beside


def _sized(setup: TrainingSetup, batch: int, length: int) -> TrainingSetup:
    return replace(setup, batch=_rows(setup.batch, batch, length))


@lru_cache(maxsize=8192)
def _rows(like: Batch, batch: int, length: int) -> Batch:
    """The same rows in another number and of another length."""
    return replace(like, per_device_train_batch_size=batch, max_length=length)
