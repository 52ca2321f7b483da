"""What a click does: it sets keys of the setup, can be undone, and leads back to the example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import streamlit as st

from dashboard.address.example import EXAMPLE
from dashboard.state import session

DEEPEST = 50
"""Clicks that can be undone: ours, more than anyone remembers."""


def take(keys: Mapping[str, object]) -> None:
    """Set some keys and remember what they were; the whole page follows, as its widgets must."""
    _remember(keys)
    session.put(keys)
    st.rerun()


def _remember(keys: Iterable[str]) -> None:
    state = st.session_state
    before = {key: session.value(key) for key in keys}
    state["undo"] = [*state.get("undo", []), before][-DEEPEST:]


class Proposal(NamedTuple):
    """Keys that a click sets, and what is said of them."""

    name: str
    html: str
    keys: Mapping[str, object]
    title: str = ""
    """How the name is spoken; empty: as it is."""


def cards(name: str, verb: str, proposals: Iterable[Proposal]) -> None:
    """Cards, each of which sets its keys wherever it is clicked; one that is already so rests.

    Each is a text and, over it in the same cell of a grid, a button: two elements, since the browser draws every
    element again at each move. A button's label stays as it is while numbers move: a label is Markdown, and reading
    Markdown anew costs more than drawing the card.
    """
    with st.container(key=f"cards {name}"):
        for it in proposals:
            st.html(f'<p class="hr-card">{it.html}</p>')
            st.button(
                f"{verb} {it.title or it.name}",
                on_click=take,
                args=(it.keys,),
                disabled=all(session.value(key) == value for key, value in it.keys.items()),
                key=f"open {it.name}",
                width="stretch",
            )


def _undo() -> None:
    state = st.session_state
    if state.get("undo"):
        *state["undo"], before = state["undo"]
        session.put(before)


def _reset() -> None:
    state = st.session_state
    touched = {*session.BOUND, *session.kept()}
    keys = {**{key: getattr(session.DEFAULT, key, None) for key in touched}, **EXAMPLE}
    _remember(keys)
    state["address_problems"] = []
    state["asking"] = state["trouble"] = None
    session.put(keys)


def draw() -> None:
    """Undo and reset, always in the same place."""
    with st.container(horizontal=True, key="actions", gap="small"):
        st.button(
            "Undo",
            on_click=_undo,
            disabled=not st.session_state.get("undo"),
            key="undo last",
            help="Takes back the last click on a card, a remedy, the map or a GPU.",
        )
        st.button(
            "Reset",
            on_click=_reset,
            key="reset to example",
            help="Back to the example: Mistral-7B, full fine-tuning, one A100 80GB.",
        )
