"""Cards that propose a setup; a click opens it.

Cards are HTML, and one component listens for clicks on all of them. A Streamlit button in each card would be a message
and a widget more for the server and the browser, each time that a slider moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import NamedTuple

import streamlit as st
from streamlit.components.v2 import component

from dashboard.state import actions, question

PROPOSED, TAKEN = "proposals", "proposal taken"
"""In the session: the keys that each card sets, by group and name; and the group and name of the clicked card."""


class Proposal(NamedTuple):
    """A card: the keys that a click sets, and its text."""

    name: str
    html: str
    keys: Mapping[str, object]
    title: str = ""
    """The name for screen readers; empty: the name itself."""


_component = component(
    "cards",
    html="",
    css=".st-key-card-clicks { display: none; }",
    js=(files(__package__) / "proposal_cards.js").read_text(),
    isolate_styles=False,
)


def follow() -> None:
    """Sets the keys of the clicked card. Call before any widget is drawn."""
    state = st.session_state
    group, _, name = state.pop(TAKEN, "").partition(" ")
    keys = state.setdefault(PROPOSED, {}).get(group, {}).get(name)
    if keys is not None:  # else other cards have replaced it since
        actions.put(keys)


def listen() -> None:
    """Draws the component that sends clicks. Call outside any fragment: a click reruns the whole page."""
    _component(key="card-clicks", on_taken_change=_take)


def _take() -> None:
    st.session_state[TAKEN] = str(st.session_state["card-clicks"].taken)


def propose(group: str, keys: Mapping[str, Mapping[str, object]]) -> None:
    """Records the keys that each element with ``data-proposal="group name"`` sets on click, by name."""
    st.session_state[PROPOSED][group] = dict(keys)


def cards_html(group: str, verb: str, proposals: Iterable[Proposal], of: str = "") -> str:
    """Cards that set their keys on click. The card of the current setup is inactive; ``of``: that setup's mark."""
    drawn = tuple(proposals)
    propose(group, {remedy.name: remedy.keys for remedy in drawn})
    inactive = question.are_set(remedy.keys for remedy in drawn)
    cards = "".join(
        _card_html(
            f"{group} {remedy.name}", f"{verb} {remedy.title or remedy.name}", remedy.html, is_now
        )
        for remedy, is_now in zip(drawn, inactive, strict=True)
    )
    marked = f' data-setup="{of}"' * bool(of)
    return f'<div class="hr-cards hr-cards-{group}"{marked}>{cards}</div>'


def _card_html(name: str, label: str, html: str, inactive: bool) -> str:
    """The text, and over it a button with a name for screen readers alone."""
    opening = f'<button type="button" data-proposal="{escape(name)}" aria-label="{escape(label)}"'
    return f'<div><p class="hr-card">{html}</p>{opening}{" disabled" * inactive}></button></div>'
