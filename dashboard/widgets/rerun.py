"""Which parts of the page run again when a widget moves."""

from __future__ import annotations

import time
from contextlib import suppress

import streamlit as st
from streamlit.errors import StreamlitAPIException

from dashboard.state import models

VERDICT, BARS, CARDS, BATCH, CONTEXT, MORE = PARTS = (
    "verdict",
    "bars",
    "cards",
    "effective batch",
    "longest context",
    "more",
)
"""Fragments that rerun when a number moves, in this order: the browser draws the figure once more only where no
row of answers was there for the slider, or where it has been wrong."""
REST_SECONDS = 0.05
"""Pause of a slider, in seconds, before the rest of the page follows: ours, about the browser's drawing time."""
ROW = "row"
"""The fragment that reruns when the pointer or the focus comes to a slider."""
EXPANDERS = "expanders"
"""The fragment that reruns when an expander opens."""


def redraw(*also: str) -> None:
    """A number moved: rerun only the parts that show it."""
    if models.is_asking():
        return
    st.session_state["moving"] = True
    with suppress(StreamlitAPIException):  # a page without these parts runs as a whole
        st.rerun((*PARTS, *also))


def let_figure_draw() -> None:
    """Pause, so that the browser draws verdict and figure before the rest of the page.

    A further move ends this run, so a visitor who keeps moving a slider never waits for the rest.
    """
    if st.session_state.pop("moving", False):
        time.sleep(REST_SECONDS)
