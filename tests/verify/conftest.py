"""Checks against the real libraries: collected only where torch is installed (``make verify``)."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

TORCH_IS_HERE = find_spec("torch") is not None
collect_ignore_glob = [] if TORCH_IS_HERE else ["*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not TORCH_IS_HERE:
        terminalreporter.write_line(
            "tests/verify is skipped: torch is not installed here (`make verify` runs it)."
        )
