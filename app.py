"""The router: every page, and what all pages share."""

import gc

import streamlit as st

from dashboard import address, figures, kept, router, theme


@st.cache_resource(show_spinner=False)
def freeze_imports() -> None:
    """Once a process: take what is imported out of the collection that follows every run."""
    gc.collect()
    gc.freeze()


# The icon is a file of ours: a ":material/…:" name would be fetched from another machine.
st.set_page_config(page_title="Headroom", page_icon=theme.ICON, layout="wide")
# A page's path in the address is its file's name, and the file asks dashboard/router.py: beside a folder named pages/,
# Streamlit runs that file alone until this router has been run once, and finds no page of any other name.
page = st.navigation(
    [
        st.Page("pages/estimate.py", title="Estimate", url_path="setup", default=True),
        st.Page("pages/compare.py", title="Compare", url_path="compare"),
        st.Page("pages/how.py", title="How it works", url_path="how"),
        st.Page("pages/proof.py", title="Accuracy", url_path="proof"),
    ],
    position="top",
)
estimates = page.title == "Estimate"
st.html(theme.style(figures.SWITCHES, "Change the setup" if estimates else "Pages"))
st.sidebar.html('<p class="hr-brand">Headroom</p><p>What fine-tuning asks of a GPU</p>')
address.arrive(page.url_path)
kept.follow(estimates=estimates)
with router.routing():
    page.run()
freeze_imports()
