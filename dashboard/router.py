"""Whether a page is run by ``app.py``.

Beside a folder pages/, Streamlit takes the files in it for pages of its own until ``app.py`` has been run once; so the
first visitor of a new server who comes by a link to a page would get that file alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_routed = ContextVar("routed", default=False)


@contextmanager
def routing() -> Iterator[None]:
    """Around what ``app.py`` runs."""
    before = _routed.set(True)
    try:
        yield
    finally:
        _routed.reset(before)


def is_routed() -> bool:
    """Whether ``app.py`` runs this."""
    return _routed.get()
