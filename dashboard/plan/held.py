"""A question that the URL holds, and the session mirrors: of one run, or of a team."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Generic, TypeVar, cast

import streamlit as st

from dashboard.state import models
from dashboard.words import markup

Q = TypeVar("Q")
LONGEST = 8192
"""Maximum characters of a question in a URL. Our choice, above what servers accept."""
POLL_SECONDS = 0.3
"""Seconds between polls for the Hub's answer. Our choice."""
PROBLEM = "plan problem"
"""Session key of the sentence about a link or a file that cannot be read."""


@dataclass(frozen=True, slots=True)
class Held(Generic[Q]):
    """One kind of question."""

    key: str
    """In the URL; its value is the question as JSON."""
    read: Callable[[str], Q]
    """From JSON or YAML; ``ValueError`` with one sentence if it is invalid."""
    write: Callable[[Q], str]
    """As compact JSON."""
    first: Callable[[], Q]
    """The initial question."""

    def current(self) -> Q:
        """The question in the URL, else the session's, else the initial one. A changed URL is read again."""
        state, params = st.session_state, st.query_params
        given = params.get(self.key)
        if given and given != state.get(f"{self.key} text"):
            self._take(given)
        elif f"{self.key} text" not in state:
            self.put(self.first())
        if params.get(self.key) != state[f"{self.key} text"]:
            params[self.key] = state[f"{self.key} text"]
        return cast("Q", state[f"{self.key} question"])

    def _take(self, text: str) -> None:
        try:
            question = self.read(text)
        except ValueError as problem:
            st.session_state[PROBLEM] = f"The link's question cannot be read: {problem}"
            question = st.session_state.get(f"{self.key} question") or self.first()
        self.put(question)

    def put(self, question: Q) -> None:
        """Sets the question and draws its form anew."""
        st.session_state[f"{self.key} round"] = self.round() + 1
        self.ask(question)

    def ask(self, question: Q) -> None:
        """Sets the question that the form already shows."""
        state = st.session_state
        state[f"{self.key} question"] = question
        state[f"{self.key} text"] = st.query_params[self.key] = self.write(question)

    def round(self) -> int:
        """Counts the forms drawn anew; part of their widgets' keys."""
        number: int = st.session_state.get(f"{self.key} round", 0)
        return number


def has_models(facts: Sequence[object]) -> bool:
    """Whether all models of a question are known; else says what the Hub answers, and waits for it."""
    waits, said = models.ask_for(facts)
    kind, role = ("hr-asking", "status") if waits else ("hr-refusal", "alert")
    for sentence in said.values():
        st.html(f'<p class="hr-note {kind}" role="{role}">{escape(sentence)}</p>')
    if waits:
        st.fragment(partial(_look, facts), run_every=POLL_SECONDS, key="plan look")()
    return not said


def _look(facts: Sequence[object]) -> None:
    if not models.ask_for(facts)[0]:
        st.rerun(scope="app")


def say_problem() -> None:
    """Shows, once, why a link or a file could not be read."""
    if problem := st.session_state.pop(PROBLEM, None):
        st.warning(markup.plain(problem), icon=":material/link_off:")


def short(text: str) -> str:
    """The text, if it is short enough for a question."""
    if len(text) > LONGEST:
        raise ValueError(f"it has more than {LONGEST:,} characters.")
    return text
