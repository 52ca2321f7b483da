"""A team's question as an object: several jobs on cards that they share; read, and written back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from estimator.plan.question import SLOTS, TRIED, WEEK, Question
from estimator.plan.reading import (
    OWN,
    as_list,
    as_number,
    as_whole,
    question_object,
    question_of,
)
from estimator.values.refusals import InputError, show
from estimator.values.setup import TrainingSetup

MOST_SLOTS = 1000
"""Of a schedule: ours, more are not solved in a minute."""
MOST_WEEKS = 100
TEAM_KEYS = ("jobs", "horizon_hours", "slots")


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamQuestion:
    """Several jobs on cards that they share."""

    jobs: Mapping[str, Question]
    """By name; their deadlines count from the beginning of the schedule."""
    ready_hours: Mapping[str, float]
    pools: Mapping[str, int]
    """GPUs of each card."""
    horizon_hours: float
    slots: int

    @property
    def slot_hours(self) -> float:
        """Of one slot; jobs start at the beginning of one."""
        return self.horizon_hours / self.slots


def team_of(given: Mapping[str, object]) -> TeamQuestion:
    """The jobs of an object: ``jobs`` (each a question with a ``name``), ``cards``, and defaults for all jobs.

    >>> team = team_of({"jobs": [{"name": "a", "model": "Qwen/Qwen3-8B"}], "cards": ["2x L4"], "epochs": 2})
    >>> team.jobs["a"].num_train_epochs, dict(team.pools)
    (2.0, {'L4': 2})
    """
    shared = {key: value for key, value in given.items() if key not in TEAM_KEYS}
    questions: dict[str, Question] = {}
    ready: dict[str, float] = {}
    for job in as_list(given.get("jobs"), "jobs"):
        if not isinstance(job, Mapping) or not isinstance(job.get("name"), str) or not job["name"]:
            raise InputError("each of jobs needs a name and a model.")
        name = str(job["name"])
        if name in questions:
            raise InputError(f"two jobs are named {show(name)}; give each its own name.")
        if "cards" in job:
            raise InputError(f"{name}: cards are the team's; leave them out of a job.")
        own = {key: value for key, value in job.items() if key not in ("name", "ready_hours")}
        try:
            questions[name] = question_of({**shared, **own})
        except InputError as problem:
            raise InputError(f"{name}: {problem}") from None
        ready[name] = as_number(job.get("ready_hours", 0), "ready_hours")
    offers = next(iter(questions.values())).offers
    pools = {offer.gpu.name: offer.most for offer in offers}
    if len(pools) < len(offers):
        raise InputError("cards names a card twice; give each once, with how many there are.")
    horizon = as_number(given.get("horizon_hours", WEEK), "horizon_hours")
    slots = as_whole(given.get("slots", SLOTS), "slots")
    if not 0 < horizon <= MOST_WEEKS * WEEK:
        raise InputError(
            f"horizon_hours must be above 0 and at most {MOST_WEEKS * WEEK:g}, not {show(horizon)}."
        )
    if slots > MOST_SLOTS:
        raise InputError(f"slots is at most {MOST_SLOTS:,}, not {show(slots)}.")
    return TeamQuestion(
        jobs=questions, ready_hours=ready, pools=pools, horizon_hours=horizon, slots=slots
    )


def team_object(team: TeamQuestion) -> dict[str, object]:
    """The team's question as an object of JSON types, which ``team_of`` reads back; what all jobs share is said once.

    >>> asked = {"cards": ["2x L4"], "jobs": [{"name": "a", "model": "Qwen/Qwen3-8B"}], "epochs": 2}
    >>> team_object(team_of(asked))["jobs"]
    [{'name': 'a'}]
    """
    objects = {name: question_object(own) for name, own in team.jobs.items()}
    first = next(iter(objects.values()))
    shared = {
        key: value
        for key, value in first.items()
        if all(key in own and own[key] == value for own in objects.values())
    }
    jobs = [
        {
            "name": name,
            **{key: value for key, value in own.items() if key not in shared},
            **({"ready_hours": team.ready_hours[name]} if team.ready_hours[name] else {}),
        }
        for name, own in objects.items()
    ]
    times = {"horizon_hours": (team.horizon_hours, WEEK), "slots": (team.slots, SLOTS)}
    own_times = {key: value for key, (value, usual) in times.items() if value != usual}
    return {**shared, "jobs": jobs, **own_times}


def question_of_setup(keys: Mapping[str, object], setup: TrainingSetup) -> dict[str, object]:
    """What a setup trains, as keys of a question; the answer chooses the cards, and what changes no result.

    ``keys``: of the contract, from which ``setup`` was read.

    >>> question_of_setup({"model": "m", "optim": "sgd"}, TrainingSetup(max_length=2048))["lengths"]
    {'mean': 2048, 'max': 2048}
    """
    longest = setup.batch.max_length
    said: dict[str, object] = {
        "model": keys["model"],
        "examples": setup.run.num_train_examples,
        "epochs": setup.run.num_train_epochs,
        "lengths": {"mean": setup.run.mean_tokens_per_example or longest, "max": longest},
        "effective_batch": setup.effective_batch_size,
        "methods": [setup.adapters.method.value],
        "rows": "packed"
        if setup.batch.packing
        else ("padding_free" if setup.batch.padding_free else "padded"),
        "tool": DEFAULT_TOOL,
    }
    said |= {"lora_r": setup.adapters.lora_r} if setup.adapters.uses_adapters else {}
    rest = {key: value for key, value in keys.items() if key not in OWN and key not in CHOSEN}
    return {**said, "keys": rest} if rest else said


DEFAULT_TOOL = "trainer"
"""Whose defaults the missing keys of a written setup take."""
CHOSEN = frozenset({*TRIED, "activation_checkpointing", "use_reentrant", "loss", "v"})
"""Keys that the answer chooses."""
