"""Makes ``app.py`` run every page.

If there is a folder pages/, Streamlit treats its files as separate pages until ``app.py`` has run once. On a new
server, the first visitor who follows a link to a page would get only that file.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import streamlit as st

_ROOT = Path(__file__).parents[2]
APP = next(one for one in (_ROOT / "headroom" / "app.py", _ROOT / "app.py") if one.is_file())
"""The router: in its own folder if installed, else in the repository's root."""
_routed = ContextVar("routed", default=False)


@contextmanager
def routing() -> Iterator[None]:
    """Context manager around the code that ``app.py`` runs."""
    before = _routed.set(True)
    try:
        yield
    finally:
        _routed.reset(before)


def route() -> None:
    """Runs ``app.py`` if Streamlit runs a page's file directly. Called at the top of each page."""
    if not _routed.get():
        runpy.run_path(str(APP), run_name="__main__")
        st.stop()
