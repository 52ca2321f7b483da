"""What the first visitor would wait for is done as the server starts: imports, tables, the example's estimate."""

from __future__ import annotations

import logging
import threading
import time
from importlib import import_module

from streamlit import runtime

MODULES = (
    "dashboard.estimate.sections",
    "dashboard.state.comparison",
    "dashboard.widgets.sidebar",
    "dashboard.compare.view",
    "dashboard.how_it_works.content",
)
NAME = "warm"
LONGEST_WAIT = 30.0
"""Seconds for the server to start."""


def warm() -> None:
    """Import the pages' modules, read the catalogue and estimate the example, once the server is there."""
    until = time.monotonic() + LONGEST_WAIT
    while not runtime.exists():
        if time.monotonic() > until:
            return
        time.sleep(0.02)
    for name in MODULES:
        import_module(name)
    from dashboard.site import unfolding  # noqa: PLC0415  after the modules that it needs

    unfolding.setup_of("")


def start() -> None:
    """Do so beside the server, which answers meanwhile."""
    # a component that is declared outside a visitor's run is worth a warning to Streamlit, and nothing is wrong
    log = logging.getLogger("streamlit.runtime.scriptrunner_utils.script_run_context")
    log.addFilter(lambda _: threading.current_thread().name != NAME)
    threading.Thread(target=warm, name=NAME, daemon=True).start()
