"""How it works: the whole story in words, along the example."""

import streamlit as st

from dashboard import router, story
from dashboard.example import EXAMPLE

LINE = 880  # pixels that a line of text takes at most: some 100 letters

router.route()
st.title("How it works")
with st.container(width=LINE):
    for chapter in story.chapters(story.example(dict(EXAMPLE))):
        st.subheader(chapter.heading, anchor=False)
        st.markdown(chapter.text)
