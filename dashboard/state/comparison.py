"""The scenarios that a visitor compares, stored only in the URL and the session.

The URL is the document. It is read at the start of a visit and when the visitor goes back or forward or follows a link.
If a page's URL lacks the comparison, the session restores it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast
from urllib.parse import quote_plus, urlencode

import streamlit as st

from dashboard.address import unbound
from dashboard.state import actions, models
from dashboard.words import key_words, marks, terms
from estimator import LARGEST, Estimate, Gpu, Model, TrainingSetup, contract

SCENARIOS, SETUP = "s", "setup"
NUMBERS: Mapping[str, contract.Kind] = {
    "context": contract.WholeNumber(LARGEST["max_length"], nullable=True),
    "within": contract.Number(1_000_000, open_low=True, nullable=True),
    "present": contract.WholeNumber(contract.MOST_SCENARIOS, nullable=True),
}
KEYS = (SCENARIOS, SETUP, "v", *NUMBERS)
"""URL keys of a comparison: its scenarios, the estimate's setup, the contract's version, and the page's options.
"""
BASE = "Setup"
Address = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Document:
    """A comparison as stored in the URL."""

    scenarios: tuple[contract.Scenario, ...] = ()
    setup: contract.Scenario | None = None
    """The setup of the page Estimate, while another page is shown."""
    context: int | None = None
    """One context that replaces the context of all scenarios."""
    within: float | None = None
    """Hours within which a run must finish."""
    present: int | None = None
    """Number of the current scenario in presentation mode, from 1; None: not in presentation mode."""


def document() -> Document:
    """The current comparison."""
    kept: Document = st.session_state.setdefault("compared", Document())
    return kept


def scenarios() -> tuple[contract.Scenario, ...]:
    """The compared scenarios, in order."""
    return document().scenarios


def problems() -> tuple[str, ...]:
    """One sentence for each part of a link or file that was dropped."""
    said: tuple[str, ...] = st.session_state.get("compared problems", ())
    return said


def follow(*, estimates: bool) -> None:
    """Reads the URL if it has changed, and updates it. Call before a page is drawn.

    ``estimates``: whether this is the page Estimate, which writes its setup to the URL under the contract's keys.
    """
    state = st.session_state
    state["on the estimate"] = estimates
    given = _given()
    if any(given.values()) and ("compared" not in state or unbound.has_been_gone_to()):
        _read(given)
    _write()


def _given() -> dict[str, tuple[str, ...]]:
    return {key: tuple(st.query_params.get_all(key)) for key in KEYS}


def _read(given: Address) -> None:
    found = contract.read_texts(given[SCENARIOS], models.known(), given["v"])
    said = list(found.problems)
    setup = contract.read_texts(given[SETUP][:1], models.known())
    said += setup.problems
    numbers: dict[str, object] = {}
    for key, kind in NUMBERS.items():
        try:
            numbers[key] = kind.read(kind.from_text(given[key][0])) if given[key] else None
        except ValueError as problem:
            said.append(f"{key} {problem}")
    beside = next(iter(setup.scenarios), document().setup)
    st.session_state["compared"] = Document(
        found.scenarios,
        beside,
        cast("int | None", numbers.get("context")),
        cast("float | None", numbers.get("within")),
        cast("int | None", numbers.get("present")),
    )
    st.session_state["compared problems"] = tuple(said)


def estimate_params() -> dict[str, list[str]]:
    """URL parameters of the estimate's setup, for a visitor whose URL lacks them."""
    setup = document().setup
    return {} if setup is None else setup_params(setup)


def setup_params(scenario: contract.Scenario) -> dict[str, list[str]]:
    """A scenario's setup as URL parameters, by the contract's keys."""
    return {key: _texts(value) for key, value in scenario.setup.items()}


def _texts(value: object) -> list[str]:
    """A value of the contract as URL strings."""
    if isinstance(value, list):
        return [str(item) for item in value]
    return [value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))]


def _write() -> None:
    """Updates the URL at most once, and only if it changes: every update adds an entry to the browser's history."""
    now = spelled()
    if now != _given():
        st.query_params.update({key: list(texts) for key, texts in now.items()})


def spelled(*, estimates: bool | None = None) -> dict[str, tuple[str, ...]]:
    """The URL's parameters, without scenarios that are too long for a link."""
    kept = document()
    if estimates is None:
        estimates = st.session_state.get("on the estimate", False)
    texts: dict[str, tuple[str, ...]] = dict.fromkeys(KEYS, ())
    texts[SCENARIOS] = _short_enough(kept.scenarios)
    if kept.setup is not None and not estimates:
        texts[SETUP] = _short_enough((kept.setup,))
    texts |= written_numbers(kept)
    if any(texts.values()):
        texts["v"] = (str(contract.VERSION),)
    return texts


def written_numbers(of: Document) -> dict[str, tuple[str, ...]]:
    """The numbers of a comparison as URL strings, with all digits."""
    values = {key: getattr(of, key) for key in NUMBERS}
    return {
        key: () if value is None else (json.dumps(value).removesuffix(".0"),)
        for key, value in values.items()
    }


def proposed_name(of: Estimate) -> str:
    """The default name of a setup; if another has it, with what differs from that one."""
    usual, kept = terms.proposed_name(of), scenarios()
    fields = contract.write_fields(of.model, of.gpu, of.setup)
    twins = (key_words.difference(fields, one.setup) for one in kept if one.name == usual)
    fuller = [
        f"{name}, {twin}"
        for twin in twins
        if twin
        for name in (usual, of.setup.adapters.method.label)
    ]
    return contract.free_name(usual, kept, *fuller)


def is_too_long(scenario: contract.Scenario) -> bool:
    """Whether a scenario's pasted config is too long for a link."""
    return not _short_enough((scenario,))


def _short_enough(scenarios: Iterable[contract.Scenario]) -> tuple[str, ...]:
    """The texts of those scenarios that are not too long for a link."""
    texts = map(contract.write_text, scenarios)
    return tuple(text for text in texts if len(quote_plus(text)) <= contract.LONGEST_WRITTEN)


def note(reading: contract.Reading) -> None:
    """Stores the setup of the page Estimate for the URLs of other pages."""
    if reading.model is not None:
        setup = _base(reading.model, reading.gpu, reading.setup)
        st.session_state["compared"] = replace(document(), setup=setup)


@lru_cache(maxsize=512)
def _base(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> contract.Scenario:
    return contract.Scenario(BASE, dict(marks.fields(model, gpu, setup)))


def put(now: Sequence[contract.Scenario]) -> None:
    """Replaces the compared scenarios, and stores the previous ones for undo."""
    state = st.session_state
    state["compared before"] = [*state.get("compared before", []), scenarios()][-actions.DEEPEST :]
    _set(scenarios=tuple(now))


def undo() -> None:
    """Undoes the last change."""
    state = st.session_state
    if state.get("compared before"):
        *state["compared before"], before = state["compared before"]
        _set(scenarios=before)


def can_undo() -> bool:
    """Whether there is a change to undo."""
    return bool(st.session_state.get("compared before"))


def turn(**keys: object) -> None:
    """Sets the page's options: ``context``, ``within``, ``present``."""
    _set(**keys)


def _set(**keys: object) -> None:
    st.session_state["compared problems"] = ()
    st.session_state["compared"] = replace(document(), **keys)  # type: ignore[arg-type]  # keys are field names
    _write()


def add(name: str, of: Estimate) -> str:
    """Adds an estimate's setup under a name. Returns a sentence on failure, else an empty string."""
    if len(scenarios()) >= contract.MOST_SCENARIOS:
        return f"A comparison holds {contract.MOST_SCENARIOS} scenarios; remove one first."
    try:
        put([*scenarios(), contract.scenario_of(name, of.model, of.gpu, of.setup)])
    except ValueError as problem:
        return str(problem)
    return ""


def rename(at: int, name: str) -> str:
    """Renames a scenario. Returns a sentence on failure, else an empty string."""
    try:
        now = list(scenarios())
        now[at] = replace(now[at], name=contract.sound_name(name))
    except ValueError as problem:
        return str(problem)
    put(now)
    return ""


def move(at: int, to: int) -> None:
    """Moves a scenario."""
    now = list(scenarios())
    now.insert(to, now.pop(at))
    put(now)


def duplicate(at: int) -> None:
    """Inserts a copy of a scenario after it."""
    now = list(scenarios())
    again = replace(now[at], name=contract.free_name(now[at].name, now))
    put([*now[: at + 1], again, *now[at + 1 :]])


def remove(at: int) -> None:
    """Removes a scenario."""
    now = list(scenarios())
    del now[at]
    put(now)


def load(text: bytes) -> None:
    """Loads the scenarios of a file. An invalid file changes nothing and is reported in one sentence."""
    try:
        found: contract.ReadScenarios = contract.read_file(text, models.known())
    except ValueError as problem:
        st.session_state["compared problems"] = (str(problem),)
        return
    put(found.scenarios)
    if found.setup is not None:
        st.session_state["compared"] = replace(
            document(), setup=contract.Scenario(BASE, found.setup)
        )
    st.session_state["compared problems"] = found.problems


def ask_for_models() -> tuple[bool, dict[str, str]]:
    """Asks the Hub for unknown models. Returns whether answers are pending, and the status of each."""
    return models.ask_for(scenario.setup.get("model") for scenario in scenarios())


def params(*, estimates: bool) -> dict[str, list[str]]:
    """The parameters of a link to a page."""
    return {key: list(texts) for key, texts in spelled(estimates=estimates).items() if texts}


def query() -> str:
    """The query of the comparison's URL, without the question mark."""
    return urlencode(params(estimates=False), doseq=True)
