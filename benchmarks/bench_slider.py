"""The page's response to a slider, in a real browser, relative to a bare page in the same run.

    python benchmarks/bench_slider.py [--moves 20] [--drags 3] [--opens 3] [--slider Context]

Everything is timed inside the page by its own clock. For every slider of the setup:

- press: from a key press to the first animation frame on which figure or verdict show something else;
- rest: from the same key press to the last change anywhere on the page;
- drag: the longest time between two animation frames while the thumb is dragged across the track, and how many
  different figures were seen on the way;
- release: from letting go of the thumb to the last change anywhere on the page.

And once for the page: from the start of the navigation to the first verdict and to the first figure, in a browser
that has stored nothing. A move that changes neither figure nor verdict is counted apart. The bare page takes turns
with ours, so that what else the machine does falls on both. Prints; judges nothing.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

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
QUIET_MS = 400
"""Milliseconds without a change after which the page is at rest (ours: longer than any pause within one answer)."""
WARM = 2
"""Warm-up moves, not counted."""


class Slider(NamedTuple):
    """A slider, an address at which it matters, and the expanders that contain it, the outer one first."""

    label: str
    address: str = ""
    expanders: tuple[str, ...] = ()


DRAWER = "All other settings"
SLIDERS = (
    Slider("Micro-batch"),
    Slider("Accumulation", expanders=(DRAWER,)),
    Slider("Context"),
    Slider("Rank", "?method=lora", (DRAWER,)),
    Slider("GPUs", "?num_gpus=4&strategy=fsdp", (DRAWER, "Several GPUs")),
)
BARE = Slider("Micro-batch")
FIRST = """
(() => {
  const first = window.first = { verdict: null, figure: null };
  const look = () => {
    if (first.verdict === null && document.querySelector('.hr-verdict')) first.verdict = performance.now();
    if (document.querySelector('.js-plotly-plot .main-svg .points path')) first.figure = performance.now();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()
"""
WATCH = """
() => {
  const shown = () => {
    const plot = document.querySelector('.js-plotly-plot');
    const bars = [...plot?.querySelectorAll('.barlayer .point path') ?? []].map((bar) => bar.getAttribute('d'));
    return bars.join() + (document.querySelector('.hr-verdict')?.textContent ?? '');
  };
  const watch = window.watch = { on: null };
  const begin = (kind) => {
    if (watch.on !== kind) return;
    const start = performance.now();
    Object.assign(watch, { on: null, start, last: start, changed: null, longest: 0, seen: 0, over: false });
    watch.round = (watch.round ?? 0) + 1;
    const round = watch.round;
    let before = shown(), frame = watch.start;
    const look = (now) => {
      if (watch.over || watch.round !== round || performance.now() - watch.start > 5000) return;
      const seen = shown();
      if (seen !== before) { watch.changed ??= performance.now() - watch.start; watch.seen += 1; before = seen; }
      watch.longest = Math.max(watch.longest, now - frame);
      frame = now;
      requestAnimationFrame(look);
    };
    requestAnimationFrame((now) => { frame = now; look(now); });
  };
  document.addEventListener('keydown', () => begin('key'), true);
  document.addEventListener('pointerdown', () => begin('drag'), true);
  document.addEventListener('pointerup', () => { watch.over = true; watch.up = watch.last = performance.now(); }, true);
  new MutationObserver(() => { watch.last = performance.now(); })
    .observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
}
"""
AT_REST = f"""
() => document.querySelector('[data-test-script-state="notRunning"]') !== null
  && performance.now() - window.watch.last > {QUIET_MS}
"""


@contextlib.contextmanager
def serve(script: str) -> Iterator[str]:
    """A separate Streamlit server on a free loopback port; yields its address."""
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


class Watched:
    """A page whose slider is observed."""

    def __init__(self, browser: Browser, address: str, slider: Slider) -> None:
        self.page = browser.new_page(viewport={"width": 1440, "height": 900})
        self.page.goto(f"{address}/{slider.address}")
        self.page.wait_for_selector(".js-plotly-plot .main-svg .points path", timeout=60_000)
        self.thumb: Locator = self.page.get_by_role("slider", name=re.compile(slider.label)).first
        self.page.wait_for_timeout(1000)
        for expander in slider.expanders:
            if self.page.locator("details:not([open])", has_text=expander).count():
                self.page.get_by_text(expander, exact=True).first.click()
        self.thumb.wait_for(timeout=10_000)
        self.thumb.scroll_into_view_if_needed()
        self.page.evaluate(WATCH)
        self._key = "ArrowRight"
        self._rest()

    def _rest(self) -> dict[str, Any]:
        if self.page.evaluate("() => window.watch.last === undefined"):
            self.page.evaluate("() => { window.watch.last = performance.now(); }")
        self.page.wait_for_function(AT_REST, timeout=20_000)
        watch: dict[str, Any] = self.page.evaluate("() => window.watch")
        return watch

    def press(self) -> tuple[float | None, float]:
        """One arrow key, backwards at the end of the track: ms until the figure changes, if it does, and until rest."""
        self.page.bring_to_front()
        place, end = self.thumb.evaluate("(it) => [it.value, it.max]")
        if place in {"0", end}:
            self._key = "ArrowRight" if place == "0" else "ArrowLeft"
        self.thumb.focus()
        self.page.evaluate("() => { window.watch.on = 'key'; }")
        self.thumb.press(self._key)
        watch = self._rest()
        changed = watch["changed"]
        return None if changed is None else float(changed), float(watch["last"] - watch["start"])

    def drag(self, steps: int = 60) -> tuple[float, int, float]:
        """Drags the thumb from one end to the middle and back: ms of the longest frame, figures seen, ms until rest."""
        self.page.bring_to_front()
        self.thumb.press("Home")
        self.page.evaluate("() => { window.watch.last = performance.now(); }")
        self._rest()
        track: float = self.thumb.evaluate(
            "(it) => it.closest('[data-testid=stSlider]').getBoundingClientRect().width"
        )
        knob = self.thumb.evaluate(
            "(it) => { const b = (it.closest('[role=presentation]') ?? it.parentElement).getBoundingClientRect();"
            " return [b.left + b.width / 2, b.top + b.height / 2]; }"
        )
        mouse = self.page.mouse
        mouse.move(*knob)
        self.page.evaluate("() => { window.watch.on = 'drag'; }")
        mouse.down()
        for step in range(1, steps + 1):
            mouse.move(knob[0] + track * 0.6 * step / steps, knob[1])
            self.page.wait_for_timeout(16)
        mouse.up()
        watch = self._rest()
        return float(watch["longest"]), int(watch["seen"]), float(watch["last"] - watch["up"])


def opened(browser: Browser, address: str) -> tuple[float | None, float]:
    """Milliseconds from navigation to the first verdict, if there is one, and to the first figure."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.add_init_script(FIRST)
    page.goto(address)
    page.wait_for_function("() => window.first?.figure != null", timeout=60_000)
    first = page.evaluate("() => window.first")
    context.close()
    return first["verdict"], first["figure"]


def said(name: str, times: Sequence[float]) -> str:
    """Median and 95th percentile."""
    kept = sorted(times)
    if not kept:
        return f"{name} none"
    tail = kept[min(len(kept) - 1, round(0.95 * (len(kept) - 1)))]
    return f"{name} {statistics.median(kept):6.1f} ms median {tail:6.1f} at 95 %"


def ratio(ours: Sequence[float], bare: Sequence[float]) -> str:
    """The ratio of the medians."""
    return f"{statistics.median(ours) / statistics.median(bare):.2f}" if ours and bare else "–"


def follow(browser: Browser, ours: str, bare: str, slider: Slider, moves: int, drags: int) -> None:
    """Measures one slider and the bare page's alternately, and prints."""
    page, floor = Watched(browser, ours, slider), Watched(browser, bare, BARE)
    pressed = [(page.press(), floor.press()) for _ in range(moves + WARM)][WARM:]
    dragged = [(page.drag(), floor.drag()) for _ in range(drags)]
    page.page.close()
    floor.page.close()
    redrawn = [ms for (ms, _), _ in pressed if ms is not None]
    bare_redrawn = [ms for _, (ms, _) in pressed if ms is not None]
    rest = [ms for (_, ms), _ in pressed]
    bare_rest = [ms for _, (_, ms) in pressed]
    print(f"{slider.label}")
    for name, times, floors in (
        ("press  ", redrawn, bare_redrawn),
        ("rest   ", rest, bare_rest),
        ("release", [ours[2] for ours, _ in dragged], [bare[2] for _, bare in dragged]),
    ):
        print(f"  {said(name, times)}, bare {said('', floors)}, ratio {ratio(times, floors)}")
    longest, seen = [ours[0] for ours, _ in dragged], [ours[1] for ours, _ in dragged]
    print(
        f"  drag    longest frame {statistics.median(longest):6.1f} ms median {max(longest):6.1f} at most, "
        f"{statistics.median(seen):.0f} figures seen on the way; bare "
        f"{statistics.median(bare[0] for _, bare in dragged):6.1f} ms, "
        f"{statistics.median(bare[1] for _, bare in dragged):.0f}"
    )
    if len(redrawn) < len(pressed):
        print(
            f"  {len(pressed) - len(redrawn)} of {len(pressed)} moves change neither figure nor verdict"
        )


def main() -> None:
    """Measures both pages alternately, and prints medians and ratios."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 -- so that --help needs no browser

    parser = argparse.ArgumentParser(description="how the page follows a slider")
    parser.add_argument("--moves", type=int, default=20, help="key presses a slider")
    parser.add_argument("--drags", type=int, default=3, help="drags a slider")
    parser.add_argument("--opens", type=int, default=3, help="how often the page is opened")
    parser.add_argument("--slider", action="append", help="only this one, by its label")
    arguments = parser.parse_args()
    sliders = [
        slider for slider in SLIDERS if not arguments.slider or slider.label in arguments.slider
    ]
    if not sliders:
        parser.error(f"--slider takes {', '.join(slider.label for slider in SLIDERS)}.")
    if min(arguments.moves, arguments.drags, arguments.opens) < 1:
        parser.error("--moves, --drags and --opens take a number of at least 1.")

    with (
        serve("serve.py") as ours,
        serve("benchmarks/floor_page.py") as bare,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGUMENTS)
        first = [(opened(browser, ours), opened(browser, bare)) for _ in range(arguments.opens + 1)]
        warm = first[1:]  # the first visit is also the server's first
        verdicts = [ms for (ms, _), _ in warm if ms is not None]
        figures, floors = [ms for (_, ms), _ in warm], [ms for _, (_, ms) in warm]
        print("First visit of a browser")
        print(
            f"  {said('verdict', verdicts)}, ratio to the bare page's figure {ratio(verdicts, floors)}"
        )
        print(
            f"  {said('figure ', figures)}, bare {said('', floors)}, ratio {ratio(figures, floors)}"
        )
        for slider in sliders:
            follow(browser, ours, bare, slider, arguments.moves, arguments.drags)
        browser.close()


if __name__ == "__main__":
    main()
