"""The visitor's own out-of-memory message, beside the estimate of the setup on the page."""

from __future__ import annotations

from html import escape

import streamlit as st

from dashboard.state import configs
from dashboard.words import units
from estimator import Estimate, said_of


def draw(answer: Estimate) -> None:
    """What the message says, and what of it this setup explains; nothing without a message."""
    error = configs.error()
    if error is None:
        return
    said = " ".join(said_of(error, answer, units.gib_or_bytes))
    with st.container(horizontal=True, key="own error", gap="small"):
        st.html(f'<p class="hr-text"><b>Your error.</b> {escape(said)}</p>', width="content")
        st.button(
            "Close this error", on_click=configs.forget_error, key="forget error", type="tertiary"
        )
