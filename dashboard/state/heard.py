"""Which of the server's answers the browser has drawn.

A browser sends all its widgets with each change. A change that leaves before the last answer arrives brings the boxes
that this answer sets as they were before, as if the visitor had set them back. So each answer that sets boxes has a
number, which the browser sends with every change in a hidden field: a box that a later answer sets is no choice.

Boxes are set while they are drawn: what a callback sets before it reruns fragments, Streamlit 1.67 sends to no browser.
"""

from __future__ import annotations

import streamlit as st

FIELD = "heard"
"""The hidden field, and where the session has the number that the browser sent."""


def will_set(key: str, value: object) -> None:
    """Notes that the next answer sets the box of a key, if it shows another value or is late."""
    state = st.session_state
    if key in _set_by() and (is_late(key) or state.get(f"{key} box", value) != value):
        _set_by()[key] = state.get("last heard of", 0) + 1


def set_box(key: str, value: object) -> None:
    """Sets the box of a key. Call before it is drawn."""
    state, name = st.session_state, f"{key} box"
    if name not in state:
        _set_by()[key] = 0
    will_set(key, value)
    if is_late(key) or name not in state:
        state[name] = value


def is_late(key: str) -> bool:
    """Whether the browser has not drawn the answer that sets the box of a key."""
    return _set_by().get(key, 0) > int(st.session_state.get(FIELD, 0))


def draw() -> None:
    """Draws the hidden field. Call last in the fragment of the boxes."""
    state = st.session_state
    now = state["last heard of"] = max(_set_by().values(), default=0)
    if state.get(FIELD, 0) != now:
        state[FIELD] = now
    st.number_input("Answers drawn", 0, None, now, key=FIELD, label_visibility="collapsed")


def _set_by() -> dict[str, int]:
    """For each key with a box, the number of the answer that last set it; 0 as it was first drawn."""
    numbers: dict[str, int] = st.session_state.setdefault("boxes set by", {})
    return numbers
