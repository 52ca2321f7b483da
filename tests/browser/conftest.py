"""A local server of the page and a real Chromium. Without Chromium the tests are skipped with a plain reason."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests import fake_hub
from tests.fake_hub import MEMBER, FakeHub
from tests.test_hub import LLAMA, LLAMA_PARAMETERS

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
STORED = "cookies,local_storage,indexeddb"
SECONDS_TO_ANSWER = 1.5
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]


@pytest.fixture(scope="session")
def hub() -> Iterator[FakeHub]:
    """What the page's server asks instead of the Hub."""
    with FakeHub() as serving_hub:
        serving_hub.has("me/llama", LLAMA, parameters=LLAMA_PARAMETERS, tags=["license:mit"])
        serving_hub.has("me/gated", LLAMA, parameters=LLAMA_PARAMETERS, gated="manual")
        serving_hub.answers("me/silent", fake_hub.silence)
        serving_hub.answers("me/slow", _slowly)
        yield serving_hub


def _slowly(handler: fake_hub._Handler) -> None:
    """The repository me/llama, after a delay."""
    time.sleep(SECONDS_TO_ANSWER)
    handler.path = handler.path.replace("me/slow", "me/llama")
    handler.do_GET()


@pytest.fixture(scope="session")
def address(hub: FakeHub) -> Iterator[str]:
    """The page, served on a free port of this machine; its own token has access to every model."""
    with serving(HF_ENDPOINT=hub.url, HF_TOKEN=MEMBER) as url:
        yield url


def free_port() -> int:
    """A free port on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def serving(port: int = 0, **environment: str) -> Iterator[str]:
    """A server of the page with these environment variables added; ``port`` 0 means any free port."""
    port = port or free_port()
    command = [sys.executable, "-m", "streamlit", "run", "serve.py", "--server.headless", "true"]
    command += ["--server.address", "127.0.0.1", "--server.port", str(port)]
    server = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait(f"http://127.0.0.1:{port}/_stcore/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=20)


def _wait(url: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the page's server did not answer within {seconds} s")


class Browsers:
    """Headless Chromiums, one for each visitor at a time.

    Their profiles are on disk, where Chromium keeps compiled scripts: a page then takes half the work.
    """

    def __init__(self, start: Callable[[], BrowserContext]) -> None:
        self._start = start
        self._free: list[BrowserContext] = []

    @contextmanager
    def visit(self, width: int = 1440, height: int = 900, theme: str = "light") -> Iterator[Page]:
        """A page of a browser that nobody else uses and that has stored nothing."""
        browser = self._free.pop() if self._free else self._start()
        blank = browser.pages[0]  # without a page, the browser would end
        page = browser.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=theme)
        try:
            yield page
        finally:
            storage = browser.new_cdp_session(blank)
            for opened in browser.pages[1:]:
                host = urlsplit(opened.url)._replace(path="", query="", fragment="").geturl()
                opened.close()
                if host.startswith("http"):
                    storage.send(
                        "Storage.clearDataForOrigin", {"origin": host, "storageTypes": STORED}
                    )
            browser.clear_permissions()
            self._free.append(browser)

    def close(self) -> None:
        """End those that have been started."""
        for browser in self._free:
            browser.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browsers]:
    """What opens pages in a real Chromium."""
    if not Path(CHROMIUM).exists():
        pytest.skip("no Chromium here; apt-get install chromium, or name one in CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browsers = Browsers(
            lambda: playwright.chromium.launch_persistent_context(
                tmp_path_factory.mktemp("profile"), executable_path=CHROMIUM, args=FLAGS
            )
        )
        yield browsers
        browsers.close()
