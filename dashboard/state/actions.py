"""Changes to the setup by clicks, with undo."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import streamlit as st

from dashboard.address.example import EXAMPLE
from dashboard.state import session
from estimator import contract

DEEPEST = 50
"""Maximum clicks that can be undone. Our choice."""


def take(keys: Mapping[str, object]) -> None:
    """Sets some keys, stores their previous values, and reruns the whole page so that its widgets follow."""
    put(keys)
    st.rerun()


def put(keys: Mapping[str, object]) -> None:
    """Sets some keys and stores their previous values. Call before any widget is drawn."""
    _remember(keys)
    session.put(keys)


def _remember(keys: Iterable[str]) -> None:
    state = st.session_state
    before = {key: session.value(key) for key in keys}
    state["undo"] = [*state.get("undo", []), before][-DEEPEST:]


def undo() -> None:
    """Undoes the last click."""
    state = st.session_state
    if state.get("undo"):
        *state["undo"], before = state["undo"]
        session.put(before)


def reset() -> None:
    """Resets to the example. This can be undone."""
    state = st.session_state
    touched = {*session.BOUND, *session.unbound_values()}
    keys = {**{key: contract.default_of(key) for key in touched}, **EXAMPLE}
    _remember(keys)
    state["address_problems"] = []
    state["asking"] = state["trouble"] = None
    session.put(keys)
