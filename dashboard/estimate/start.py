"""Says whether the page shows a what-if, and leads from it to a real run and back."""

from __future__ import annotations

from html import escape

import streamlit as st

from dashboard.address import example
from dashboard.estimate import what_if
from dashboard.state import actions, what_ifs
from estimator import Estimate, Method


def draw(answer: Estimate) -> None:
    """One line below the verdict of a what-if; nothing for a real run."""
    said, name, keys = _said(answer)
    if not said:
        return
    with st.container(horizontal=True, key="start", gap="small"):
        st.html(f'<p class="hr-note">{escape(said)}</p>', width="content")
        if name:
            st.button(name, on_click=actions.take, args=(keys,), key="other count", type="tertiary")


def _said(answer: Estimate) -> tuple[str, str, dict[str, object]]:
    """A sentence, the name of the other setup, and its keys."""
    if what_if.is_what_if(answer):
        keys = {**dict.fromkeys(example.ARTICLE, None), **example.TRL_DEFAULTS}
        keys |= {"method": Method.FULL, "mixed_precision": "bf16"}
        return "A what-if: no tool keeps float32 states for 16-bit weights.", "As TRL runs it", keys
    if ended := what_ifs.ended():
        return ended, "", {}
    return "", "", {}


def offer(answer: Estimate) -> None:
    """A button that counts TRL's own run as the rule of thumb does; nothing for any other setup."""
    if example.is_as_trl_runs_it(answer):
        keys = dict(example.ARTICLE)
        st.button(example.ARTICLE_NAME, on_click=actions.take, args=(keys,), key="other count")
