"""Compare: up to eight named setups side by side."""

import runpy

import streamlit as st

from dashboard import comparison, kept, theme

if "routed" not in st.session_state:
    # The first visitor of a new server: Streamlit takes this file for a page of its own, without the router.
    runpy.run_path("app.py", run_name="__main__")
else:
    st.html(theme.WITHOUT_SIDEBAR)
    page = comparison.read_page()
    if kept.document().present is not None:
        comparison.present(page)
    else:
        comparison.draw(page)
