"""What all widgets of the sidebar share: where they show a key's value, and where they put it.

Every control stands for a key of the contract and has the contract's default. Widgets that are always drawn are bound
to the address; those in an expander show what ``session`` holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import streamlit as st

from dashboard.state import session
from dashboard.widgets import rerun
from estimator import contract

BEHIND_PRECISION = ("dtype", "mixed_precision")
"""What the box for precision sets, so that it must be drawn again where one of them is set."""


def box(key: str, default: str = "value", options: Sequence[str] | None = None) -> dict[str, Any]:
    """What a widget in an expander shows, and where it puts what it is set to.

    ``default`` is what its call names its own default: what a browser shows until it is told otherwise, and sends back.
    It is told once, by a message that the next run may overtake; so the default itself is the key's value. A widget
    whose default is not None cannot be emptied: one that can be null is told its value in every run instead.
    """
    name, now = f"{key} box", session.value(key)
    is_nullable = contract.BY_NAME[key].kind.nullable
    if is_nullable or name not in st.session_state or st.session_state[name] != now:
        st.session_state[name] = now
    shown = None if is_nullable else now if options is None else options.index(str(now))
    listed = {} if options is None else {"options": options}
    return {"key": name, default: shown, "on_change": _take_box, "args": (key,), **listed}


def choice(key: str, options: Sequence[str]) -> dict[str, Any]:
    """The same for a select box."""
    return box(key, "index", options)


def _take_box(key: str, *also: str) -> None:
    session.put({key: st.session_state[f"{key} box"]})
    if key in BEHIND_PRECISION:
        st.rerun()
    rerun.redraw(*also)


def box_of_others(key: str, default: str = "value") -> dict[str, Any]:
    """The same for a widget that decides which others are drawn."""
    return box(key, default) | {"args": (key, rerun.EXPANDERS)}


def with_own(catalogued: Iterable[str], own: str | None) -> list[str]:
    """The catalogue's names, and before them what an address brought that is not among them."""
    names = list(catalogued)
    return names if own is None or own in names else [own, *names]


def texts_of(kind: Iterable[str]) -> list[str]:
    """A choice's members as their texts."""
    return [str(member) for member in kind]


@st.fragment
def slider(label: str, key: str, help_text: str) -> None:
    """In a fragment: the run that its move begins, and that ends in ``_redraw``, is none of the whole page."""
    st.select_slider(
        label,
        st.session_state["steps"][key],
        getattr(session.DEFAULT, key),
        key=key,
        help=help_text,
        bind="query-params",
        on_change=rerun.redraw,
    )


@contextmanager
def expander(label: str) -> Iterator[bool]:
    """An expander whose widgets exist only while it is open; whether it is."""
    expander = st.expander(label, key=f"{label} open", on_change="rerun")
    with expander:
        yield bool(expander.open)
