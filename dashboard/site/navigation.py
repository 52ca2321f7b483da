"""Navigation by plain links, each of which contains the whole document.

Streamlit's own navigation leads to a URL without a query, which the next page must then restore. That adds an entry to
the browser's history for the bare URL and one per key. These links avoid that, and also open in another tab.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Its path in the URL. The start page's path is unused; its link leads to the root."""


ESTIMATE = Page("Estimate", "pages/estimate.py", "setup")
COMPARE = Page("Compare", "pages/compare.py", "compare")
PAGES = (
    ESTIMATE,
    COMPARE,
    Page("Plan", "pages/plan.py", "plan"),
    Page("How it works", "pages/how.py", "how"),
    Page("Accuracy", "pages/proof.py", "proof"),
)
REPORT = Page("Report", "pages/report.py", "report")
"""A document without navigation; the page Plan leads to it."""
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
  let acted = false;
  for (const kind of ["click", "keydown", "pointerup", "drop"])
    addEventListener(kind, ({ isTrusted }) => { acted ||= isTrusted; }, true);
  const push = history.pushState.bind(history);
  history.pushState = (state, title, url) => {
    const now = performance.now();
    const stays = new URL(url, location.href).pathname === location.pathname;
    const goesOn = !acted || now - window.headroom.written < 500;
    if (stays && goesOn) history.replaceState(state, title, url);
    else push(state, title, url);
    acted = false;
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
"""Makes Back lead to the setup or page before the last click.

A click on a link navigates without reloading, like the browser's Back. If one click sets several keys, Streamlit
updates the URL once per key, on a busy machine seconds apart. All updates until the visitor's next key or click are one
history entry, and so are those within half a second of each other on one page.

After a lost connection Streamlit does not rerun the page, although a restarted server ignores all widgets until the
page has run once. So the script requests the page again by its URL, which contains everything. It repeats the request
if a widget has changed the URL in the meantime.
"""


def draw(current: str) -> None:
    """The links; the page with path ``current`` is marked."""
    items = []
    others = _query(comparison.params(estimates=False))
    estimate = _query({**comparison.estimate_params(), **comparison.params(estimates=True)})
    for page in PAGES:
        marks, title = ' aria-current="page"' if page.path == current else "", page.title
        if page is COMPARE and (count := len(comparison.scenarios())):
            marks += f' aria-label="{title}, {count} kept"'
            title += f" <span>{count}</span>"
        # relative, so that it works from every page, whatever path the server is mounted under
        link = f"./{estimate}" if page is ESTIMATE else f"./{page.path}{others}"
        items.append(f'<a href="{escape(link)}"{marks}>{title}</a>')
    st.html(f'<nav class="hr-pages" aria-label="Pages"><b>Headroom</b>{"".join(items)}</nav>')


def _query(params: Mapping[str, Sequence[str]]) -> str:
    return f"{'?' if params else ''}{urlencode(params, doseq=True)}"
