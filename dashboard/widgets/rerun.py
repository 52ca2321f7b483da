"""Which parts of the page rerun when a widget changes."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st
from streamlit.errors import StreamlitAPIException

from dashboard.state import models

VERDICT, BARS = PARTS = ("verdict", "bars")
"""Fragments that rerun when a number changes, in this order. The browser redraws the figure only if its row of
answers for the slider was missing or wrong. They are few, because Streamlit copies its state for each."""
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
    with suppress(StreamlitAPIException):  # a page without these parts reruns in full
        rest = (ROW,) if ROW_ASKED in st.session_state else ()
        st.rerun((*PARTS, *also, *rest))
