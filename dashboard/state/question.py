"""The setup that the widgets ask about, read through the contract, and its estimate."""

from __future__ import annotations

import json
from dataclasses import replace

import streamlit as st

from dashboard.state import models, session
from estimator import Estimate, contract, estimate


def as_option(fact: object) -> str:
    """A model or GPU as a select box offers it: by name, or one's own as its JSON."""
    return fact if isinstance(fact, str) else json.dumps(fact, separators=(",", ":"))


def as_fact(option: object) -> object:
    """An option of a select box as the contract reads it."""
    return json.loads(option) if isinstance(option, str) and option.startswith("{") else option


def _asked() -> dict[str, object]:
    state = st.session_state
    asked = {**session.kept(), **{key: state[key] for key in session.BOUND if key in state}}
    return asked | {"model": models.name(), "gpu": as_fact(state["gpu"])}


def reading() -> contract.Reading:
    """What the widgets say, through the contract, with the problems of the address in front."""
    now = contract.read_setup(_asked(), models.in_use())
    said = (*st.session_state["address_problems"], *now.problems)
    return replace(now, problems=tuple(dict.fromkeys(said)))


def answer() -> Estimate | str:
    """The estimate of what the widgets say, or the sentence that refuses it."""
    now = reading()
    if now.model is None:
        return " ".join(now.problems)
    try:
        return estimate(now.model, now.gpu, now.setup)
    except ValueError as refusal:
        return str(refusal)
