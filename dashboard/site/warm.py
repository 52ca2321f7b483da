"""Work done at server startup, so the first visitor does not wait for it: imports, tables, the example's estimate."""

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
"""Maximum seconds to wait for the server to start."""


def warm() -> None:
    """Imports the pages' modules, estimates the example and compresses Plotly, once the server has started."""
    until = time.monotonic() + LONGEST_WAIT
    while not runtime.exists():
        if time.monotonic() > until:
            return
        time.sleep(0.02)
    for name in MODULES:
        import_module(name)
    from dashboard.site import static_files, unfolding  # noqa: PLC0415  must follow the modules that they need

    unfolding.preview("/", "")
    static_files.plotly()


def start() -> None:
    """Runs ``warm`` in a thread while the server responds."""
    # Streamlit warns about components declared outside a visitor's run; here that is intended
    log = logging.getLogger("streamlit.runtime.scriptrunner_utils.script_run_context")
    log.addFilter(lambda _: threading.current_thread().name != NAME)
    threading.Thread(target=warm, name=NAME, daemon=True).start()
