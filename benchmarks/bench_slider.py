"""From a key press on a slider to the redrawn figure, in a real browser, against a bare page in the same run.

    python benchmarks/bench_slider.py [--moves 20] [--label "Micro-batch"]

Each move is timed inside the page: from the keydown event to the first animation frame on which the first
Plotly figure holds other data. The two pages take turns, so that what else the machine does falls on both.
Prints both medians and their ratio; judges nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

WATCH = """
() => {
  const shown = () => {
    const plot = document.querySelector('.js-plotly-plot');
    return plot && plot._fullData ? JSON.stringify(plot._fullData.map(t => [t.name, Array.from(t.x || [])])) : '';
  };
  window.arm = () => {
    window.elapsed = null;
    const before = shown();
    document.addEventListener('keydown', () => {
      const start = performance.now();
      const frame = () => {
        const now = shown();
        if (now && now !== before) window.elapsed = performance.now() - start;
        else if (performance.now() - start < 5000) requestAnimationFrame(frame);
      };
      frame();
    }, {capture: true, once: true});
  };
}
"""


@contextlib.contextmanager
def serve(script: str) -> Iterator[str]:
    """A Streamlit server of its own on a free loopback port; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", script, "--server.port", str(port)]
    command += ["--server.address", "127.0.0.1", "--server.headless", "true"]
    command += ["--browser.gatherUsageStats", "false", "--server.fileWatcherType", "none"]
    server = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(address + "/_stcore/health", timeout=1).close()
                break
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{script} did not start; run `streamlit run {script}` to see why."
                )
            time.sleep(0.05)
        yield address
    finally:
        server.terminate()
        server.wait(10)


def open_page(browser: Browser, address: str, label: str) -> Page:
    """A page with its figure drawn and its slider focused."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    page.wait_for_selector(".js-plotly-plot .main-svg", timeout=60_000)
    slider = page.get_by_role("slider", name=re.compile(label)).first
    slider.wait_for(timeout=10_000)
    page.wait_for_selector('[data-test-script-state="notRunning"]')
    page.wait_for_timeout(800)
    slider.focus()
    page.evaluate(WATCH)
    return page


def move(page: Page, label: str) -> float:
    """One key press; milliseconds until the figure shows other data."""
    page.bring_to_front()
    slider = page.get_by_role("slider", name=re.compile(label)).first
    slider.focus()
    page.evaluate("() => window.arm()")
    slider.press("ArrowRight")
    page.wait_for_function("() => window.elapsed !== null", timeout=10_000)
    page.wait_for_selector('[data-test-script-state="notRunning"]')
    page.wait_for_timeout(300)
    return float(page.evaluate("() => window.elapsed"))


def main() -> None:
    """Measure both pages by turns and print the ratio of their medians."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 -- so that --help needs no browser

    parser = argparse.ArgumentParser(description="key press on a slider to the redrawn figure")
    parser.add_argument("--moves", type=int, default=20, help="at most 21: the slider has 25 steps")
    parser.add_argument("--label", default="Micro-batch", help="the slider's label on the page")
    arguments = parser.parse_args()
    warm = 3
    if not 0 < arguments.moves <= 24 - warm:
        parser.error(f"--moves must lie between 1 and {24 - warm}; the slider has 25 steps.")

    page_times: list[float] = []
    floor_times: list[float] = []
    with (
        serve("app.py") as page_address,
        serve("benchmarks/floor_page.py") as floor_address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGUMENTS)
        page = open_page(browser, page_address, arguments.label)
        floor = open_page(browser, floor_address, "Micro-batch")
        for _ in range(arguments.moves + warm):
            page_times.append(move(page, arguments.label))
            floor_times.append(move(floor, "Micro-batch"))
        browser.close()
    for name, times in (("page", page_times), ("floor", floor_times)):
        kept = sorted(times[warm:])
        print(
            f"{name:5} {statistics.median(kept):6.1f} ms median, "
            f"{kept[int(0.95 * (len(kept) - 1))]:6.1f} ms at the 95th percentile, {len(kept)} moves"
        )
    ratio = statistics.median(page_times[warm:]) / statistics.median(floor_times[warm:])
    print(f"ratio {ratio:.2f} (page / floor, medians)")


if __name__ == "__main__":
    main()
