"""The router: every page, and what all pages share."""

import gc

import streamlit as st

from dashboard import theme
from dashboard.address import unbound
from dashboard.estimate import hero_figure
from dashboard.site import manners, navigation, router
from dashboard.state import comparison
from dashboard.widgets import drawing


@st.cache_resource(show_spinner=False)
def freeze_imports() -> None:
    """Once a process: take what is imported out of the collection that follows every run."""
    gc.collect()
    gc.freeze()


# The icon is a file of ours: a ":material/…:" name would be fetched from another machine.
st.set_page_config(page_title="Headroom", page_icon=theme.ICON, layout="wide")
# A page's path in the address is its file's name, and the file asks dashboard/site/router.py: beside a folder named
# pages/, Streamlit runs that file alone until this router has been run once, and finds no page of any other name.
page = st.navigation(
    [
        st.Page(it.file, title=it.title, url_path=it.path, default=it is navigation.ESTIMATE)
        for it in navigation.PAGES
    ],
    position="hidden",
)
estimates = page.title == navigation.ESTIMATE.title
st.html(theme.style(hero_figure.SWITCHES))
st.sidebar.html(
    '<p class="hr-brand">Headroom</p><p>What fine-tuning asks of a GPU</p>'
    + navigation.HISTORY
    + manners.SCRIPT
    + drawing.PRELOAD,
    unsafe_allow_javascript=True,
)
unbound.arrive(page.url_path)
comparison.follow(estimates=estimates)
if not estimates:
    st.html(theme.WITHOUT_SIDEBAR)
    navigation.draw(page.url_path)
with router.routing():
    page.run()
freeze_imports()
