"""The lower half of the page, which no move of a slider computes: the browser asks for it when it is looked at.

Two marks in the page's HTML name setups: the one that the top shows, and the one that the lower half shows. While they
differ, ``lower_half.js`` dims the lower half and takes no clicks on it.
"""

from __future__ import annotations

from importlib.resources import files

import streamlit as st
from streamlit.components.v2 import component

from dashboard.state import question

_component = component(
    "lower_half",
    html="",
    css=".st-key-lower-half { display: none; }",
    js="".join((files(__package__) / it).read_text() for it in ("alone.js", "lower_half.js")),
    isolate_styles=False,
)


def mark(which: str) -> str:
    """An invisible element that names the current setup; ``which``: ``now`` at the top, ``drawn`` below."""
    now = question.reading()
    return f'<i class="hr-{which}" data-of="{hash((now.model, now.gpu, now.setup))}"></i>'


def begin() -> None:
    """Marks what is drawn, and listens for the browser's question. Call first in the fragment of the lower half."""
    st.html(mark("drawn"))
    _component(key="lower-half", on_asked_change=_nothing)


def _nothing() -> None:
    """The question itself reruns the fragment."""
