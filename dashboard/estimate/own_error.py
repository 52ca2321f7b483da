"""The visitor's own out-of-memory message, beside the estimate of the setup on the page."""

from __future__ import annotations

from html import escape

import streamlit as st

from dashboard.state import actions, configs
from dashboard.words import units
from estimator import Estimate, said_of, stops_at

SHOWN = 3
"""Maximum explanations on the page. Our choice."""


def draw(answer: Estimate) -> None:
    """What the message says, and what of it this setup explains or another would; nothing without a message."""
    error = configs.error()
    if error is None:
        return
    said = " ".join(said_of(error, answer, units.gib_or_bytes))
    changes = configs.explained(answer)[:SHOWN]
    if stops_at(error, answer):
        changes = []
    also = f" {'One change' if len(changes) == 1 else 'Any of these'} would explain it:"
    with st.container(horizontal=True, key="own error", gap="small"):
        st.html(
            f'<p class="hr-text"><b>Your error.</b> {escape(said + also * bool(changes))}</p>',
            width="content",
        )
        for change in changes:
            ((key, value),) = change.items()
            st.button(
                f"{key} {str(value).lower()}",
                on_click=actions.take,
                args=(dict(change),),
                key=f"explains {key} {value}",
                type="tertiary",
            )
        st.button(
            "Close this error", on_click=configs.forget_error, key="forget error", type="tertiary"
        )
