"""A team's question: its text, its table of jobs, and its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import streamlit as st

from dashboard.plan import asked
from dashboard.plan.held import Held, short
from dashboard.state import models
from dashboard.words import terms
from estimator import (
    Candidates,
    JobOption,
    Question,
    TeamQuestion,
    Timetable,
    advise,
    candidates,
    contract,
    lanes,
    object_of_text,
    options_of,
    plan_words,
    question_object,
    question_of_setup,
    schedule,
    team_jobs,
    team_object,
    team_of,
)

FIRST: Mapping[str, object] = {
    "cards": [
        {"gpu": "A100-SXM4-80GB", "most": 4, "owned": True},
        {"gpu": "L40S", "most": 2, "owned": True},
    ],
    "methods": ["lora"],
    "try": {"offload_optimizer": ["none"], "offload_param": ["none"]},
    "jobs": [
        {
            "name": "support bot",
            "model": "Qwen/Qwen3-8B",
            "examples": 200000,
            "lengths": {"mean": 600, "max": 2048},
            "deadline_hours": 24,
        },
        {
            "name": "summaries",
            "model": "Qwen/Qwen3-8B",
            "examples": 60000,
            "lengths": {"mean": 2500, "max": 8192},
            "deadline_hours": 36,
        },
        {
            "name": "classifier",
            "model": "Qwen/Qwen3-0.6B",
            "examples": 400000,
            "lengths": {"mean": 200, "max": 512},
        },
    ],
}
"""The initial team: three jobs on cards that many own."""
AS_GIVEN = "as given"
"""In the table, the model of a job that has several, or one of its own."""
NOT_IN_THE_TABLE = ("context", "rows", "lora_r", "tool", "keys", "try", "micro_batches")
"""Keys of a job without a column in the table. A row takes them from the job with its name."""
Row = Mapping[str, Any]
"""A row of the table of jobs."""


def read(text: str) -> TeamQuestion:
    """A team's question from its JSON text; ``ValueError`` with one sentence if the text is invalid."""
    return team_of(object_of_text(short(text), "the link"))


def text_of(team: TeamQuestion) -> str:
    """A team's question as compact JSON.

    >>> read(text_of(team_of(FIRST))) == team_of(FIRST)
    True
    """
    return json.dumps(team_object(team), separators=(",", ":"))


TEAM = Held("team", read, text_of, lambda: team_of(FIRST))
"""The question of several jobs."""


# --- the table of jobs --------------------------------------------------------------------------


def job_rows(team: TeamQuestion) -> list[dict[str, object]]:
    """The jobs of a team as rows of a table."""
    return [
        {
            "Job": name,
            "Model": _model(own),
            "Methods": [method.value for method in own.methods],
            "Examples": own.num_train_examples,
            "Epochs": own.num_train_epochs,
            "Mean tokens": max(1, round(own.lengths.mean)),
            "Longest": own.lengths.longest,
            "Batch": own.effective_batch,
            "Ready": team.ready_hours[name],
            "Deadline": own.deadline_hours,
        }
        for name, own in team.jobs.items()
    ]


def _model(own: Question) -> str:
    return own.models[0] if len(own.models) == 1 and isinstance(own.models[0], str) else AS_GIVEN


def jobs_of(rows: Sequence[Row], team: TeamQuestion) -> list[dict[str, object]]:
    """The jobs of the table as ``team_of`` reads them. Empty rows are skipped; a job without a name takes its model's.

    ``team``: from which the table was made.
    """
    found: list[dict[str, object]] = []
    for row in rows:
        if not row["Job"] and not row["Model"]:
            continue
        name = row["Job"] or _free(terms.short_name(row["Model"]), [one["name"] for one in found])
        before = team.jobs.get(name)
        was = {} if before is None else question_object(before)
        kept = {key: was[key] for key in NOT_IN_THE_TABLE if key in was}
        job = {
            **kept,
            "name": name,
            "model": row["Model"],
            "methods": list(row["Methods"] or ()) or None,
            "examples": _whole(row["Examples"]),
            "epochs": row["Epochs"],
            "lengths": _lengths(row, before),
            "effective_batch": _whole(row["Batch"]),
            "ready_hours": row["Ready"],
            "deadline_hours": row["Deadline"],
        }
        if row["Model"] == AS_GIVEN and before is not None:
            job["model"] = list(before.models)
        found.append({key: value for key, value in job.items() if value is not None})
    return found


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _lengths(row: Row, before: Question | None) -> dict[str, object] | None:
    mean, longest = _whole(row["Mean tokens"]), _whole(row["Longest"])
    if before is not None and (mean, longest) == (
        max(1, round(before.lengths.mean)),
        before.lengths.longest,
    ):
        written = question_object(before).get("lengths")
        return written if isinstance(written, dict) else None
    if mean is None and longest is None:
        return None
    found = {"mean": mean, "max": longest or mean}
    return {key: value for key, value in found.items() if value is not None}


def _free(name: str, taken: Sequence[object]) -> str:
    number = 1
    while (free := name if number == 1 else f"{name} {number}") in taken:
        number += 1
    return free


def with_job(team: TeamQuestion, job: Mapping[str, object]) -> TeamQuestion:
    """The team with one more job, whose name gets a number if it is taken; ``ValueError`` if it is invalid."""
    given = team_object(team)
    jobs = [_whole_job(name, team) for name in team.jobs]
    new = {**job, "name": _free(str(job["name"]), list(team.jobs))}
    times: dict[str, object] = {
        key: given[key] for key in ("horizon_hours", "slots") if key in given
    }
    return team_of({"cards": given["cards"], "jobs": [*jobs, new], **times})


def _whole_job(name: str, team: TeamQuestion) -> dict[str, object]:
    own = {key: value for key, value in question_object(team.jobs[name]).items() if key != "cards"}
    return {**own, "name": name, "ready_hours": team.ready_hours[name]}


def job_of_run(question: Question) -> dict[str, object]:
    """The question of one run as a job; cards and budget are the team's."""
    left = ("cards", "budget_usd")
    own = {key: value for key, value in question_object(question).items() if key not in left}
    return {**own, "name": terms.short_name(str(question.models[0]))}


def job_of_scenario(scenario: contract.Scenario) -> dict[str, object]:
    """The setup of the page Estimate as a job; ``ValueError`` if it is invalid."""
    model, _, setup = contract.parse(scenario.setup, models.known())
    return {
        "name": terms.short_name(model.hub_id if isinstance(scenario.setup["model"], str) else ""),
        **question_of_setup(scenario.setup, setup),
    }


# --- the answer ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobWays:
    """The ways to run one job, with the title and the contract's keys of each, by its place."""

    options: tuple[JobOption, ...]
    titles: Mapping[int, str]
    keys: Mapping[int, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class TeamAnswer:
    """A team's schedule, and what runs each job."""

    team: TeamQuestion
    timetable: Timetable
    titles: Mapping[str, str]
    """The setup of each job that runs, in a line."""
    keys: Mapping[str, Mapping[str, object]]
    """The contract's keys of that setup."""
    gpus: Mapping[str, tuple[int, ...]]
    """The GPUs of its pool that a job holds, from 0."""


@lru_cache(maxsize=64)
def _ways(text: str, known: tuple[str, ...]) -> JobWays:
    del known  # only a cache key: the Hub may have returned a model since
    found: Candidates = candidates(asked.read(text), models.known())
    options = options_of(advise(found))
    return JobWays(
        options,
        {option.place: plan_words.title(found, option.place) for option in options},
        {option.place: found.keys(option.place) for option in options},
    )


@lru_cache(maxsize=16)
def _scheduled(text: str, known: tuple[str, ...]) -> TeamAnswer:
    team = read(text)
    ways: dict[str, JobWays] = {}
    problems: dict[str, str] = {}
    bar = st.progress(0.0, "Computing every setup of each job.")
    for number, (name, own) in enumerate(team.jobs.items()):
        unlimited = replace(own, deadline_hours=None, budget_usd=None)
        try:
            ways[name] = _ways(asked.text_of(unlimited), known)
        except ValueError as refusal:
            ways[name], problems[name] = JobWays((), {}, {}), str(refusal)
        bar.progress((number + 1) / (len(team.jobs) + 1), "Computing every setup of each job.")
    jobs = team_jobs(team, {name: value.options for name, value in ways.items()})
    found = schedule(jobs, team.pools, team.horizon_hours, team.slots)
    bar.empty()
    found = replace(found, left_out={**found.left_out, **problems})
    at = {assignment.job.name: assignment.option.place for assignment in found.assignments}
    return TeamAnswer(
        team,
        found,
        {name: ways[name].titles[place] for name, place in at.items()},
        {name: ways[name].keys[place] for name, place in at.items()},
        lanes(found, team.pools, team.slot_hours),
    )


def answered(team: TeamQuestion) -> TeamAnswer | str:
    """The schedule of a team's jobs, or its refusal. Each job's setups are cached by its own question."""
    try:
        return _scheduled(text_of(team), tuple(sorted(models.known())))
    except ValueError as refusal:
        return str(refusal)
