"""The visitor's own config: how it was read."""

from __future__ import annotations

import streamlit as st

from dashboard.estimate import config_lists
from dashboard.state import configs
from dashboard.words import markup
from estimator import TOOLS


def draw() -> None:
    """Draws the lists; nothing if no config was read."""
    if said := configs.problem():
        st.error(markup.plain(f"{said} The page keeps what it had."), icon=":material/block:")
    run = configs.current()
    if run is None:
        return
    with st.expander(
        config_lists.title(run.found, TOOLS[run.found.tool].label), key="config lists"
    ):
        for said in config_lists.warnings(run.found, run.problems):
            st.warning(markup.plain(said))
        st.html(config_lists.lists_html(run.found))
        st.button(
            "Close these lists", on_click=configs.forget, key="forget config", type="tertiary"
        )
