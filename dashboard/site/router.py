"""Whether a page is run by ``app.py``.

Beside a folder pages/, Streamlit takes the files in it for pages of its own until ``app.py`` has been run once; so the
first visitor of a new server who comes by a link to a page would get that file alone.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import streamlit as st

_ROOT = Path(__file__).parents[2]
APP = next(it for it in (_ROOT / "headroom" / "app.py", _ROOT / "app.py") if it.is_file())
"""The router: in a folder of its own where it is installed, else in the repository's root."""
_routed = ContextVar("routed", default=False)


@contextmanager
def routing() -> Iterator[None]:
    """Around what ``app.py`` runs."""
    before = _routed.set(True)
    try:
        yield
    finally:
        _routed.reset(before)


def route() -> None:
    """At the top of a page: where Streamlit runs its file alone, ``app.py`` is run in its place."""
    if not _routed.get():
        runpy.run_path(str(APP), run_name="__main__")
        st.stop()
