"""State that is restored after every test."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def main_module() -> Iterator[None]:
    """AppTest leaves its script as ``__main__``, and a process spawned by a later test would run it."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main
