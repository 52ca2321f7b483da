"""Several jobs on a fixed set of GPUs: which job where, and when.

A mixed-integer program over slots of time, solved by HiGHS (``highspy``, imported on demand). First as many jobs as can
run do, then the fewest hours beyond deadlines, then the fewest dollars, then early ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

import numpy as np

from estimator.grid.arrays import Reals
from estimator.plan.files import stdout_for_answers
from estimator.plan.question import SLOTS, WEEK
from estimator.plan.team_reading import TeamQuestion
from estimator.values.refusals import InputError

MOST_STARTS = 200_000
"""Possible starts of all jobs at most: ours, what is solved in about a minute."""
SECONDS = 30.0
"""Of the solver for each of its goals: ours."""
GAP_OF_ENDS = 0.01
"""By which the sum of ends may exceed the least: ours; it only tidies what the first three goals decide."""
SLACK = 1e-6
"""By which an earlier goal may be missed when a later one is solved: above the solver's tolerance, below a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOption:
    """One way to run a job: how many GPUs of which pool, for how long."""

    pool: str
    num_gpus: int
    hours: float
    """Of the slow end, so that a deadline is met with it."""
    dollars: float = 0.0
    place: int = -1
    """In the candidates of the job's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run that a team wants, and when."""

    name: str
    options: tuple[JobOption, ...]
    ready_hours: float = 0.0
    """It cannot start earlier."""
    deadline_hours: float | None = None
    """It should have ended by then, from the beginning of the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """When and where a job runs."""

    job: Job
    option: JobOption
    start_hours: float

    @property
    def end_hours(self) -> float:
        """From the beginning of the schedule."""
        return self.start_hours + self.option.hours

    @property
    def late_hours(self) -> float:
        """Beyond its deadline; 0 if it meets it."""
        return _late(self.job, self.end_hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """Which job runs where and when."""

    assignments: tuple[Assignment, ...]
    """In the order of their starts."""
    left_out: Mapping[str, str]
    """Jobs that do not run, and why."""
    is_best: bool
    """Whether nothing better exists in these slots; if not, the solver ran out of time."""

    @property
    def dollars(self) -> float:
        """Of all jobs."""
        return sum(run.option.dollars for run in self.assignments)

    @property
    def late_hours(self) -> float:
        """Of all jobs."""
        return sum(run.late_hours for run in self.assignments)


def team_jobs(team: TeamQuestion, options: Mapping[str, tuple[JobOption, ...]]) -> list[Job]:
    """The jobs of a team, each with the ways to run it by its name."""
    return [
        Job(
            name=name,
            options=options[name],
            ready_hours=team.ready_hours[name],
            deadline_hours=own.deadline_hours,
        )
        for name, own in team.jobs.items()
    ]


def schedule(
    jobs: Sequence[Job],
    pools: Mapping[str, int],
    horizon_hours: float = WEEK,
    slots: int = SLOTS,
) -> Timetable:
    """Which job runs where and when, so that no pool lends more GPUs than it has.

    Starts lie at the beginning of a slot, and a job holds its GPUs until the end of the slot that it ends in; a run is
    never interrupted, and ends within the horizon.

    Error: none of the program; a schedule with starts between the slots may be better by up to a slot per job.
    Source: time-indexed formulation, J. P. Sousa, L. A. Wolsey, A time indexed formulation of non-preemptive single
    machine scheduling problems, Mathematical Programming 54 (1992).
    """
    if len({job.name for job in jobs}) < len(jobs):
        raise InputError("two jobs have the same name; give each its own.")
    if not 0 < horizon_hours <= 100 * WEEK:
        raise InputError(f"horizon_hours must be above 0 and at most {100 * WEEK:g}.")
    slot = horizon_hours / slots
    starts = [
        _Start(number, job, option, begin, slot)
        for number, job in enumerate(jobs)
        for option in job.options
        if option.num_gpus <= pools.get(option.pool, 0)
        for begin in range(slots)
        if begin * slot >= job.ready_hours and begin * slot + option.hours <= horizon_hours
    ]
    if len(starts) > MOST_STARTS:
        raise InputError(
            f"The jobs have {len(starts):,} possible starts, more than {MOST_STARTS:,}; take fewer jobs, or slots."
        )
    chosen, is_best = _solved(starts, len(jobs), pools, slots) if starts else ([], True)
    assignments = [
        Assignment(job=start.job, option=start.option, start_hours=start.begin * slot)
        for start in chosen
    ]
    placed = {run.job.name for run in assignments}
    possible = {start.job.name for start in starts}
    return Timetable(
        assignments=tuple(sorted(assignments, key=attrgetter("start_hours", "job.name"))),
        left_out={
            job.name: _why(job, pools, horizon_hours, job.name in possible)
            for job in jobs
            if job.name not in placed
        },
        is_best=is_best,
    )


def _why(job: Job, pools: Mapping[str, int], horizon_hours: float, possible: bool) -> str:
    if not job.options:
        return "no setup of it fits any of the cards."
    if possible:
        return "the GPUs are taken by other jobs until the end."
    having = [option for option in job.options if option.num_gpus <= pools.get(option.pool, 0)]
    if not having:
        least = min(option.num_gpus for option in job.options)
        return f"it needs at least {least} GPUs of one kind, more than there are."
    fastest = min(option.hours for option in having)
    over = job.ready_hours + fastest - horizon_hours
    if over <= 0:
        return "it becomes ready too late for a slot."
    return f"it ends {over:.1f} hours after the horizon even if it starts first."


def _late(job: Job, end: float) -> float:
    return 0.0 if job.deadline_hours is None else max(0.0, end - job.deadline_hours)


class _Start:
    """A job that starts in a slot, in one of its ways."""

    def __init__(self, number: int, job: Job, option: JobOption, begin: int, slot: float) -> None:
        self.number, self.job, self.option, self.begin = number, job, option, begin
        self.end = begin * slot + option.hours
        self.slots = range(begin, begin + max(1, math.ceil(option.hours / slot - SLACK)))


def _solved(
    starts: Sequence[_Start], jobs: int, pools: Mapping[str, int], slots: int
) -> tuple[list[_Start], bool]:
    """The chosen starts, goal after goal: each later one among what is best by the earlier ones."""
    goals = [
        -np.ones(len(starts)),
        np.array([_late(start.job, start.end) for start in starts]),
        np.array([start.option.dollars for start in starts]),
        np.array([start.end for start in starts]),
    ]
    names = list(pools)
    entries: list[list[tuple[int, float]]] = []
    for start in starts:
        pool = jobs + names.index(start.option.pool) * slots
        taken = [(pool + at, float(start.option.num_gpus)) for at in start.slots if at < slots]
        entries.append([(start.number, 1.0), *taken])
    upper = [1.0] * jobs + [float(pools[name]) for name in names for _ in range(slots)]
    is_best = True
    chosen: list[int] = []
    for number, goal in enumerate(goals):
        if number and not goal.any():
            continue
        is_last = number == len(goals) - 1
        values, best = _minimum(goal, entries, upper, GAP_OF_ENDS if is_last else 0.0)
        if is_last:
            return [
                starts[column] for column in (chosen if values is None else _ones(values))
            ], is_best
        if values is None:
            is_best = False
            break
        is_best &= best
        chosen = _ones(values)
        reached = float(goal[chosen].sum())
        for column, weight in enumerate(goal.tolist()):
            if weight:
                entries[column].append((len(upper), weight))
        upper.append(reached + SLACK * max(1.0, abs(reached)))
    return [starts[column] for column in chosen], is_best


def _ones(values: Reals) -> list[int]:
    """Places of the columns that are chosen."""
    found: list[int] = np.flatnonzero(values > 0.5).tolist()
    return found


def _minimum(
    goal: Reals,
    entries: Sequence[Sequence[tuple[int, float]]],
    upper: Sequence[float],
    gap: float,
) -> tuple[Reals | None, bool]:
    """The choice of columns with the smallest sum, each 0 or 1, whose rows stay within their limits."""
    highs = _highs()
    program = highs.HighsLp()
    count = len(goal)
    program.num_col_, program.num_row_ = count, len(upper)
    program.col_cost_ = goal
    program.col_lower_, program.col_upper_ = np.zeros(count), np.ones(count)
    program.row_lower_ = np.full(len(upper), -highs.kHighsInf)
    program.row_upper_ = np.array(upper)
    program.integrality_ = [highs.HighsVarType.kInteger] * count
    program.a_matrix_.format_ = highs.MatrixFormat.kColwise
    program.a_matrix_.start_ = np.cumsum([0, *map(len, entries)])
    program.a_matrix_.index_ = np.array([row for column in entries for row, _ in column])
    program.a_matrix_.value_ = np.array([value for column in entries for _, value in column])
    with stdout_for_answers():
        solver = highs.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", SECONDS)
    solver.setOptionValue("mip_rel_gap", gap)
    solver.passModel(program)
    solver.run()
    if solver.getInfo().primal_solution_status != highs.kSolutionStatusFeasible:
        return None, False
    is_best = solver.getModelStatus() == highs.HighsModelStatus.kOptimal
    return np.array(solver.getSolution().col_value), is_best


def _highs() -> Any:
    try:
        return import_module("highspy")
    except ImportError:
        raise InputError(
            "A schedule of several jobs is solved by HiGHS: pip install highspy."
        ) from None
