"""Widgets of the page Plan: question, recommendation, figure, front, near misses and files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from html import escape
from typing import NamedTuple
from urllib.parse import urlencode

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard.plan import (
    asked,
    filters,
    form,
    held,
    options_figure,
    team_asked,
    team_view,
    team_words,
    words,
)
from dashboard.plan.growing import Growing, picks
from dashboard.state import comparison, models
from dashboard.widgets import drawing, keeping
from dashboard.words import markup
from estimator import (
    TOOLS,
    WRITABLE,
    Advice,
    Candidates,
    Method,
    Question,
    advise,
    contract,
    estimate,
    files_of,
    pick,
    question_object,
    question_of,
)

COLUMNS = {
    "Hours, low": st.column_config.NumberColumn(format="%.2f"),
    "Hours, high": st.column_config.NumberColumn(format="%.2f"),
    "Dollars, low": st.column_config.NumberColumn(format="dollar"),
    "Dollars, high": st.column_config.NumberColumn(format="dollar"),
    "Free": st.column_config.NumberColumn(format="%.1f GiB"),
}
VIEWS = {asked.RUN.key: "One run", team_asked.TEAM.key: "Several jobs"}
"""What the page plans, by the key that is in the URL."""


def draw() -> None:
    """Draws the page."""
    view = _view()
    with st.container(horizontal=True, vertical_alignment="center", key="plan head"):
        st.title("Plan", anchor=False, width="content")
        st.segmented_control(
            "What to plan",
            list(VIEWS),
            format_func=VIEWS.__getitem__,
            key="plan view",
            required=True,
            label_visibility="collapsed",
            on_change=_turn,
        )
    if view == team_asked.TEAM.key:
        team_view.draw()
    else:
        _run()


def _view() -> str:
    """The key of what the URL plans, else of what the session planned last."""
    state = st.session_state
    here = [key for key in VIEWS if key in st.query_params]
    view: str = here[0] if len(here) == 1 else state.get("plan shown", asked.RUN.key)
    state["plan shown"] = state["plan view"] = view
    for key in here:
        if key != view:
            del st.query_params[key]
    return view


def _turn() -> None:
    """Writes the chosen question to the URL, in place of the other."""
    state = st.session_state
    chosen = state["plan view"] or state["plan shown"]
    for key in VIEWS:
        if key != chosen and key in st.query_params:
            del st.query_params[key]
    state["plan shown"] = chosen
    if f"{chosen} text" in state:
        st.query_params[chosen] = state[f"{chosen} text"]


def _run() -> None:
    question = asked.RUN.current()
    held.say_problem()
    with st.container(key="plan columns"):
        asking, answering = st.columns([5, 9], gap="medium")
    with asking:
        question, is_current = _put(question, form.draw(question, asked.RUN.round()))
        under_the_button = st.empty()
    computed = asked.text_of(asked.unlimited(question))
    is_new = st.session_state.get("plan computed") != computed
    with answering:
        over_the_answer = st.empty()
        here = _place(is_new)
    below = _place(is_new)
    with answering:
        if not held.has_models(question.models):
            return
        growing = Growing(question, under_the_button, over_the_answer)
        found = asked.answered(question, growing)
    st.session_state["plan computed"] = computed
    with here():
        if isinstance(found, str):
            growing.end()
            _refuse(found)
            return
        each, advice, kept = _answer(found, question, growing.end, is_current=is_current)
    with below():
        _beyond(advice, kept)
    _full(*each, question)


def _place(is_new: bool) -> Callable[[], DeltaGenerator]:
    """Makes a place for an answer, and what draws it there; the one before goes at once if this is to be computed."""
    if is_new:
        return st.empty().container
    drawn = st.container()
    return lambda: drawn


def _put(question: Question, given: dict[str, object]) -> tuple[Question, bool]:
    """The question to answer, and whether the form asks it.

    Deadline and budget apply at once, all other fields with the button.
    """
    try:
        written = question_of(given)
    except ValueError as refusal:
        _refuse(str(refusal))
        return question, False
    at_once = replace(
        question, deadline_hours=written.deadline_hours, budget_usd=written.budget_usd
    )
    is_asked = st.button("Find the options", type="primary", key="plan it")
    if written != at_once and not is_asked:
        st.html(
            '<p class="hr-note" role="status">The question has changed; the answer is to the one before.</p>'
        )
    now = written if is_asked else at_once
    if now != question:
        asked.RUN.ask(now)
    return now, now == written


def _refuse(sentence: str) -> None:
    st.html(f'<p class="hr-note hr-refusal" role="alert">{escape(sentence)}</p>')


# --- the answer ---------------------------------------------------------------------------------


def _answer(
    found: Candidates, question: Question, begins: Callable[[], None], *, is_current: bool
) -> tuple[Each, Advice, filters.Filters]:
    """The recommendation, the filters and the figure; and the place of what each method would take.

    ``begins`` is called when the recommendation stands.
    """
    st.html(
        f'<p class="hr-plan-asked">{escape(words.asked_in_words(question))} <a href="#plan-form">Change it</a></p>'
    )
    panel, each = st.empty(), st.container(key="plan each method").empty()
    kept = filters.draw(found)
    best, of_methods = picks(found, question, kept)
    said = [(name, words.taken(one)) for name, one in of_methods]
    begins()
    panel.html(words.panel_html(best, is_current=is_current))
    each.html(words.each_html(said))
    advice = advise(found, question, kept.mask(found))
    panel.html(words.panel_html(advice, is_current=is_current))
    if len(advice.front):
        drawing.plot(
            options_figure.figure(advice, dark=drawing.is_dark()),
            "options",
            options_figure.alt(advice),
            on_pick=lambda place: st.session_state.update({"plan picked": place}),
        )
        st.html(f'<p class="hr-small">{options_figure.CAPTION} Click a point to see it below.</p>')
    _picked(found, advice)
    return Each(each, said), advice, kept


class Each(NamedTuple):
    """What to take with each method, and where it stands."""

    place: DeltaGenerator
    said: list[tuple[str, str]]


def _full(place: DeltaGenerator, said: list[tuple[str, str]], question: Question) -> None:
    """What full fine-tuning would take, beside the question's methods if it is none of them."""
    full = Method.FULL.label
    if full in dict(said):
        return
    also = replace(question, methods=(Method.FULL,))

    def show(share: float, _: Callable[[], Candidates]) -> None:
        place.html(words.each_html([(full, f"computing, {share:.0%}"), *said]))

    found = asked.answered(also, show, are_bounded=True)
    taken = found if isinstance(found, str) else words.taken(pick(found, also))
    place.html(words.each_html([(full, taken), *said]))


def _beyond(advice: Advice, kept: filters.Filters) -> None:
    """What takes the whole width: links and files, steps, near misses, the front as a table, notes."""
    question = advice.question
    with st.container(horizontal=True, gap="small"):
        keeping.copy_button()
        query = {asked.RUN.key: asked.text_of(question), **kept.params}
        st.link_button("Report to print", f"./report?{urlencode(query, doseq=True)}")
        st.download_button(
            "Save the table (.csv)",
            lambda: _csv(advice),
            "plan.csv",
            "text/csv",
            on_click="ignore",
            key="plan csv",
        )
        st.download_button(
            "Save the question (.json)",
            json.dumps(question_object(question), indent=2),
            "question.json",
            "application/json",
            on_click="ignore",
            key="plan question file",
            help="headroom plan question.json gives the same answer.",
        )
    if advice.stairs:
        st.html('<h2 class="hr-head">What the next dollar buys</h2>')
        st.html(
            words.list_html([stair.text for stair in advice.stairs])
            + f'<p class="hr-small">{words.HINT}</p>'
        )
    if advice.misses:
        st.html('<h2 class="hr-head">Why the others fail</h2>')
        st.html(words.list_html([miss.text for miss in advice.misses]))
    if len(advice.front):
        _table(advice)
    if advice.notes:
        st.html(markup.details("plan notes", "What this leaves out", words.list_html(advice.notes)))


def _table(advice: Advice) -> None:
    places = advice.front.tolist()[: words.MOST_ROWS]
    st.html(
        f'<h2 class="hr-head">{len(advice.front):,} setups that no other beats in dollars, hours and free memory</h2>'
    )
    table = pd.DataFrame([words.row(advice, place) for place in places])
    if table["Model"].nunique() == 1:
        table = table.drop(columns="Model")

    def take() -> None:
        rows = st.session_state["plan front"].selection.rows
        if rows:
            st.session_state["plan picked"] = places[rows[0]]

    st.dataframe(
        table,
        key="plan front",
        hide_index=True,
        placeholder="–",
        height=380,
        on_select=take,
        selection_mode="single-row",
        column_config=COLUMNS,
        alt="Setups that no other beats, cheapest first, with their hours, dollars and free memory",
    )


def _csv(advice: Advice) -> str:
    rows = [words.row(advice, place) for place in advice.front.tolist()]
    return contract.csv_text([rows[0], *(row.values() for row in rows)] if rows else [])


def _picked(found: Candidates, advice: Advice) -> None:
    """The clicked or else the recommended setup, with its link and a button that adds it to the comparison."""
    place = st.session_state.get("plan picked")
    if place is None or not 0 <= place < len(found):
        place = advice.recommended
    if place is None:
        return
    keys = found.keys(place)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(words.picked_html(found, place))
        st.link_button("Open it", f"./?{team_words.query(keys)}")
        _files(found, place, keys)
        if st.button("Keep for comparison", key="plan keep"):
            _keep(keys)


def _files(found: Candidates, place: int, keys: dict[str, object]) -> None:
    """A button for the files that run a setup with the question's tool, if that can express it."""
    tool = found.question.tool
    if tool not in WRITABLE:
        return
    try:
        away = files_of(tool, keys, found.of(place).model, about="by the planner")
    except ValueError:
        return
    st.download_button(
        "Save its files (.zip)",
        away.archive(),
        "run.zip",
        "application/zip",
        on_click="ignore",
        key="plan files",
        help=f"They run it with {TOOLS[tool].label}.",
    )


def _keep(keys: dict[str, object]) -> None:
    of = estimate(*contract.parse(keys, models.known()))
    name = comparison.proposed_name(of)
    if refusal := comparison.add(name, of):
        st.error(markup.plain(refusal))
    else:
        st.toast(f"Kept as {name}.")
