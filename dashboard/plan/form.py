"""The form of the page Plan for one run. What it holds becomes the question only with the button."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any, cast

import pandas as pd
import streamlit as st

from dashboard.plan import asked
from estimator import (
    TOOLS,
    Method,
    Offer,
    Question,
    TokenLengths,
    catalog,
    count_texts,
    question_object,
)

MOST_MEGABYTES = 50
"""Maximum size of a file whose lengths are counted. Our choice."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Fields of the form, by the share of the examples that are not longer."""


def draw(question: Question, number: int) -> dict[str, object]:
    """Draws the question's widgets and returns their values for ``question_of``.

    ``number``: part of the widgets' keys; another one draws the form anew.
    """
    with st.container(border=True, key="plan form"):
        given = _what(question, number)
        st.html('<p class="hr-label">Cards that can be had</p>')
        given["cards"] = cards(question.offers, f"plan cards {number}")
        given |= _limits(question, number)
        with st.expander("Context, rank, tool, rows"):
            given |= _more(question, number)
    kept = question_object(question)
    return {**{key: kept[key] for key in ("keys", "try", "micro_batches") if key in kept}, **given}


def _what(question: Question, number: int) -> dict[str, object]:
    ids = [model for model in question.models if isinstance(model, str)]
    names = st.multiselect(
        "Models",
        list(dict.fromkeys([*asked.model_options(), *ids])),
        ids,
        key=f"plan models {number}",
        select_all=False,  # which Enter would take before the first match
        help="Several are compared. A model of the Hub that is not here: open it on the page Estimate first.",
    )
    st.session_state.setdefault(f"plan examples {number}", question.num_train_examples)
    with st.container(horizontal=True, vertical_alignment="bottom", key="plan amounts"):
        examples = st.number_input(
            "Examples", 1, key=f"plan examples {number}", on_change=_forget_tokens, args=(number,)
        )
        st.number_input(
            "M tokens",
            0.001,
            1e9,
            None,
            key=f"plan tokens {number}",
            placeholder="–",
            on_change=_take_tokens,
            args=(number,),
            help="Millions of tokens of text: they become examples of the mean length below.",
        )
        epochs = st.number_input(
            "Epochs",
            min(0.01, question.num_train_epochs),
            value=float(question.num_train_epochs),
            key=f"plan epochs {number}",
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
        [method.value for method in Method],
        selection_mode="multi",
        default=[method.value for method in question.methods],
        format_func=lambda one: Method(one).label,
        key=f"plan methods {number}",
    )
    return {
        "model": [*names, *(model for model in question.models if not isinstance(model, str))],
        "examples": int(examples),
        "epochs": float(epochs),
        "effective_batch": int(batch),
        "lengths": lengths,
        "methods": list(methods),
    }


def _take_tokens(number: int) -> None:
    """Sets the examples to as many as the tokens fill, if any are given."""
    state = st.session_state
    if (millions := state[f"plan tokens {number}"]) is not None:
        state[f"plan examples {number}"] = max(1, round(1e6 * millions / _mean(number)))


def _forget_tokens(number: int) -> None:
    st.session_state[f"plan tokens {number}"] = None


def _mean(number: int) -> float:
    """Mean tokens of an example by the fields below: as given, by the percentiles, or the longest."""
    state = st.session_state
    given = {name: state.get(f"plan {name} {number}") for name in ("mean", *PERCENTILES, "longest")}
    if given["mean"] or not given["longest"]:
        return float(given["mean"] or 1)
    shares = {share: int(given[name] or 0) for name, share in PERCENTILES.items() if given[name]}
    try:
        return TokenLengths.of_quantiles({**shares, 1.0: int(given["longest"])}).mean
    except ValueError:  # percentiles that do not ascend, of which the form says so
        return float(given["longest"])


# --- tokens per example -------------------------------------------------------------------------


def _lengths(question: Question, number: int) -> dict[str, object]:
    """Tokens per example: the longest determines memory, the mean determines time."""
    state = st.session_state
    for name, value in fields(question.lengths).items():
        state.setdefault(f"plan {name} {number}", value)
    helps = {
        "mean": "Of an example; decides the time. Empty: by the percentiles, or the longest.",
        "longest": "Of an example; decides the memory, unless a context is given below.",
    }
    labels = {"mean": "Mean", **dict.fromkeys(PERCENTILES), "longest": "Longest"}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.html('<p class="hr-label">Tokens per example</p>')
        _counting(number)
    with st.container(horizontal=True, key="plan lengths"):
        given = {
            name: st.number_input(
                label or name,
                1,
                2**24,
                None,
                key=f"plan {name} {number}",
                placeholder="–",
                on_change=_take_tokens,
                args=(number,),
                help=helps.get(
                    name, f"{name[1:]} % of the examples have at most this many; may stay empty."
                ),
            )
            for name, label in labels.items()
        }
    for lengths in (state.get("plan distribution"), question.lengths):
        # a distribution from a file or a link stays valid until a field is changed
        if lengths and fields(lengths) == given:
            return _written(question, lengths)
    names = {"longest": "max"}
    return {names.get(name, name): int(value) for name, value in given.items() if value is not None}


def fields(lengths: TokenLengths) -> dict[str, int | None]:
    """Lengths as the form shows them; None: an empty field.

    >>> fields(TokenLengths.of_quantiles({0.5: 100, 1.0: 300}))
    {'mean': None, 'p50': 100, 'p90': None, 'p99': None, 'longest': 300}
    """
    known = dict(lengths.quantiles)
    derived = TokenLengths.of_quantiles(known).mean if known else None
    return {
        "mean": None if lengths.mean == derived else max(1, round(lengths.mean)),
        **{name: known.get(share) for name, share in PERCENTILES.items()},
        "longest": lengths.longest,
    }


def _written(question: Question, lengths: TokenLengths) -> dict[str, object]:
    written = question_object(replace(question, lengths=lengths)).get("lengths")
    plain = {"mean": lengths.mean, "max": lengths.longest}
    return cast("dict[str, object]", written or plain)


def _counting(number: int) -> None:
    """Upload of a file of examples. The server counts their lengths and does not store the file."""
    with st.popover("Count a file"):
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
        st.button("Count", key="plan count", on_click=count, args=(number,))
        if said := st.session_state.get("plan counted"):
            st.html(f'<p class="hr-note" role="status">{escape(said)}</p>')


def count(number: int) -> None:
    """Counts the uploaded file and fills in the form; says why if it cannot."""
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
    state["plan counted"] = f"{found.examples:,} examples. {found.how}"
    state["plan distribution"] = found.high
    state[f"plan examples {number}"] = found.examples
    for name, value in fields(found.high).items():
        state[f"plan {name} {number}"] = value


# --- cards and limits ---------------------------------------------------------------------------


def cards(offers: Sequence[Offer], key: str) -> list[dict[str, object]]:
    """The table of cards, and what it holds."""
    rows = pd.DataFrame(asked.card_rows(offers))
    rows["Dollars per GPU-hour"] = rows["Dollars per GPU-hour"].astype(float)
    rows["Provider"] = rows["Provider"].astype(object)
    edited = st.data_editor(
        rows,
        num_rows="dynamic",
        placeholder="–",
        hide_index=True,
        key=key,
        column_config={
            "GPU": st.column_config.SelectboxColumn(
                options=list(dict.fromkeys([*catalog.gpus(), *rows["GPU"]])), width="medium"
            ),
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
    kept = [asked.card_object(offer) for offer in offers]
    return asked.cards_of(records(edited), kept)


def records(edited: Any) -> list[Mapping[str, Any]]:
    """The rows of an edited table; None: an empty cell."""
    plain = edited.astype(object)
    found: list[Mapping[str, Any]] = plain.where(edited.notna(), None).to_dict("records")
    return found


def _limits(question: Question, number: int) -> dict[str, object]:
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
    return {"deadline_hours": deadline, "budget_usd": budget}


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
            format_func=lambda one: TOOLS[one].label,
            help="Whose defaults the other keys take.",
        )
        rows = st.selectbox(
            "Rows",
            ("padded", "packed", "padding_free"),
            ("padded", "packed", "padding_free").index(question.rows),
            format_func=lambda one: one.replace("_", " "),
            key=f"plan rows {number}",
        )
    ranks = question.ranks if rank == min(question.ranks) else (int(rank),)
    return {"context": context, "lora_r": list(ranks), "tool": tool, "rows": rows}
