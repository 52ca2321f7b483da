"""Cards that propose a setup; a click opens it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import streamlit as st

from dashboard.state import actions, session


class Proposal(NamedTuple):
    """A card: the keys that a click sets, and its text."""

    name: str
    html: str
    keys: Mapping[str, object]
    title: str = ""
    """The name for screen readers; empty: the name itself."""


def cards(name: str, verb: str, proposals: Iterable[Proposal]) -> None:
    """Cards, each of which sets its keys wherever it is clicked; one that is already so rests.

    Each is a text and, over it in the same cell of a grid, a button: two elements, since the browser draws every
    element again at each move. A button's label stays as it is while numbers move: a label is Markdown, and reading
    Markdown anew costs more than drawing the card.
    """
    with st.container(key=f"cards {name}"):
        for it in proposals:
            st.html(f'<p class="hr-card">{it.html}</p>')
            st.button(
                f"{verb} {it.title or it.name}",
                on_click=actions.take,
                args=(it.keys,),
                disabled=all(session.value(key) == value for key, value in it.keys.items()),
                key=f"open {it.name}",
                width="stretch",
            )
