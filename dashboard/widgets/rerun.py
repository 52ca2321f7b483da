"""Which parts of the page rerun when a widget changes."""

from __future__ import annotations

import time
from contextlib import suppress

import streamlit as st
from streamlit.errors import StreamlitAPIException

from dashboard.state import models

VERDICT, BARS, LIMITS = PARTS = ("verdict", "bars", "limits")
"""Fragments that rerun when a number changes, in this order. The browser redraws the figure only if its row of
answers for the slider was missing or wrong. They are few, because Streamlit copies its state for each."""
REST_SECONDS = 0.05
"""Seconds without movement before the limits follow a slider. Our choice: about the browser's drawing time."""
BELOW = "below"
"""The fragment that the browser asks for when it is looked at, or when a slider rests (``lower_half.js``)."""
METHODS = "methods"
"""The fragment of the methods' bars and cards, which the browser asks for when the visitor pauses."""
EDGE = "edge"
"""The fragment of the rulers, which the browser asks for when the visitor pauses."""
ROW = "row"
"""The fragment that reruns when the pointer or focus enters a slider."""
ROW_ASKED = "row asked"
"""In the session: the slider whose row is to be sent, until it is."""
EXPANDERS = "expanders"
"""The fragment that reruns when an expander opens."""


def redraw(*also: str) -> None:
    """Reruns only the parts that show changed numbers."""
    if models.is_asking():
        return
    st.session_state["moving"] = True
    with suppress(StreamlitAPIException):  # a page without these parts reruns in full
        rest = (ROW,) if ROW_ASKED in st.session_state else ()
        st.rerun((*PARTS, *also, *rest))


def let_figure_draw() -> None:
    """Pauses while the browser draws verdict and figure, before the sliders' limits.

    A further move interrupts this run, so a visitor who keeps moving a slider never waits for the rest.
    """
    if st.session_state.pop("moving", False):
        time.sleep(REST_SECONDS)
