"""The setup in the widgets, as read by the contract, and its estimate."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dashboard.state import models, session
from estimator import Estimate, Model, contract, estimate


def as_option(fact: object) -> str:
    """A model or GPU as an option of a select box: its name, or the JSON of a custom one."""
    return fact if isinstance(fact, str) else json.dumps(fact, separators=(",", ":"))


def as_fact(option: object) -> object:
    """An option of a select box in the contract's format."""
    return json.loads(option) if isinstance(option, str) and option.startswith("{") else option


def _asked() -> dict[str, object]:
    state = st.session_state
    asked = dict(session.unbound_values())
    for key in session.BOUND:
        with suppress(KeyError):
            asked[key] = state[key]
    return asked | {"model": models.name(), "gpu": as_fact(asked["gpu"])}


def reading() -> contract.Reading:
    """The widgets' values as read by the contract. The URL's problems come first.

    Every part of the page calls this. The result is cached until a widget, the model or the URL changes.
    """
    return _current().reading


def are_set(proposed: Iterable[Mapping[str, object]]) -> list[bool]:
    """For each of some keys with values, whether the setup has them."""
    now = _current().asked
    return [
        all(now.get(key, contract.default_of(key)) == value for key, value in keys.items())
        for keys in proposed
    ]


def _current() -> _Read:
    run, last = _fragments_run(), st.session_state.get(session.READING)
    if isinstance(last, _Read) and run is not None and last.run is run:
        return last
    asked, known = _asked(), models.in_use()
    said = list(st.session_state["address_problems"])
    if isinstance(last, _Read) and last.still_holds(asked, known, said):
        last = last._replace(run=run)
    else:
        now = _read(asked, known)
        problems = tuple(dict.fromkeys((*said, *now.problems)))
        last = _Read(asked, known, said, replace(now, problems=problems), run)
    st.session_state[session.READING] = last
    return last


def _fragments_run() -> list[str] | None:
    """A list that identifies the run if only fragments run: then no widget changes, and the session is read once.

    Reading the session takes most of the time of an unchanged answer.
    """
    context = get_script_run_ctx()
    return None if context is None else context.fragment_ids_this_run


class _Read(NamedTuple):
    """The inputs and the result of the last reading."""

    asked: Mapping[str, object]
    known: Mapping[str, Model]
    said: list[str]
    reading: contract.Reading
    run: list[str] | None
    """The run of fragments in which the inputs were last compared."""

    def still_holds(
        self, asked: Mapping[str, object], known: Mapping[str, Model], said: list[str]
    ) -> bool:
        """Whether the inputs are unchanged. Equal models may be written differently."""
        return (asked, said) == (self.asked, self.said) and {
            name: id(model) for name, model in known.items()
        } == {name: id(model) for name, model in self.known.items()}


def answer(of: contract.Reading | None = None) -> Estimate | str:
    """The estimate of the setup in the widgets, or the sentence that refuses it. ``of``: that setup, if read before."""
    return _answer(of or reading(), _current().asked)


def answer_with(keys: Mapping[str, object]) -> Estimate | str:
    """The answer with some keys at other values."""
    asked = {**_current().asked, **keys}
    return _answer(_read(asked, models.in_use()), asked)


def _read(asked: Mapping[str, object], known: Mapping[str, Model]) -> contract.Reading:
    """Reads a setup once for all visitors; a slider's row has read each step before the slider is released."""
    return _read_text(json.dumps(asked, sort_keys=True), tuple(known.items()))


@lru_cache(maxsize=1024)
def _read_text(asked: str, known: tuple[tuple[str, Model], ...]) -> contract.Reading:
    return contract.read_setup(json.loads(asked), dict(known))


def all_but(left_out: Mapping[str, Collection[str]]) -> dict[str, tuple[object, ...]]:
    """For each name, all inputs except its keys, hashable. Equal as long as only those change."""
    now = _current()
    inputs = [(name, repr(value)) for name, value in sorted(now.asked.items())]
    return {
        name: (now.reading.model, *(one for one in inputs if one[0] not in keys))
        for name, keys in left_out.items()
    }


MEND: Mapping[str, object] = {"save_only_model": True}
"""What a setup whose ranks divide layers is refused without."""


def _answer(read: contract.Reading, asked: Mapping[str, object]) -> Estimate | str:
    if read.model is None or read.setup.mesh.tp_size != asked.get("tp_size", 1):
        return " ".join(read.problems)
    try:
        return estimate(read.model, read.gpu, read.setup)
    except ValueError as refusal:
        return str(refusal)
