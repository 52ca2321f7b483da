"""Compare: up to eight named setups side by side."""

import streamlit as st

from dashboard import comparison, kept, router, theme

router.route()
st.html(theme.WITHOUT_SIDEBAR)
page = comparison.read_page()
if kept.document().present is not None:
    comparison.present(page)
else:
    comparison.draw(page)
