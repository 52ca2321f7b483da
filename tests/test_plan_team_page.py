"""The Plan page's view of several jobs: its table, its timeline, its files, and what it says of a bad one."""

from __future__ import annotations

import csv
import io
from unittest.mock import patch

import plotly.graph_objects as go
import pytest

from dashboard.plan import asked, team_asked, team_view, team_words, timeline_figure
from estimator import (
    Job,
    JobOption,
    contract,
    lanes,
    question_of,
    schedule,
    team_object,
    team_of,
    timetable_csv,
    timetable_summary,
)
from tests.test_plan_page import TEAM

pytest.importorskip("highspy")


def held(*spans: tuple[int, float, float]) -> dict[str, tuple[int, ...]]:
    """The lanes of jobs that hold so many of 4 GPUs from one hour to another, one way each."""
    jobs = [
        Job(
            name=str(number),
            options=(JobOption(pool="L4", num_gpus=count, hours=end - begin),),
            ready_hours=begin,
            deadline_hours=end,
        )
        for number, (count, begin, end) in enumerate(spans)
    ]
    found = schedule(jobs, {"L4": 4}, 8.0, 8)
    assert not found.left_out
    assert not found.late_hours
    return lanes(found, {"L4": 4}, 1.0)


def test_a_job_takes_neighbouring_gpus_and_no_gpu_has_two_jobs_at_once():
    """By hand: 1 GPU until 4 h and 2 until 2 h; then 2 neighbours are free, and 1 beside the first job."""
    own = held((1, 0, 4), (2, 0, 2), (2, 2, 4), (1, 0, 4))
    assert sorted(own["2"]) == list(own["2"])
    assert own["2"][1] - own["2"][0] == 1
    at_three = [*own["0"], *own["2"], *own["3"]]
    assert len(set(at_three)) == len(at_three) == 4


def test_scattered_gpus_are_drawn_as_one_bar_for_each_run_of_neighbours():
    jobs = [Job(name="a", options=(JobOption(pool="L4", num_gpus=3, hours=1.0),))]
    found = schedule(jobs, {"A100": 2, "L4": 4}, 8.0, 8)
    drawn = timeline_figure.bars(found, {"A100": 2, "L4": 4}, {"a": (0, 2, 3)})
    assert [(one.first, one.lanes) for one in drawn] == [(2, 1), (4, 2)]


def test_a_team_is_read_back_from_its_own_text():
    team = team_of(TEAM)
    assert team_of(team_object(team)) == team
    assert team_object(team)["effective_batch"] == 8  # shared, so it is said once


def test_jobs_survive_the_table_with_the_keys_that_it_does_not_show():
    team = team_of({**TEAM, "lengths": {"p50": 100, "max": 900}, "keys": {"optim": "adamw_torch"}})
    jobs = team_asked.jobs_of(team_asked.job_rows(team), team)
    assert team_of({"cards": TEAM["cards"], "jobs": jobs}) == team


EMPTY = dict.fromkeys(
    ("Job", "Model", "Methods", "Examples", "Epochs", "Mean tokens", "Longest", "Batch", "Ready")
) | {"Deadline": None}


def test_a_row_without_a_name_takes_its_models_and_an_empty_row_is_no_job():
    rows = [{**EMPTY, "Model": "Qwen/Qwen3-8B"}, EMPTY, {**EMPTY, "Model": "Qwen/Qwen3-8B"}]
    jobs = team_asked.jobs_of(rows, team_of(TEAM))
    assert [job["name"] for job in jobs] == ["Qwen3-8B", "Qwen3-8B 2"]


def test_a_setup_of_the_estimate_becomes_a_job():
    """Of 2 × 8 × 2 GPUs: 32 examples a step. Checkpointing is the planner's choice, the optimizer is kept."""
    keys = {
        "model": "Qwen/Qwen3-8B",
        "gpu": "L4",
        "num_gpus": 2,
        "strategy": "ddp",
        "method": "lora",
        "lora_r": 8,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 8,
        "gradient_checkpointing": True,
        "optim": "adamw_torch",
    }
    with patch.object(team_asked.models, "known", dict):
        job = team_asked.job_of_scenario(contract.Scenario("any", keys))
        team = team_asked.with_job(team_of(TEAM), job)
    own = team.jobs["Qwen3-8B"]
    assert (own.effective_batch, own.ranks, own.keys) == (32, (8,), {"optim": "adamw_torch"})
    assert own.offers == team.jobs["late"].offers
    assert team.ready_hours["late"] == 4


def test_a_run_of_the_other_view_becomes_a_job_with_a_name_of_its_own():
    team = team_of(TEAM)
    for _ in range(2):
        team = team_asked.with_job(team, team_asked.job_of_run(question_of(asked.FIRST)))
    assert list(team.jobs)[3:] == ["Mistral-7B-v0.1", "Mistral-7B-v0.1 2"]


def test_an_error_of_a_job_names_the_job():
    with pytest.raises(ValueError, match=r"^support: model is missing"):
        team_of({"cards": ["L4"], "jobs": [{"name": "support"}]})


@pytest.fixture(scope="module")
def answer() -> team_asked.TeamAnswer:
    with patch.object(team_asked.models, "known", dict), patch.object(team_asked, "st"):
        found = team_asked.answered(team_of(TEAM))
    assert not isinstance(found, str)
    return found


def test_the_first_sentence_counts_jobs_and_the_others_say_what_is_wrong(answer):
    first, late, left = timetable_summary(answer.timetable)
    assert first.startswith("2 of 3 jobs run, 1 late")
    assert first.endswith("without rent.")
    assert late.startswith("late ends ")
    assert left == "too large does not run: no setup of it fits any of the cards."
    assert "late ends" in team_words.panel_html(answer)


def test_the_timeline_shows_every_job_and_what_is_beyond_the_deadline(answer):
    figure = timeline_figure.figure(answer.timetable, answer.team, answer.gpus, answer.titles)
    go.Figure(figure)  # raises on a property unknown to Plotly
    jobs, late = figure["data"]
    assert ["in time" in one for one in jobs["text"]] == [True, False]
    (run,) = [assignment for assignment in answer.timetable.assignments if assignment.late_hours]
    assert late["base"][0] + late["x"][0] == pytest.approx(run.end_hours)
    assert late["x"][0] == pytest.approx(min(run.late_hours, run.option.hours))
    assert "late" in timeline_figure.alt(answer.timetable, answer.gpus)


def test_one_short_job_alone_is_drawn_and_said():
    one = JobOption(pool="L4", num_gpus=1, hours=0.005)
    found = schedule([Job(name="a", options=(one,), deadline_hours=1.0)], {"L4": 1})
    team = team_of({"cards": ["1x L4"], "jobs": [{"name": "a", "model": "Qwen/Qwen3-8B"}]})
    figure = timeline_figure.figure(found, team, {"a": (0,)}, {"a": "1 × L4"})
    assert figure["layout"]["xaxis"]["ticktext"][0] == "0:00"
    assert timetable_summary(found) == ["The job runs, in time, without rent."]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"horizon_hours": 0}, "horizon_hours must be above 0"),
        ({"slots": 10**7}, "slots is at most 1,000"),
        ({"jobs": [{"name": "", "model": "Qwen/Qwen3-8B"}]}, "needs a name"),
        ({"deadline_hours": 1e300}, "deadline_hours must be from 0 to 1,000,000"),
        ({"examples": 10**13}, "examples is at most 1,000,000,000,000"),
        ({"lora_r": 10**20}, "lora_r"),
        ({"cards": [{"gpu": "L4", "usd_per_gpu_hour": 1e300}]}, "usd_per_gpu_hour is at most"),
    ],
)
def test_numbers_that_no_form_can_show_are_refused(changed, said):
    """The jobs' own keys come before the team's."""
    jobs = [{"name": "a", "model": "Qwen/Qwen3-8B"}]
    with pytest.raises(ValueError, match=said):
        team_of({"cards": ["L4"], "jobs": jobs, **changed})


def test_the_csv_has_a_line_for_each_job(answer):
    rows = list(csv.DictReader(io.StringIO(timetable_csv(answer.timetable, answer.titles))))
    assert [row["job"] for row in rows] == ["in time", "late", "too large"]
    assert float(rows[1]["late_hours"]) > 0
    assert rows[2]["setup"] == "no setup of it fits any of the cards."
    formulas = dict.fromkeys(answer.titles, "=1+1")  # which a spreadsheet would compute
    assert ",'=1+1\r\n" in timetable_csv(answer.timetable, formulas)


class File:
    """An uploaded file as Streamlit provides it."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name, self.content = name, content

    def getvalue(self) -> bytes:
        return self.content


@pytest.mark.parametrize("content", [b"", b"jobs: [", b"jobs: 3", b"\xff\xfe", b"cards: [L4]"])
def test_a_file_that_is_no_question_is_refused_in_a_sentence_and_changes_nothing(
    monkeypatch, content
):
    state = {"team file to open": File("team.yaml", content)}
    for module in (team_view, team_asked):
        monkeypatch.setattr(module.st, "session_state", state)
    team_view._open()
    assert state.pop("plan problem").startswith("The file is not taken: ")
    assert list(state) == ["team file to open"]
