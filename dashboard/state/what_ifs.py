"""A what-if applies to one model and method. With another it ends, and the page says so."""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st

from dashboard.state import session
from dashboard.words import terms
from estimator import Method, contract

KEY = "optim_state_dtype"
"""The only key whose value no tool can run."""
NOW, ENDED = "what-if", "what-if ended"


class WhatIf(NamedTuple):
    """The dtype of the optimizer's states, and the method and model it was set for."""

    dtype: str
    of: str
    """Method and model: ``full fine-tuning of Mistral-7B-v0.1``."""


def follow(now: contract.Reading) -> None:
    """Ends a what-if that was set for another model or method. Call before the page reads the setup."""
    if now.model is None:
        return
    state = st.session_state
    noun = Method(str(session.value("method"))).phrase
    subject = f"{noun} of {terms.short_name(now.model.hub_id)}"
    before: WhatIf | None = state.get(NOW)
    if before is not None and before.of != subject:
        state[ENDED] = before, subject
        session.put({KEY: None})
    dtype = session.value(KEY)
    state[NOW] = None if dtype is None else WhatIf(str(dtype), subject)
    if ENDED in state and (dtype is not None or state[ENDED][1] != subject):
        del state[ENDED]


def forget() -> None:
    """Forgets the what-if when a new URL is opened."""
    st.session_state.pop(NOW, None)
    st.session_state.pop(ENDED, None)


def ended() -> str:
    """A sentence that a what-if has ended; empty if none has."""
    if ENDED not in st.session_state:
        return ""
    before, _ = st.session_state[ENDED]
    return f"AdamW's states have the dtype of a real run: {before.dtype} states were a what-if for {before.of}."
