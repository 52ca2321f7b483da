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
    """Cards that set their keys on click. The card of the current setup is inactive.

    Each is a text with a button over it in the same grid cell. Labels are Markdown, which takes longer to parse than
    the card takes to draw. The browser redraws every element at each move, so the label stays constant while numbers
    change, and all texts are one element.
    """
    drawn = tuple(proposals)
    if not drawn:
        return
    with st.container(key=f"cards {name}"):
        st.html("".join(f'<p class="hr-card">{it.html}</p>' for it in drawn))
        for it in drawn:
            st.button(
                f"{verb} {it.title or it.name}",
                on_click=actions.take,
                args=(it.keys,),
                disabled=all(session.value(key) == value for key, value in it.keys.items()),
                key=f"open {it.name}",
                width="stretch",
            )
