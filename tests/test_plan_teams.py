"""Schedules of several jobs, checked against brute force on tiny instances."""

from __future__ import annotations

import json
import os
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Job, JobOption, schedule
from estimator.__main__ import main

pytest.importorskip("highspy")

SLOTS, HORIZON = 4, 8.0
"""Slots and hours: two hours per slot."""


def _brute(jobs: list[Job], pools: dict[str, int]) -> tuple[int, float, float, float]:
    """The best (jobs left out, hours late, dollars, sum of ends) over every start, or none, for each job."""
    slot = HORIZON / SLOTS
    choices: list[list[tuple[JobOption, int] | None]] = [
        [None, *((option, begin) for option in job.options for begin in range(SLOTS))]
        for job in jobs
    ]
    best = (len(jobs), 0.0, 0.0, 0.0)
    for chosen in product(*choices):
        used = {(pool, at): 0 for pool in pools for at in range(SLOTS)}
        left_out, late, dollars, ends, possible = 0, 0.0, 0.0, 0.0, True
        for job, choice in zip(jobs, chosen, strict=True):
            if choice is None:
                left_out += 1
                continue
            option, begin = choice
            end = begin * slot + option.hours
            possible &= end <= HORIZON and begin * slot >= job.ready_hours
            for at in range(SLOTS):
                if at * slot < end and at >= begin:
                    used[option.pool, at] += option.num_gpus
            if job.deadline_hours is not None:
                late += max(0.0, end - job.deadline_hours)
            dollars += option.dollars
            ends += end
        if possible and all(count <= pools[pool] for (pool, _), count in used.items()):
            best = min(best, (left_out, round(late, 6), round(dollars, 6), round(ends, 6)))
    return best


OPTIONS = st.builds(
    JobOption,
    pool=st.sampled_from(["a", "b"]),
    num_gpus=st.integers(1, 3),
    hours=st.sampled_from([0.5, 1.7, 2.0, 3.3, 6.0, 9.0]),
    dollars=st.sampled_from([0.0, 1.0, 2.5]),
)
JOBS = st.lists(
    st.tuples(
        st.lists(OPTIONS, max_size=2),
        st.sampled_from([0.0, 1.0, 4.0]),
        st.sampled_from([None, 2.0, 5.0]),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60)
@given(JOBS, st.integers(1, 3), st.integers(0, 2))
def test_the_schedule_matches_the_brute_force_optimum(drawn, first, second):
    jobs = [
        Job(name=str(number), options=tuple(options), ready_hours=ready, deadline_hours=deadline)
        for number, (options, ready, deadline) in enumerate(drawn)
    ]
    pools = {"a": first, "b": second}
    found = schedule(jobs, pools, HORIZON, SLOTS)
    assert found.is_best
    reached = (
        len(found.left_out),
        round(found.late_hours, 6),
        round(found.dollars, 6),
    )
    *best, ends = _brute(jobs, pools)
    assert reached == pytest.approx(tuple(best))
    assert sum(assignment.end_hours for assignment in found.assignments) <= ends * 1.01 + 1e-6


def test_jobs_that_cannot_run_say_why():
    one = JobOption(pool="L4", num_gpus=1, hours=30.0)
    jobs = [
        Job(name="nothing fits", options=()),
        Job(name="too wide", options=(JobOption(pool="L4", num_gpus=8, hours=1.0),)),
        Job(name="too long", options=(JobOption(pool="L4", num_gpus=1, hours=50.0),)),
        Job(name="first", options=(one,)),
        Job(name="second", options=(one,)),
    ]
    found = schedule(jobs, {"L4": 1}, 48.0, 24)
    assert len(found.assignments) == 1
    assert found.left_out["nothing fits"] == "no setup of it fits any of the cards."
    assert "at least 8 GPUs" in found.left_out["too wide"]
    assert "2.0 hours after the horizon" in found.left_out["too long"]
    assert (
        "taken by other jobs" in found.left_out[({"first", "second"} & set(found.left_out)).pop()]
    )


def test_a_late_job_says_by_how_much():
    job = Job(
        name="late",
        options=(JobOption(pool="L4", num_gpus=1, hours=5.5),),
        ready_hours=2.0,
        deadline_hours=6.0,
    )
    found = schedule([job], {"L4": 1}, 24.0, 12)
    assert found.assignments[0].late_hours == pytest.approx(1.5)


def test_a_team_in_a_file_is_scheduled(tmp_path, capsys):
    team = {
        "cards": [{"gpu": "L4", "most": 2, "owned": True}],
        "horizon_hours": 48,
        "effective_batch": 8,
        "try": {
            "strategy": ["ddp"],
            "use_liger_kernel": [False],
            "offload_optimizer": ["none"],
            "offload_param": ["none"],
        },
        "jobs": [
            {"name": "small", "model": "Qwen/Qwen3-0.6B", "deadline_hours": 12},
            {"name": "large", "model": "Qwen/Qwen3-32B"},
        ],
    }
    path = tmp_path / "team.json"
    path.write_text(json.dumps(team), encoding="utf-8")
    assert main(["plan", str(path), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    (run,) = answer["runs"]
    assert run["job"] == "small"
    assert run["late_hours"] == 0
    assert answer["left_out"] == {"large": "no setup of it fits any of the cards."}
    assert main(["plan", str(path)]) == 1
    assert "small" in capsys.readouterr().out


def test_what_the_solver_prints_is_not_part_of_the_answer(monkeypatch, capfd):
    """HiGHS 1.16 writes its name to standard output when a solver is made."""
    import highspy

    class Loud(highspy.Highs):
        def __init__(self) -> None:
            os.write(1, b"Running HiGHS")
            super().__init__()

    monkeypatch.setattr(highspy, "Highs", Loud)
    option = JobOption(pool="a", num_gpus=1, hours=1.0, dollars=0.0)
    schedule([Job(name="one", options=[option])], {"a": 1}, HORIZON, SLOTS)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("Running HiGHS")
