"""What a click sets in the setup, and how it is undone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import streamlit as st

from dashboard.address.example import EXAMPLE
from dashboard.state import session
from estimator import contract

DEEPEST = 50
"""Clicks that can be undone: ours, more than anyone remembers."""


def take(keys: Mapping[str, object]) -> None:
    """Set some keys and remember what they were; the whole page follows, as its widgets must."""
    put(keys)
    st.rerun()


def put(keys: Mapping[str, object]) -> None:
    """Set some keys and remember what they were, before any widget is drawn."""
    _remember(keys)
    session.put(keys)


def _remember(keys: Iterable[str]) -> None:
    state = st.session_state
    before = {key: session.value(key) for key in keys}
    state["undo"] = [*state.get("undo", []), before][-DEEPEST:]


def undo() -> None:
    """Take the last click back."""
    state = st.session_state
    if state.get("undo"):
        *state["undo"], before = state["undo"]
        session.put(before)


def reset() -> None:
    """Go back to the example; this can be undone."""
    state = st.session_state
    touched = {*session.BOUND, *session.unbound_values()}
    keys = {**{key: getattr(contract.DEFAULT, key, None) for key in touched}, **EXAMPLE}
    _remember(keys)
    state["address_problems"] = []
    state["asking"] = state["trouble"] = None
    session.put(keys)
