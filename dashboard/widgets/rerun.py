"""Which parts of the page run again when a widget moves."""

from __future__ import annotations

import time
from contextlib import suppress

import streamlit as st
from streamlit.errors import StreamlitAPIException

from dashboard.state import models

BARS, VERDICT, CARDS, BATCH, CONTEXT, MORE = PARTS = (
    "bars",
    "verdict",
    "cards",
    "effective batch",
    "longest context",
    "more",
)
"""The parts that a moved number runs again, as fragments; the figure first, since it takes the browser longest."""
REST_SECONDS = 0.2
"""How long a slider rests before what stands around figure and verdict follows: ours, as the browser takes to draw."""
EXPANDERS = "expanders"
"""The part that runs again when one of them is opened."""


def redraw(*also: str) -> None:
    """A number moved: only what shows it runs again, not every widget."""
    if models.is_asking():
        return
    st.session_state["moving"] = True
    with suppress(StreamlitAPIException):  # a page without these parts runs as a whole
        st.rerun((*PARTS, *also))


def let_figure_draw() -> None:
    """Before what stands around them: a moment in which the browser draws verdict and figure.

    A move that comes meanwhile ends this run: who goes on moving never waits for the rest, which is drawn once.
    """
    if st.session_state.pop("moving", False):
        time.sleep(REST_SECONDS)
