"""Two replicas behind nginx, configured by deploy/nginx.conf: one is killed, and the open page stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.browser.conftest import ROOT, _wait, free_port, serving

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
WAIT = 90_000
ESTABLISHED = "01"

pytestmark = pytest.mark.skipif(
    not Path(NGINX).exists() or not Path("/proc/net/tcp").exists(),
    reason="no nginx here; apt-get install nginx-light",
)


@contextmanager
def proxied(folder: Path, ports: list[int]) -> Iterator[str]:
    """The proxy that docs/deploy.md describes, in front of local servers."""
    port = free_port()
    config = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    for number, replica in enumerate(ports, 1):
        config = config.replace(f"page{number}:8501", f"127.0.0.1:{replica}")
    config = config.replace("listen 8080", f"listen 127.0.0.1:{port}")
    (folder / "nginx.conf").write_text(config, encoding="utf-8")
    command = [NGINX, "-c", str(folder / "nginx.conf"), "-p", str(folder), "-g", "daemon off;"]
    proxy = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _wait(f"http://127.0.0.1:{port}/_stcore/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        proxy.terminate()
        proxy.wait(timeout=20)


def sockets() -> list[tuple[int, str, str]]:
    """Local port, state and inode of each connection on this machine."""
    lines = Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]
    fields = [line.split() for line in lines]
    return [(int(field[1].split(":")[1], 16), field[3], field[9]) for field in fields]


def process_at(port: int) -> int:
    """The process that listens on a port."""
    inode = next(one for at, state, one in sockets() if at == port and state == "0A")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == f"socket:[{inode}]":
                return int(link.parts[2])
        except OSError:
            continue
    raise AssertionError(f"nobody listens on {port}")


@pytest.mark.browser
def test_a_visitor_whose_replica_is_killed_continues_on_the_other(browser, tmp_path):
    ports = [free_port(), free_port()]
    with serving(ports[0]), serving(ports[1]), proxied(tmp_path, ports) as address:
        from playwright.sync_api import TimeoutError as PlaywrightTimeout

        with browser.visit() as page:
            answer = page.goto(f"{address}/?model=Qwen/Qwen3-0.6B&gpu=L4&max_length=2048")
            assert answer.headers["content-security-policy"], "the proxy lets the headers through"
            page.locator(".js-plotly-plot svg.main-svg").first.wait_for(timeout=WAIT)
            page.get_by_text("10.8 to 11.7 GiB").first.wait_for(timeout=WAIT)
            slider = page.get_by_role("slider", name="Micro-batch").first
            own = [at for at, state, _ in sockets() if at in ports and state == ESTABLISHED]
            assert len(set(own)) == 1, "the visitor's websocket is at one replica"
            os.kill(process_at(own[0]), signal.SIGKILL)
            page.locator('[data-testid="stApp"][data-test-connection-state="CONNECTED"]').wait_for(
                timeout=WAIT
            )
            page.locator('[data-test-script-state="notRunning"]').first.wait_for(timeout=WAIT)
            page.wait_for_timeout(1000)
            slider.press("ArrowRight")
            moved = page.get_by_text("18.1 to 19.3 GiB").first
            try:
                moved.wait_for(timeout=WAIT / 6)
            except PlaywrightTimeout:  # at most one click must be repeated
                slider.press("ArrowRight")
                moved.wait_for(timeout=WAIT)
            assert "max_length=2048" in page.url
            assert "per_device_train_batch_size=2" in page.url
