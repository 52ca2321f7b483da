"""The visitor's own config: dropped files or pasted text, read as one run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import streamlit as st

from dashboard.state import actions, models, opening, question, session
from estimator import Imported, contract, defaults_of, files_in, read_files

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
    """An imported run and its files."""

    files: Mapping[str, str | bytes]
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
        _take(run.files)


def _take(files: Mapping[str, str | bytes]) -> None:
    """Imports the files, and those in a message, and sets the page to their run. If they are invalid, the page does
    not change.
    """
    state = st.session_state
    try:
        files = {
            name: text for given in files for name, text in files_in(files[given], given).items()
        }
        found = read_files(files, models.known())
    except ValueError as said:
        state["own run problem"] = str(said)
        return
    state["own run problem"] = ""
    wanted = found.setup.get("model")
    fields = {key: value for key, value in found.rows.items() if key != "model"}
    waits_for = ""
    if isinstance(wanted, str) and models.is_known(wanted):
        fields["model"] = wanted
    elif isinstance(wanted, str) and "model" not in found.asked:
        waits_for = wanted
    problems = _put({**fields, **{key: session.value(key) for key in KEPT if key not in fields}})
    state["own run"] = OwnRun(files, found, problems, waits_for)
    if waits_for:
        models.ask(waits_for)
    elif isinstance(wanted, Mapping):
        models.take_text(json.dumps(dict(wanted)))


def _put(fields: Mapping[str, object]) -> tuple[str, ...]:
    """Sets the page to a setup in the contract's format. Returns sentences on what could not be set."""
    state = st.session_state
    known = {**models.known(), **models.in_use()}
    whole = {"model": models.name(), "gpu": question.as_fact(state["gpu"]), **fields}
    read = contract.read_setup(whole, known)
    values = opening.values_of(read)
    if "model" not in fields:
        values.pop("model")
    values.pop("gpu")
    state["address_problems"] = []
    models.forget_question()
    actions.put(values)
    return read.problems
