"""Several jobs on shared GPUs, on the page Plan: the schedule, its jobs, and the form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from dashboard.plan import asked, form, held, team_asked, team_words, timeline_figure
from dashboard.plan.team_asked import TEAM, TeamAnswer
from dashboard.state import comparison
from dashboard.widgets import drawing, keeping
from estimator import (
    Method,
    TeamQuestion,
    object_of_text,
    question_of,
    team_object,
    team_of,
    timetable_csv,
)


def draw() -> None:
    """Draws the schedule, then the form that asks for it."""
    team = TEAM.current()
    held.say_problem()
    answering = st.container()
    team, is_current = _put(team, _form(team))
    with answering:
        if not held.has_models([model for own in team.jobs.values() for model in own.models]):
            return
        found = team_asked.answered(team)
        if isinstance(found, str):
            _refuse(found)
        else:
            _answer(found, is_current=is_current)


def _refuse(sentence: str) -> None:
    st.html(f'<p class="hr-note hr-refusal" role="alert">{escape(sentence)}</p>')


def _answer(found: TeamAnswer, *, is_current: bool) -> None:
    st.html(team_words.panel_html(found, is_current=is_current))
    if found.timetable.assignments:
        drawing.plot(
            timeline_figure.figure(
                found.timetable, found.team, found.gpus, found.titles, dark=drawing.is_dark()
            ),
            "timeline",
            timeline_figure.alt(found.timetable, found.gpus),
        )
        st.html(
            f'{team_words.legend_html(found)}<p class="hr-small">{team_words.caption(found.team)}</p>'
        )
    with st.container(horizontal=True, gap="small"):
        keeping.copy_button()
        st.link_button(
            "Report to print", f"./report?{urlencode({TEAM.key: TEAM.write(found.team)})}"
        )
        st.download_button(
            "Save the schedule (.csv)",
            timetable_csv(found.timetable, found.titles),
            "schedule.csv",
            "text/csv",
            on_click="ignore",
            key="team csv",
        )
        st.download_button(
            "Save the question (.json)",
            json.dumps(team_object(found.team), indent=2),
            "team.json",
            "application/json",
            on_click="ignore",
            key="team file",
            help="headroom plan team.json gives the same answer.",
        )
    st.html(team_words.table_html(found))


# --- the question -------------------------------------------------------------------------------


def _form(team: TeamQuestion) -> dict[str, object]:
    """Draws the team's widgets and returns their values for ``team_of``."""
    number = TEAM.round()
    with st.container(border=True, key="team form"):
        st.html('<h2 class="hr-head">The jobs</h2>')
        jobs = _jobs(team, number)
        _adding()
        left, right = st.columns([3, 2])
        with left:
            st.html('<h2 class="hr-head">The cards that they share</h2>')
            first = next(iter(team.jobs.values()))
            cards = form.cards(first.offers, f"team cards {number}")
        with right, st.container(horizontal=True):
            horizon = st.number_input(
                "Horizon, hours",
                min(0.01, team.horizon_hours),
                value=team.horizon_hours,
                key=f"team horizon {number}",
                help="Every job ends within it.",
            )
            step = st.number_input(
                "A start every … hours",
                min(0.01, team.slot_hours),
                value=team.slot_hours,
                key=f"team step {number}",
                help="A job holds its GPUs until the next of these times. Smaller: a tighter schedule, solved slower.",
            )
    slots = max(1, round(horizon / step))
    given = {"cards": cards, "jobs": jobs, "horizon_hours": horizon, "slots": slots}
    st.session_state["team given"] = given
    return given


def _jobs(team: TeamQuestion, number: int) -> list[dict[str, object]]:
    rows = pd.DataFrame(team_asked.job_rows(team))
    rows["Deadline"] = rows["Deadline"].astype(float)
    models = [team_asked.AS_GIVEN] if team_asked.AS_GIVEN in set(rows["Model"]) else []
    numbers: Mapping[str, Any] = {"min_value": 1, "step": 1}
    edited = st.data_editor(
        rows,
        num_rows="dynamic",
        placeholder="–",
        hide_index=True,
        key=f"team jobs {number}",
        column_config={
            "Job": st.column_config.TextColumn(help="Empty: the model's name."),
            "Model": st.column_config.SelectboxColumn(
                options=[*asked.model_options(), *models], width="medium"
            ),
            "Methods": st.column_config.MultiselectColumn(
                options=[method.value for method in Method],
                default=[Method.LORA.value],
                help="Whose results are good enough; the fastest is taken.",
            ),
            "Examples": st.column_config.NumberColumn(default=10_000, **numbers),
            "Epochs": st.column_config.NumberColumn(default=1, min_value=0.01),
            "Mean tokens": st.column_config.NumberColumn(
                default=600, help="Of an example; decides the time.", **numbers
            ),
            "Longest": st.column_config.NumberColumn(
                "Longest, tokens",
                default=1024,
                help="Of an example; decides the memory.",
                **numbers,
            ),
            "Batch": st.column_config.NumberColumn(
                "Effective batch",
                default=64,
                help="Examples of one optimizer step over all GPUs.",
                **numbers,
            ),
            "Ready": st.column_config.NumberColumn(
                "Ready, hours", default=0, min_value=0, help="It cannot start earlier."
            ),
            "Deadline": st.column_config.NumberColumn(
                "Deadline, hours",
                min_value=0,
                help="From the beginning of the schedule; empty: none.",
            ),
        },
    )
    return team_asked.jobs_of(form.records(edited), team)


def _adding() -> None:
    """Jobs from elsewhere: the page Estimate, the question of one run, a file of the command line."""
    with st.container(horizontal=True, gap="small"):
        setup = comparison.document().setup
        st.button(
            "Add the setup of Estimate",
            key="team add setup",
            disabled=setup is None,
            help="Its model, method, examples, lengths and batch; the planner chooses its cards."
            if setup
            else "Set one up on the page Estimate first.",
            on_click=_add_setup,
        )
        st.button(
            "Add the one run",
            key="team add run",
            help="The question of the other view of this page.",
            on_click=_add_run,
        )
        with st.popover("Open a file"):
            st.file_uploader(
                "A question for headroom plan: YAML or JSON",
                ["yaml", "yml", "json"],
                key="team file to open",
                on_change=_open,
            )


def _add_setup() -> None:
    setup = comparison.document().setup
    if setup is not None:
        _add(lambda: team_asked.job_of_scenario(setup))


def _add_run() -> None:
    run = st.session_state.get("plan question") or question_of(asked.FIRST)
    _add(lambda: team_asked.job_of_run(run))


def _add(job: Any) -> None:
    """Adds a job to those in the form."""
    try:
        team = team_of(st.session_state["team given"])
        TEAM.put(team_asked.with_job(team, job()))
    except ValueError as problem:
        st.session_state[held.PROBLEM] = str(problem)


def _open() -> None:
    """Takes the question of a dropped file: of a team, or of one run."""
    file = st.session_state["team file to open"]
    if file is None:
        return
    try:
        given = object_of_text(file.getvalue(), file.name)
        if "jobs" in given:
            TEAM.put(team_of(given))
        else:
            asked.RUN.put(question_of(given))
            st.session_state["plan shown"] = asked.RUN.key
            st.query_params.pop(TEAM.key, None)
    except ValueError as problem:
        st.session_state[held.PROBLEM] = f"The file is not taken: {problem}"


def _put(team: TeamQuestion, given: dict[str, object]) -> tuple[TeamQuestion, bool]:
    """The team to answer, what the form holds with the button, and whether the form still asks that."""
    try:
        written = team_of(given)
    except ValueError as refusal:
        _refuse(str(refusal))
        return team, False
    is_asked = st.button("Make the schedule", type="primary", key="team it")
    if written == team:
        return team, True
    if not is_asked:
        st.html(
            '<p class="hr-note" role="status">The jobs have changed; the schedule is of those before.</p>'
        )
        return team, False
    TEAM.ask(written)
    return written, True
