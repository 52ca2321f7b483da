"""The way from page to page: plain links, each of which holds the whole document.

Streamlit's own navigation leads to a bare address, which the next page must then write again: one entry in the
browser's history for the bare address, and one for each key. These links need none of that, and open in another tab
as well.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple
from urllib.parse import urlencode

import streamlit as st

from dashboard.state import comparison


class Page(NamedTuple):
    """A page of the dashboard."""

    title: str
    file: str
    path: str
    """In its address; the start page's is of no use there, and its link leads to the root."""


ESTIMATE = Page("Estimate", "pages/estimate.py", "setup")
COMPARE = Page("Compare", "pages/compare.py", "compare")
PAGES = (
    ESTIMATE,
    COMPARE,
    Page("How it works", "pages/how.py", "how"),
    Page("Accuracy", "pages/proof.py", "proof"),
)
HISTORY = """<script data-of="headroom">
if (!window.headroom) {
  window.headroom = { written: performance.now() };
  document.addEventListener("click", (event) => {
    const link = event.target.closest(".hr-pages a");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    if (link.hasAttribute("aria-current")) return;
    history.pushState({}, "", link.href);
    dispatchEvent(new PopStateEvent("popstate"));
  });
  const push = history.pushState.bind(history);
  history.pushState = (state, title, url) => {
    const now = performance.now();
    const stays = new URL(url, location.href).pathname === location.pathname;
    if (stays && now - window.headroom.written < 500) history.replaceState(state, title, url);
    else push(state, title, url);
    window.headroom.written = now;
  };
  const app = document.querySelector(".stApp");
  const address = () => { const keys = new URLSearchParams(location.search); keys.sort(); return `${keys}`; };
  let lost = false, asked = null;
  const ask = () => { asked = address(); dispatchEvent(new PopStateEvent("popstate")); };
  new MutationObserver((changes) => {
    const { testConnectionState: connection, testScriptState: script } = app.dataset;
    if (connection === "CONNECTED" && lost) ask();
    else if (asked !== null && script === "notRunning" && changes.some((it) => it.attributeName.includes("script")))
      if (address() === asked) asked = null; else ask();
    lost = connection !== "CONNECTED";
  }).observe(app, { attributeFilter: ["data-test-connection-state", "data-test-script-state"] });
}
</script>"""
"""What Back leads to: the setup, or the page, before the last click.

A click on a link goes where it says as the browser's own Back does, and loads nothing anew; without this it would.
Where one click sets several keys, Streamlit writes the address once for each: such entries, within half a second of
each other on one page, are joined.

Streamlit runs nothing when a lost connection is there again; but behind it may be a server that was started anew, which
drops all moves until the page has run once. So the page is asked for again, by its address, which holds everything; and
once more where a move has changed the address in the meantime.
"""


def draw(current: str) -> None:
    """The links; the page whose path in the address is ``current`` is marked."""
    items = []
    for page in PAGES:
        marks, title = ' aria-current="page"' if page.path == current else "", page.title
        if page is COMPARE and (count := len(comparison.scenarios())):
            marks += f' aria-label="{title}, {count} kept"'
            title += f" <span>{count}</span>"
        items.append(f'<a href="{escape(_address(page))}"{marks}>{title}</a>')
    st.html(f'<nav class="hr-pages" aria-label="Pages"><b>Headroom</b>{"".join(items)}</nav>')


def _address(page: Page) -> str:
    """Relative to every page of this server, whatever path it is served under."""
    estimates = page is ESTIMATE
    params = {
        **(comparison.estimate_params() if estimates else {}),
        **comparison.params(estimates=estimates),
    }
    return (
        f"./{'' if estimates else page.path}{'?' if params else ''}{urlencode(params, doseq=True)}"
    )
