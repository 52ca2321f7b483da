"""The page's server: ``app.py``, with what a pasted link unfolds into. ``streamlit run app.py`` serves it without."""

import sys

import streamlit as st
from starlette.middleware import Middleware

from dashboard.site import guard, static_files, unfolding, warm
from estimator import catalog

if wrong := catalog.wrong_tables():
    sys.exit("\n".join(wrong))

guard.ask_no_address()
app = st.App(
    "app.py",
    routes=unfolding.ROUTES,
    middleware=[
        Middleware(it) for it in (guard.Headers, static_files.Compressed, unfolding.OpenGraph)
    ],
)
warm.start()
