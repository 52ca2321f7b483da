"""The setup as a session holds it, key by key, in the terms of the contract.

A key whose widget is always drawn is held by that widget. The others are plain values; their widgets, where they
have one, are drawn only while their expander is open: a closed expander costs the browser nothing when a slider moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import streamlit as st

from dashboard.address import unbound
from estimator import contract

BOUND = (
    "model",
    "gpu",
    *(key.name for key in contract.KEYS if key.section is contract.Section.ALWAYS),
)
"""Keys whose widget is always drawn, under the key itself, bound to the address."""


def unbound_values() -> dict[str, object]:
    """Values of the keys that no bound widget holds, where they differ from the contract's defaults."""
    values: dict[str, object] = st.session_state["unbound"]
    return values


def value(key: str) -> object:
    """The current value of a key; a choice as its text."""
    if key in BOUND:
        return st.session_state[key]
    return unbound_values().get(key, _plain(getattr(contract.DEFAULT, key)))


def put(keys: Mapping[str, object]) -> None:
    """Set some keys, here and in the address. A slider gains a step for a value that it lacked."""
    state = st.session_state
    for key, given in keys.items():
        if key in BOUND:
            state[key] = _plain(given)
        elif given == getattr(contract.DEFAULT, key):
            unbound_values().pop(key, None)
        else:
            unbound_values()[key] = _plain(given)
        if key == "model":
            state["in use"] = given
        if key in state["steps"] and given not in state["steps"][key]:
            state["steps"][key] = tuple(sorted({*state["steps"][key], given}))
    unbound.hold(spelled(keys))


def spelled(keys: Mapping[str, object]) -> dict[str, list[str]]:
    """The keys that no widget writes, as the address spells them; a default has no text."""
    return {
        key: [] if given == getattr(contract.DEFAULT, key) else unbound.spelled(_plain(given))
        for key, given in keys.items()
        if key not in BOUND
    }


def _plain(given: object) -> object:
    return str(given) if isinstance(given, StrEnum) else given
