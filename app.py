"""The router: all pages, and what they share."""

import gc

import streamlit as st

from dashboard import theme
from dashboard.address import unbound
from dashboard.site import manners, navigation, router
from dashboard.state import comparison
from dashboard.widgets import drawing


@st.cache_resource(show_spinner=False)
def freeze_imports() -> None:
    """Excludes imported modules from the garbage collection after every run; once per process."""
    gc.collect()
    gc.freeze()


st.set_page_config(page_title="Headroom", layout="wide")
# A page's path in the URL is its file name, and the file calls dashboard/site/router.py: next to a folder named pages/,
# Streamlit runs that file directly until this router has run once, and finds no page of any other name.
page = st.navigation(
    [
        st.Page(it.file, title=it.title, url_path=it.path, default=it is navigation.ESTIMATE)
        for it in (*navigation.PAGES, navigation.REPORT)
    ],
    position="hidden",
)
estimates = page.title == navigation.ESTIMATE.title
st.html(theme.STYLE)
st.sidebar.html(
    '<p class="hr-brand">Headroom</p><p>Memory, time and cost of fine-tuning</p>'
    + navigation.HISTORY
    + theme.ICON_SCRIPT
    + manners.SCRIPT
    + drawing.PRELOAD,
    unsafe_allow_javascript=True,
)
unbound.arrive(page.url_path)
comparison.follow(estimates=estimates)
if not estimates:
    st.html(theme.WITHOUT_SIDEBAR)
    if page.title != navigation.REPORT.title:
        navigation.draw(page.url_path)
with router.routing():
    page.run()
freeze_imports()
