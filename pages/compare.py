"""Compare: up to eight named setups side by side."""

import runpy

import streamlit as st

from dashboard import comparison, kept, router, theme

if not router.is_routed():
    runpy.run_path("app.py", run_name="__main__")
else:
    st.html(theme.WITHOUT_SIDEBAR)
    page = comparison.read_page()
    if kept.document().present is not None:
        comparison.present(page)
    else:
        comparison.draw(page)
