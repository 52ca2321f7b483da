"""The page Report: a plan in one column without widgets, for paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from html import escape
from urllib.parse import urlencode

import streamlit as st

from dashboard.plan import (
    asked,
    filters,
    held,
    options_figure,
    report_words,
    team_asked,
    team_words,
    timeline_figure,
    words,
)
from dashboard.widgets import drawing
from estimator import Question, TeamQuestion, advise


def draw() -> None:
    """Draws the report of the question in the URL."""
    st.html(report_words.STYLE)
    if team_asked.TEAM.key in st.query_params:
        team = team_asked.TEAM.current()
        held.say_problem()
        if held.has_models([model for own in team.jobs.values() for model in own.models]):
            _team(team)
    else:
        question = asked.RUN.current()
        held.say_problem()
        if held.has_models(question.models):
            _run(question)


def _run(question: Question) -> None:
    found = asked.answered(question)
    kept = filters.Filters() if isinstance(found, str) else filters.in_url(found)
    plan = {asked.RUN.key: [asked.text_of(question)], **kept.params}
    _back(plan)
    said = f"<p>{escape(words.asked_in_words(question))} {escape(kept.said)}</p>"
    st.html(report_words.head(report_words.title(question), date.today().isoformat(), said))
    if isinstance(found, str):
        _refuse(found)
        return
    advice = advise(found, question, kept.mask(found))
    st.html(report_words.recommendation(advice))
    if len(advice.front):
        drawing.plot(
            options_figure.figure(advice), "options", options_figure.alt(advice), menu=False
        )
        st.html(f'<p class="hr-small">{options_figure.CAPTION}</p>')
    st.html(report_words.details(advice))
    st.html(report_words.foot(_link(plan)))


def _team(team: TeamQuestion) -> None:
    plan = {team_asked.TEAM.key: [team_asked.text_of(team)]}
    _back(plan)
    title = f"Schedule of {len(team.jobs)} fine-tuning jobs"
    st.html(report_words.head(title, date.today().isoformat(), report_words.team_question(team)))
    found = team_asked.answered(team)
    if isinstance(found, str):
        _refuse(found)
        return
    st.html(f'<div class="hr-report">{team_words.panel_html(found)}</div>')
    table = found.timetable
    if table.assignments:
        drawing.plot(
            timeline_figure.figure(table, team, found.gpus, found.titles),
            "timeline",
            timeline_figure.alt(table, found.gpus),
            menu=False,
        )
        st.html(
            f'{team_words.legend_html(found)}<p class="hr-small">{team_words.caption(team)}</p>'
        )
    st.html(report_words.schedule(found))
    st.html(report_words.foot(_link(plan)))


def _refuse(sentence: str) -> None:
    st.html(f'<p class="hr-note hr-refusal" role="alert">{escape(sentence)}</p>')


def _back(plan: Mapping[str, Sequence[str]]) -> None:
    query = escape(urlencode(plan, doseq=True))
    st.html(f'<p class="hr-back hr-small"><a href="./plan?{query}">Change the plan</a></p>')


def _link(plan: Mapping[str, Sequence[str]]) -> str:
    """The whole URL of the plan."""
    here = (st.context.url or "").partition("?")[0].rstrip("/")
    return f"{here.removesuffix('/report')}/plan?{urlencode(plan, doseq=True)}"
