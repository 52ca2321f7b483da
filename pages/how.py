"""How it works: the whole story in words, along the example."""

import streamlit as st

from dashboard import router, story
from dashboard.example import EXAMPLE

router.route()
st.title("How it works")
for chapter in story.chapters(story.example(dict(EXAMPLE))):
    st.subheader(chapter.heading, anchor=False)
    st.markdown(chapter.text)
