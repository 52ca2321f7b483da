"""What a click does: it sets keys of the setup, can be undone, and leads back to the example."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import streamlit as st

from dashboard.example import EXAMPLE
from estimator.specs import TrainingSetup

DEFAULT = TrainingSetup()
DEEPEST = 50
"""Clicks that can be undone: ours, more than anyone remembers."""


def _now(key: str) -> object:
    """The value of a key: its widget's, or what the setup carries without one."""
    state = st.session_state
    if key in state["bound"] or not hasattr(DEFAULT, key):
        return state.get(key)
    return state["passengers"].get(key, getattr(DEFAULT, key))


def apply(keys: Mapping[str, object]) -> None:
    """Set some keys. A slider offers a value that it did not have from now on."""
    state = st.session_state
    for key, value in keys.items():
        if key not in state["bound"] and hasattr(DEFAULT, key):
            state["passengers"] = {**state["passengers"], key: value}
            st.query_params[key] = str(value)
            continue
        state[key] = str(value) if isinstance(value, StrEnum) else value
        if key == "model":
            state["in use"] = value
        if key in state["steps"] and value not in state["steps"][key]:
            state["steps"][key] = tuple(sorted({*state["steps"][key], value}))


def take(keys: Mapping[str, object]) -> None:
    """Set some keys and remember what they were; the whole page follows, as its widgets must."""
    state = st.session_state
    before = {key: _now(key) for key in keys}
    state["undo"] = [*state.get("undo", []), before][-DEEPEST:]
    apply(keys)
    st.rerun()


def card(html: str, label: str, name: str, keys: Mapping[str, object]) -> None:
    """A card that opens a proposal wherever it is clicked; it rests where the proposal is already open.

    The button lies unseen over the text. Its label stays as it is while numbers move: a label is Markdown, and reading
    Markdown anew costs the browser more than drawing the card.
    """
    is_open = all(_now(key) == value for key, value in keys.items())
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
        apply(before)


def _reset() -> None:
    state = st.session_state
    default = TrainingSetup()
    keys = {key: getattr(default, key) if hasattr(default, key) else None for key in state["bound"]}
    keys["lora_target_modules"] = [default.lora_target_modules]
    keys |= EXAMPLE
    before = {key: state[key] for key in keys}
    state["undo"] = [*state.get("undo", []), before][-DEEPEST:]
    state["passengers"] = {}
    state["address_problems"] = []
    state["asking"] = state["trouble"] = None
    apply(keys)


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
