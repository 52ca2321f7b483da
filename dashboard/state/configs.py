"""The visitor's own config: dropped files or pasted text, read as one run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import streamlit as st

from dashboard.state import actions, models, opening, question, session
from estimator import (
    Estimate,
    Imported,
    OwnError,
    catalog,
    contract,
    defaults_of,
    error_in,
    explained_by,
    files_in,
    read_files,
)

PASTED = "the pasted text"
KEPT = (
    "num_train_examples",
    "mean_tokens_per_example",
    "usd_per_gpu_hour",
    "mfu",
    "pace",
    "pace_from",
    "pace_shares",
)
"""Keys that no config contains; they keep their values on the page."""


@dataclass(frozen=True, slots=True)
class OwnRun:
    """An imported run."""

    given: Mapping[str, str | bytes]
    """What was dropped or pasted."""
    files: Mapping[str, str | bytes]
    """The run's files in it."""
    found: Imported
    problems: tuple[str, ...]
    """Sentences on parts that the page cannot show."""
    waits_for: str = ""
    """The model requested from the Hub. The adapters' modules depend on it."""


def current() -> OwnRun | None:
    """The most recently imported run."""
    run: OwnRun | None = st.session_state.get("own run")
    return run


def problem() -> str:
    """Why the last import failed; empty if it succeeded."""
    said: str = st.session_state.get("own run problem", "")
    return said


def error() -> OwnError | None:
    """The out-of-memory message that was pasted last."""
    found: OwnError | None = st.session_state.get("own error")
    return found


def explained(answer: Estimate) -> Sequence[Mapping[str, Any]]:
    """What would explain the message, in the setup that it was pasted with: changes of one key."""
    state = st.session_state
    if state.get("own error explained") is None:
        state["own error explained"] = explained_by(state["own error"], answer)
    changes: Sequence[Mapping[str, Any]] = state["own error explained"]
    return changes


def forget_error() -> None:
    """Removes the message from the page; the setup stays."""
    st.session_state["own error"] = None


def take_pasted() -> None:
    """Imports the pasted text, or what stands in it of a run."""
    _take({PASTED: st.session_state.get("run text") or ""})


def take_dropped() -> None:
    """Imports the dropped files."""
    dropped = st.session_state.get("run files")
    if dropped:
        _take({file.name: file.getvalue() for file in dropped})


def forget() -> None:
    """Removes the lists from the page; the setup stays."""
    st.session_state["own run"] = None
    st.session_state["own run problem"] = ""


def take_defaults_of(tool: str) -> None:
    """Sets every key to a tool's default, except the keys of the question itself."""
    reading = question.reading()
    assert reading.model is not None
    given = contract.write_fields(reading.model, reading.gpu, reading.setup)
    asked = {key: reading.setup.value(key) for key in contract.QUESTION if key in contract.BY_NAME}
    asked |= {key: given[key] for key in ("model", "gpu") if key in given}
    found = {one.key: one.value for one in defaults_of(tool, asked, reading.model)}
    _put({**found, **asked})


def follow() -> None:
    """Imports a config again when the Hub has returned its model."""
    run = current()
    if run is not None and run.waits_for and run.waits_for == st.session_state.get("in use"):
        _take(run.given)


def _take(given: Mapping[str, str | bytes]) -> None:
    """Imports the files, those in a message, and an out-of-memory message. If there is none of it, the page does not
    change.
    """
    state = st.session_state
    failed = next(filter(None, map(_error, given.values())), None)
    state["own error"] = failed and failed.error
    state["own error explained"] = None
    card = {"gpu": failed.card} if failed and failed.card else {}
    try:
        files = {
            name: text for whole in given for name, text in files_in(given[whole], whole).items()
        }
        found = read_files(files, models.known())
    except ValueError as said:
        state["own run problem"] = "" if failed else str(said)
        if card:
            actions.put(card)
        return
    state["own run problem"] = ""
    wanted = found.setup.get("model")
    fields = {key: value for key, value in found.rows.items() if key != "model"} | card
    waits_for = ""
    if isinstance(wanted, str) and models.is_known(wanted):
        fields["model"] = wanted
    elif isinstance(wanted, str) and "model" not in found.asked:
        waits_for = wanted
    problems = _put({**fields, **{key: session.value(key) for key in KEPT if key not in fields}})
    state["own run"] = OwnRun(given, files, found, problems, waits_for)
    if waits_for:
        models.ask(waits_for)
    elif isinstance(wanted, Mapping):
        models.take_text(json.dumps(dict(wanted)))


class _Failed(NamedTuple):
    error: OwnError
    card: str
    """The card to choose; empty if the page's own is as large, or none is."""


def _error(text: str | bytes) -> _Failed | None:
    """The out-of-memory message in a text, with its card."""
    plain = text if isinstance(text, str) else text.decode(errors="replace")
    found = error_in(plain)
    if found is None:
        return None
    if not found.capacity or not (cards := catalog.cards_with(found.capacity, plain)):
        return _Failed(found, "")
    is_named = cards[0] != catalog.cards_with(found.capacity)[0]
    keeps = found.is_of(question.reading().gpu) and not is_named
    return _Failed(found, "" if keeps else cards[0].name)


def _put(fields: Mapping[str, object]) -> tuple[str, ...]:
    """Sets the page to a setup in the contract's format. Returns sentences on what could not be set."""
    state = st.session_state
    known = {**models.known(), **models.in_use()}
    whole = {"model": models.name(), "gpu": question.as_fact(state["gpu"]), **fields}
    read = contract.read_setup(whole, known)
    values = opening.values_of(read)
    for key in ("model", "gpu"):
        if key not in fields:
            values.pop(key)
    state["address_problems"] = []
    models.forget_question()
    actions.put(values)
    return read.problems
