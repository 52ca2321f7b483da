"""The setup that the widgets ask about, read through the contract, and its estimate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import streamlit as st

from dashboard.state import models, session
from estimator import Estimate, Model, contract, estimate


def as_option(fact: object) -> str:
    """A model or GPU as a select box offers it: by name, or one's own as its JSON."""
    return fact if isinstance(fact, str) else json.dumps(fact, separators=(",", ":"))


def as_fact(option: object) -> object:
    """An option of a select box as the contract reads it."""
    return json.loads(option) if isinstance(option, str) and option.startswith("{") else option


def _asked() -> dict[str, object]:
    state = st.session_state
    asked = {
        **session.unbound_values(),
        **{key: state[key] for key in session.BOUND if key in state},
    }
    return asked | {"model": models.name(), "gpu": as_fact(state["gpu"])}


def reading() -> contract.Reading:
    """What the widgets say, through the contract, with the problems of the address in front.

    Every part of the page asks; it is read once, until a widget, the model or the address says something else.
    """
    asked, known = _asked(), models.in_use()
    said = list(st.session_state["address_problems"])
    last: _Read | None = st.session_state.get("reading")
    if last is None or not last.still_holds(asked, known, said):
        now = contract.read_setup(asked, known)
        problems = tuple(dict.fromkeys((*said, *now.problems)))
        last = st.session_state["reading"] = _Read(
            asked, known, said, replace(now, problems=problems)
        )
    return last.reading


class _Read(NamedTuple):
    """What was asked when it was read last, and what it said."""

    asked: Mapping[str, object]
    known: Mapping[str, Model]
    said: list[str]
    reading: contract.Reading

    def still_holds(
        self, asked: Mapping[str, object], known: Mapping[str, Model], said: list[str]
    ) -> bool:
        """Whether the same is asked; of equal models one may have been written otherwise."""
        return (asked, said) == (self.asked, self.said) and {
            name: id(model) for name, model in known.items()
        } == {name: id(model) for name, model in self.known.items()}


def answer() -> Estimate | str:
    """The estimate of what the widgets say, or the sentence that refuses it."""
    return _answer(reading())


def answer_at(key: str, value: object) -> Estimate | str:
    """The same, were one key at another value."""
    return _answer(contract.read_setup({**_asked(), key: value}, models.in_use()))


def all_but(key: str) -> tuple[object, ...]:
    """What is asked but for one key; hashable, and equal for as long as only that key changes."""
    asked = _asked()
    return reading().model, *((name, repr(asked[name])) for name in sorted(asked) if name != key)


def _answer(read: contract.Reading) -> Estimate | str:
    if read.model is None:
        return " ".join(read.problems)
    try:
        return estimate(read.model, read.gpu, read.setup)
    except ValueError as refusal:
        return str(refusal)
