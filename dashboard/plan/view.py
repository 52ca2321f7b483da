"""Widgets of the page Plan: question, recommendation, figure, front, near misses and files."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from typing import Any, cast
from urllib.parse import urlencode

import numpy as np
import pandas as pd
import streamlit as st

from dashboard.plan import asked, options_figure, words
from dashboard.state import comparison, models
from dashboard.widgets import drawing, keeping
from dashboard.words import markup, terms
from estimator import (
    TOOLS,
    Advice,
    Candidates,
    Method,
    Question,
    advise,
    catalog,
    contract,
    count_texts,
    estimate,
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
MOST_MEGABYTES = 50
"""Maximum size of a file whose lengths are counted. Our choice."""
HINT = "What cannot be told apart within the ranges of hours and dollars is one step."


def draw() -> None:
    """Draws the page."""
    question = asked.current()
    st.title("Plan", anchor=False)
    st.html(
        '<p class="hr-text">Every setup that trains this on these cards, and what the next dollar buys. Checkpointing, '
        "accumulation, fused losses, sharding and offload are tried, since they change no result.</p>"
    )
    if problem := st.session_state.pop("plan problem", None):
        st.warning(markup.plain(problem), icon=":material/link_off:")
    question = _put(question, _form(question))
    found = asked.answered(question)
    if isinstance(found, str):
        _refuse(found)
    else:
        _answer(found, question)


def _put(question: Question, given: dict[str, object]) -> Question:
    """The question to answer. Deadline and budget apply at once, all other fields with the button."""
    try:
        written = question_of(given)
    except ValueError as refusal:
        _refuse(str(refusal))
        return question
    at_once = replace(
        question, deadline_hours=written.deadline_hours, budget_usd=written.budget_usd
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        is_asked = st.button("Find the options", type="primary", key="plan it")
        if written != at_once and not is_asked:
            st.html(
                '<p class="hr-note">The question has changed; what follows answers the one before.</p>'
            )
    now = written if is_asked else at_once
    if now != question:
        asked.ask(now)
    return now


def _refuse(sentence: str) -> None:
    st.html(f'<p class="hr-note hr-refusal" role="alert">{escape(sentence)}</p>')


# --- the question -------------------------------------------------------------------------------


def _form(question: Question) -> dict[str, object]:
    """Draws the question's widgets and returns their values for ``question_of``."""
    number = st.session_state["plan round"]
    with st.container(border=True, key="plan form"):
        left, right = st.columns(2)
        with left:
            given = _what(question, number)
        with right:
            given |= _with_what(question, number)
        with st.expander("Context, rank, tool, rows"):
            given |= _more(question, number)
    kept = question_object(question)
    return {**{key: kept[key] for key in ("keys", "try", "micro_batches") if key in kept}, **given}


def _what(question: Question, number: int) -> dict[str, object]:
    known = asked.model_options()
    ids = [it for it in question.models if isinstance(it, str)]
    names = st.multiselect(
        "Models", list(dict.fromkeys([*known, *ids])), ids, key=f"plan models {number}"
    )
    st.session_state.setdefault(f"plan examples {number}", question.num_train_examples)
    with st.container(horizontal=True):
        examples = st.number_input("Examples", 1, key=f"plan examples {number}")
        epochs = st.number_input(
            "Epochs", 0.01, value=float(question.num_train_epochs), key=f"plan epochs {number}"
        )
        batch = st.number_input(
            "Effective batch",
            1,
            2**20,
            question.effective_batch,
            key=f"plan batch {number}",
            help="Examples of one optimizer step over all GPUs; each setup reaches it exactly.",
        )
    lengths = _lengths(question, number)
    methods = st.pills(
        "Methods that are good enough",
        [it.value for it in Method],
        selection_mode="multi",
        default=[it.value for it in question.methods],
        format_func=lambda it: terms.METHODS[Method(it)],
        key=f"plan methods {number}",
    )
    return {
        "model": [*names, *(it for it in question.models if not isinstance(it, str))],
        "examples": int(examples),
        "epochs": float(epochs),
        "effective_batch": int(batch),
        "lengths": lengths,
        "methods": list(methods),
    }


def _lengths(question: Question, number: int) -> dict[str, object]:
    """Tokens per example: the longest determines memory, the mean determines time."""
    state = st.session_state
    state.setdefault(f"plan mean {number}", max(1, round(question.lengths.mean)))
    state.setdefault(f"plan longest {number}", question.lengths.longest)
    with st.container(horizontal=True):
        mean = st.number_input(
            "Mean tokens", 1, key=f"plan mean {number}", help="Of an example; decides the time."
        )
        longest = st.number_input(
            "Longest, tokens",
            1,
            2**24,
            key=f"plan longest {number}",
            help="Of an example; decides the memory, unless a context is given below.",
        )
    _counting(number)
    for lengths in (state.get("plan distribution"), question.lengths):
        # a distribution from a file or a link stays valid until its mean or its maximum is changed
        if lengths and (max(1, round(lengths.mean)), lengths.longest) == (mean, longest):
            written = question_object(replace(question, lengths=lengths))
            return cast(
                "dict[str, object]", written.get("lengths") or {"mean": mean, "max": longest}
            )
    return {"mean": int(mean), "max": int(longest)}


def _counting(number: int) -> None:
    """Upload of a file of examples. The server counts their lengths and does not store the file."""
    with st.popover("Count a file of examples"):
        st.file_uploader(
            "Examples, one a row",
            ["jsonl", "json", "csv", "parquet"],
            key=f"plan texts {number}",
            max_upload_size=MOST_MEGABYTES,
            help="Texts, chats, token ids or token counts.",
        )
        st.file_uploader(
            "The model's tokenizer.json, if you have it",
            ["json"],
            key=f"plan tokenizer {number}",
            max_upload_size=MOST_MEGABYTES,
            help="Without it the tokens are guessed from the bytes, at the high end.",
        )
        st.button("Count", key="plan count", on_click=_count, args=(number,))
        if said := st.session_state.get("plan counted"):
            st.html(f'<p class="hr-note" role="status">{escape(said)}</p>')


def _count(number: int) -> None:
    state = st.session_state
    texts, tokenizer = state[f"plan texts {number}"], state[f"plan tokenizer {number}"]
    if texts is None:
        state["plan counted"] = "Drop a file of examples first."
        return
    try:
        found = count_texts(
            texts.getvalue(), texts.name, tokenizer=tokenizer.getvalue() if tokenizer else None
        )
    except ValueError as refusal:
        state["plan counted"] = str(refusal)
        return
    lengths = found.high
    state["plan counted"] = f"{found.examples:,} examples. {found.how}"
    state["plan distribution"] = lengths
    state[f"plan examples {number}"] = found.examples
    state[f"plan mean {number}"] = max(1, round(lengths.mean))
    state[f"plan longest {number}"] = lengths.longest


def _with_what(question: Question, number: int) -> dict[str, object]:
    rows = pd.DataFrame(asked.card_rows(question))
    rows["Dollars per GPU-hour"] = rows["Dollars per GPU-hour"].astype(float)
    rows["Provider"] = rows["Provider"].astype(object)
    st.html('<p class="hr-label">Cards that can be had</p>')
    edited = st.data_editor(
        rows,
        num_rows="dynamic",
        placeholder="–",
        hide_index=True,
        key=f"plan cards {number}",
        column_config={
            "GPU": st.column_config.SelectboxColumn(options=list(catalog.gpus()), width="medium"),
            "At most": st.column_config.NumberColumn(
                min_value=1, max_value=1024, step=1, default=8
            ),
            "Owned": st.column_config.CheckboxColumn(default=False),
            "Dollars per GPU-hour": st.column_config.NumberColumn(
                "$ per GPU-hour", min_value=0, help="Empty: the cheapest listing.", format="dollar"
            ),
            "Provider": st.column_config.TextColumn(help="Empty: any."),
        },
    )
    records: Any = edited.astype(object).where(edited.notna(), None).to_dict("records")
    with st.container(horizontal=True):
        deadline = st.number_input(
            "Deadline, hours",
            0.0,
            value=question.deadline_hours,
            key=f"plan deadline {number}",
            placeholder="none",
        )
        budget = st.number_input(
            "Budget, US dollars",
            0.0,
            value=question.budget_usd,
            key=f"plan budget {number}",
            placeholder="none",
        )
    return {
        "cards": asked.cards_of(records, cast("Any", question_object(question)["cards"])),
        "deadline_hours": deadline,
        "budget_usd": budget,
    }


def _more(question: Question, number: int) -> dict[str, object]:
    with st.container(horizontal=True):
        context = st.number_input(
            "Context, at least",
            1,
            value=question.context,
            key=f"plan context {number}",
            placeholder="the longest example",
            help="Longer examples are cut to it.",
        )
        rank = st.number_input(
            "LoRA rank, at least", 1, value=min(question.ranks), key=f"plan rank {number}"
        )
        tool = st.selectbox(
            "Run with",
            TOOLS,
            list(TOOLS).index(question.tool),
            key=f"plan tool {number}",
            help="Whose defaults the other keys take.",
        )
        rows = st.selectbox(
            "Rows",
            ("padded", "packed", "padding_free"),
            ("padded", "packed", "padding_free").index(question.rows),
            format_func=lambda it: it.replace("_", " "),
            key=f"plan rows {number}",
        )
    ranks = question.ranks if rank == min(question.ranks) else (int(rank),)
    return {"context": context, "lora_r": list(ranks), "tool": tool, "rows": rows}


# --- the answer ---------------------------------------------------------------------------------


def _answer(found: Candidates, question: Question) -> None:
    advice = advise(found, question, _filter(found))
    st.html(words.panel_html(advice))
    with st.container(horizontal=True, gap="small"):
        keeping.copy_button()
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
    if len(advice.front):
        drawing.plot(
            options_figure.figure(advice, dark=drawing.is_dark()),
            "options",
            options_figure.alt(advice),
            on_pick=lambda place: st.session_state.update({"plan picked": place}),
        )
        st.html(
            '<p class="hr-small">Grey: setups that fit, darker where there are more. Blue: no other is cheaper, faster '
            "and roomier; the line is what the next dollar buys. Diamond: recommended, with the ranges of its hours "
            "and dollars. Click a point to open it.</p>"
        )
    _picked(found, advice)
    if advice.stairs:
        st.html('<h2 class="hr-head">What the next dollar buys</h2>')
        st.html(
            words.list_html([it.text for it in advice.stairs]) + f'<p class="hr-small">{HINT}</p>'
        )
    if advice.misses:
        st.html('<h2 class="hr-head">Why the others fail</h2>')
        st.html(words.list_html([it.text for it in advice.misses]))
    if len(advice.front):
        _table(advice)
    if advice.notes:
        st.html(markup.details("plan notes", "What this leaves out", words.list_html(advice.notes)))


def _filter(found: Candidates) -> Any:
    """Mask of the setups that pass the filters."""
    methods = sorted({it.setup.method for it in found.recipes}, key=list(Method).index)
    cards = list(dict.fromkeys(it.name for it in found.question.offers))
    counts = [int(it) for it in np.unique(found.num_gpus)]
    keep = np.ones(len(found), np.bool_)
    several = [it for it in (methods, cards, counts) if len(it) > 1]
    places = iter(st.columns(len(several) or 1))
    if len(methods) > 1 and (
        shown := next(places).pills(
            "Show methods",
            [it.value for it in methods],
            selection_mode="multi",
            key="plan show methods",
            format_func=lambda it: terms.METHODS[Method(it)],
        )
    ):
        keep &= np.array([it.setup.method.value in shown for it in found.recipes])[found.recipe]
    if len(cards) > 1 and (
        shown := next(places).pills(
            "Show cards", cards, selection_mode="multi", wrap=True, key="plan show cards"
        )
    ):
        keep &= np.array([found.question.offers[it.offer].name in shown for it in found.recipes])[
            found.recipe
        ]
    if len(counts) > 1:
        with next(places):
            most = st.select_slider("GPUs, at most", counts, counts[-1], key=f"plan most {counts}")
        keep &= found.num_gpus <= most
    return keep


def _table(advice: Advice) -> None:
    places = advice.front.tolist()[: words.MOST_ROWS]
    st.html(
        f'<h2 class="hr-head">{len(advice.front):,} setups that no other beats in dollars, hours and free memory</h2>'
    )
    table = pd.DataFrame([words.row(advice, it) for it in places])
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
    text: str = pd.DataFrame([words.row(advice, it) for it in advice.front.tolist()]).to_csv(
        index=False
    )
    return text


def _picked(found: Candidates, advice: Advice) -> None:
    """The clicked or else the recommended setup, with its link and a button that adds it to the comparison."""
    place = st.session_state.get("plan picked")
    if place is None or not 0 <= place < len(found):
        place = advice.recommended
    if place is None:
        return
    keys = found.keys(place)
    query = urlencode(
        [
            (key, it if isinstance(it, str) else json.dumps(it))
            for key, value in keys.items()
            for it in (value if isinstance(value, list) else [value])
        ]
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(words.picked_html(found, place))
        st.link_button("Open it", f"./?{query}")
        if st.button("Keep for comparison", key="plan keep"):
            _keep(keys)


def _keep(keys: dict[str, object]) -> None:
    of = estimate(*contract.parse(keys, models.known()))
    name = contract.free_name(terms.proposed_name(of), comparison.scenarios())
    if refusal := comparison.add(name, of):
        st.error(markup.plain(refusal))
    else:
        st.toast(f"Kept as {name}.")
