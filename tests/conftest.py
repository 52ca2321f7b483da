"""What every test finds as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def main_module() -> Iterator[None]:
    """AppTest leaves its script behind as ``__main__``, and a process that a later test spawns would run it."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main
