"""What a click does: it sets keys of the setup, can be undone, and leads back to the example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import streamlit as st

from dashboard import session
from dashboard.example import EXAMPLE

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


def card(html: str, label: str, name: str, keys: Mapping[str, object]) -> None:
    """A card that opens a proposal wherever it is clicked; it rests where the proposal is already open.

    The button lies unseen over the text. Its label stays as it is while numbers move: a label is Markdown, and reading
    Markdown anew costs the browser more than drawing the card.
    """
    is_open = all(session.value(key) == value for key, value in keys.items())
    with st.container(key=f"card {'open ' * is_open}{name}"):
        st.html(html)
        st.button(
            label,
            on_click=take,
            args=(keys,),
            disabled=is_open,
            key=f"open {name}",
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
