"""How it works: the method in words, along the run that the rule of thumb is usually explained with."""

import streamlit as st

from dashboard.address.example import ARTICLE, EXAMPLE
from dashboard.how_it_works import content
from dashboard.site import router

LINE = 880  # pixels that a line of text takes at most: some 100 letters

router.route()
st.title("How it works")
with st.container(width=LINE):
    for chapter in content.chapters(content.example({**EXAMPLE, **ARTICLE})):
        st.header(chapter.heading, anchor=False)
        st.markdown(chapter.text)
