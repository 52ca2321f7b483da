"""The setup in the session, by the contract's keys.

A key whose widget is always drawn is stored in that widget. The other keys are plain values. Their widgets, if any, are
drawn only while their expander is open, so a closed expander costs the browser nothing when a slider moves.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from dashboard.address import unbound
from dashboard.state import heard
from estimator import contract

BOUND = (
    "model",
    "gpu",
    *(key.name for key in contract.KEYS if key.section is contract.Section.ALWAYS),
)
"""Keys whose widget is always drawn, stored under the same name and bound to the URL."""
READING = "reading"
"""Where ``question`` caches the setup as read by the contract."""


def unbound_values() -> dict[str, object]:
    """Values of the keys without a bound widget, if they differ from the contract's defaults."""
    values: dict[str, object] = st.session_state["unbound"]
    return values


def value(key: str) -> object:
    """The current value of a key; an enum member as its text."""
    if key in BOUND:
        return st.session_state[key]
    return unbound_values().get(key, _plain(contract.default_of(key)))


def put(keys: Mapping[str, object]) -> None:
    """Sets some keys in the session and the URL. Adds a step to a slider for a new value."""
    state = st.session_state
    state[READING] = None
    for key, given in keys.items():
        if key in BOUND:
            state[key] = _plain(given)
        elif given == contract.default_of(key):
            unbound_values().pop(key, None)
        else:
            unbound_values()[key] = _plain(given)
        heard.will_set(key, _plain(given))
        if key == "model":
            state["in use"] = given
        if key in state["steps"] and given not in state["steps"][key]:
            state["steps"][key] = tuple(sorted({*state["steps"][key], given}))
    unbound.hold(spelled(keys))


def chosen(key: str) -> object:
    """The value in a key's box; the key's own if the browser sent the box as it was before our last answer."""
    return value(key) if heard.is_late(key) else st.session_state[f"{key} box"]


def spelled(keys: Mapping[str, object]) -> dict[str, list[str]]:
    """URL strings of the keys that no widget writes; none for a default, unless the GPU's name implies another."""
    gpu = keys.get("gpu", st.session_state.get("gpu"))
    implied = contract.gpu_keys(gpu) if isinstance(gpu, str) else {}
    usual = {key for key, given in keys.items() if given == contract.default_of(key)}
    return {
        key: [] if key in usual - implied.keys() else unbound.spelled(_plain(given))
        for key, given in keys.items()
        if key not in BOUND
    }


def _plain(given: object) -> object:
    return str(given) if isinstance(given, str) else given
