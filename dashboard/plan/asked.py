"""The question of the page Plan: in its URL, in the session, and in its form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import streamlit as st

from dashboard.state import models
from estimator import (
    Candidates,
    Question,
    candidates,
    catalog,
    question_object,
    question_of,
    question_of_text,
)

KEY = "plan"
"""The question in the URL, as one JSON object."""
LONGEST = 8192
"""Maximum characters of a question in a URL. Our choice, above what servers accept."""
FIRST: Mapping[str, object] = {
    "model": ["mistralai/Mistral-7B-v0.1"],
    "cards": [
        {"gpu": "A100-SXM4-80GB", "most": 8},
        {"gpu": "H100-SXM5-80GB", "most": 8},
        {"gpu": "L40S", "most": 4},
        {"gpu": "GeForce RTX 4090", "most": 2},
    ],
    "lengths": {"mean": 600, "max": 1024},
    "methods": ["lora", "qlora"],
}
"""The initial question: the example's model and training examples, on commonly rented cards."""
Row = Mapping[str, Any]
"""A row of the table of cards."""


def current() -> Question:
    """The question in the URL, else the session's, else the initial one. A changed URL is read again."""
    state = st.session_state
    given = st.query_params.get(KEY)
    if given and given != state.get("plan text"):
        _take(given)
    elif "plan text" not in state:
        _take(text_of(question_of(FIRST)))
    if st.query_params.get(KEY) != state["plan text"]:
        st.query_params[KEY] = state["plan text"]
    asked: Question = state["plan question"]
    return asked


def _take(text: str) -> None:
    state = st.session_state
    try:
        question = read(text)
    except ValueError as problem:
        state["plan problem"] = f"The link's question cannot be read: {problem}"
        question = state.get("plan question") or question_of(FIRST)
    state["plan question"] = question
    state["plan text"] = text_of(question)
    state["plan round"] = state.get("plan round", 0) + 1
    if st.query_params.get(KEY) == text:
        st.query_params[KEY] = state["plan text"]


def ask(question: Question) -> None:
    """Sets the page's question."""
    st.session_state["plan question"] = question
    st.session_state["plan text"] = st.query_params[KEY] = text_of(question)


def read(text: str) -> Question:
    """A question from its JSON text; ``ValueError`` with one sentence if the text is invalid."""
    if len(text) > LONGEST:
        raise ValueError(f"it has more than {LONGEST:,} characters.")
    return question_of_text(text, "the link")


def text_of(question: Question) -> str:
    """A question as compact JSON.

    >>> read(text_of(question_of(FIRST))) == question_of(FIRST)
    True
    """
    return json.dumps(question_object(question), separators=(",", ":"))


@lru_cache(maxsize=4)
def _answered(text: str, known: tuple[str, ...]) -> Candidates:
    del known  # only a cache key: the Hub may have returned a model since
    bar = st.progress(0.0, "Computing every setup.")

    def show(share: float) -> None:
        bar.progress(share, "Computing every setup.")

    found = candidates(read(text), models.known(), show)
    bar.empty()
    return found


def answered(question: Question) -> Candidates | str:
    """Every setup of a question, or its refusal. Cached independently of deadline and budget."""
    unlimited = replace(question, deadline_hours=None, budget_usd=None)
    try:
        return _answered(text_of(unlimited), tuple(sorted(models.known())))
    except ValueError as refusal:
        return str(refusal)


def card_rows(question: Question) -> list[dict[str, object]]:
    """The cards of a question as rows of a table."""
    return [
        {
            "GPU": it.gpu.name,
            "At most": it.most,
            "Owned": it.is_owned,
            "Dollars per GPU-hour": it.usd_per_gpu_hour,
            "Provider": it.provider or None,
        }
        for it in question.offers
    ]


NOT_IN_THE_TABLE = ("region", "commitment", "gpus_per_node")
"""Keys of a card without a column in the table. A row takes them from the card with its name and provider."""


def cards_of(
    rows: Sequence[Row], kept: Sequence[Mapping[str, object]] = ()
) -> list[dict[str, object]]:
    """The question's cards from the rows of the table; rows without a name are skipped.

    ``kept``: the cards from which the table was made.

    >>> cards_of([{"GPU": "L4", "At most": 2, "Owned": False, "Dollars per GPU-hour": None, "Provider": None}])
    [{'gpu': 'L4', 'most': 2}]
    """
    found = []
    for row in rows:
        if not row["GPU"]:
            continue
        card: dict[str, object] = {"gpu": row["GPU"], "most": int(row["At most"] or 8)}
        card |= {"owned": True} if row["Owned"] else {}
        price = row["Dollars per GPU-hour"]
        card |= {} if price is None else {"usd_per_gpu_hour": float(price)}
        card |= {"provider": str(row["Provider"])} if row["Provider"] else {}
        same = (
            it for it in kept if all(it.get(key) == card.get(key) for key in ("gpu", "provider"))
        )
        card |= {key: it for key, it in next(same, {}).items() if key in NOT_IN_THE_TABLE}
        found.append(card)
    return found


def model_options() -> list[str]:
    """Models that a question can name: those in the catalogue and in the session."""
    return list(dict.fromkeys([*catalog.models(), *models.known()]))
