"""State that is restored after every test, and what Streamlit's AppTest need not do each time."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def main_module() -> Iterator[None]:
    """AppTest leaves its script as ``__main__``, and a process spawned by a later test would run it."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(scope="session", autouse=True)
def packages_are_searched_once() -> Iterator[None]:
    """Each new AppTest searches all installed packages for components, which took 40 % of the pages' tests.

    Source: streamlit 1.67, testing/v1/app_test.py ``AppTest._run``.
    """
    if find_spec("streamlit") is None:  # the environment of ``make verify``
        yield
        return
    from streamlit.components.v2 import manifest_scanner

    with pytest.MonkeyPatch.context() as patch:
        search = functools.cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", search)
        yield
