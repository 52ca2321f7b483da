"""How tests are shared out, what is restored after each, and what Streamlit's AppTest need not do each time."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

# a busy machine is no failure
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With ``--dist loadfile``, one worker runs all browser tests: on two cores, two browsers wait for each other."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler.loadfile import LoadFileScheduling

    class OneBrowser(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "browser" if file.startswith("tests/browser/") else file

    return OneBrowser(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests come first: they take longest and mostly wait, so other tests run beside them."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is None)


def pytest_collection_finish() -> None:
    """What is imported and collected stays to the end: searching it again and again took a seventh of all time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True)
def main_module() -> Iterator[None]:
    """AppTest leaves its script as ``__main__``, and a process spawned by a later test would run it."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture
def rulers() -> None:
    """For a test that looks at the rulers of a page."""


@pytest.fixture(autouse=True)
def rulers_are_drawn_where_they_are_looked_at(request, monkeypatch) -> None:
    """A visitor's browser asks for them once the page is at rest; AppTest each time, which took half of its time."""
    names = vars(request.node.module) if hasattr(request.node, "module") else {}
    if {"AppTest", "open_page"} & names.keys() and "rulers" not in request.fixturenames:
        from dashboard.estimate import sections

        monkeypatch.setattr(sections, "draw_rulers", lambda answer, look: None)


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
