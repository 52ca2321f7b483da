"""Scripts and styles of the page, compressed once for all visitors.

Streamlit compresses a component's file again for each visitor and sends its own scripts uncompressed. This middleware
compresses and caches the first response. A browser that has the current version gets a 304.

Source: streamlit 1.67, ``st.App`` takes middleware; RFC 9110, sections 8.8.3 and 13.1.2 (ETag, If-None-Match).
"""

from __future__ import annotations

import asyncio
import gzip
import re
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import streamlit
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 32 * 2**20
"""Maximum bytes of cached compressed files. Our choice; all files of four pages take 4 MB."""
FOLDERS = ("/static/", "/component/")
KINDS = (".js", ".css", ".html", ".svg", ".json")
PLOTLY_FILE = files("dashboard.widgets") / "plotly" / "plotly-cartesian.min.js"
PLOTLY = f"/component/dashboard.widgets.drawing.plotly/{PLOTLY_FILE.name}"
"""URL path of Plotly's script. It is served before a visitor's first run declares it."""
STREAMLIT = Path(streamlit.__file__).parent / "static"
FIRST_DRAWN = ("Html", "BidiComponent", "Selectbox", "Slider", "ButtonGroup", "Button")
"""Streamlit's scripts of what the page draws first, which it asks for one by one when the server has answered."""


def _modules() -> list[str]:
    """The files of ``FIRST_DRAWN`` and what they import, but for those that Streamlit's own page preloads."""
    scripts, page = STREAMLIT / "static" / "js", (STREAMLIT / "index.html").read_text()
    todo = [file.name for name in FIRST_DRAWN for file in scripts.glob(f"{name}.*.js")]
    found: list[str] = []
    while todo:
        name = todo.pop()
        if name not in found and name not in page:
            found.append(name)
            todo += re.findall(r'(?:from|import)"\./([^"]+)"', (scripts / name).read_text())
    return found


PRELOADS = "".join(
    f'<link rel="modulepreload" fetchpriority="low" crossorigin href="./static/js/{name}">'
    for name in _modules()
)
EARLY = f"""<link rel="preload" as="script" fetchpriority="low" href=".{PLOTLY}">{PRELOADS}
<script>
new MutationObserver((_, observer) => {{
  if (!document.querySelector('[data-test-connection-state="CONNECTED"]')) return;
  observer.disconnect();
  document.head.append(Object.assign(
    document.createElement("script"), {{ src: ".{PLOTLY}", onerror() {{ this.remove(); }} }}));
}}).observe(document, {{ subtree: true, childList: true, attributeFilter: ["data-test-connection-state"] }});
</script>"""
"""Lets the browser fetch these beside Streamlit's scripts, and run Plotly's while the server computes the page."""
A_DAY = "public, max-age=86400"


class CompressedAnswer(NamedTuple):
    """A compressed response."""

    headers: list[tuple[bytes, bytes]]
    etag: str
    body: bytes


class Compressed:
    """Middleware that compresses and caches files of ``/static`` and ``/component``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._kept: dict[str, CompressedAnswer] = {}
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds from the cache, or passes the request on and caches the response."""
        path = scope.get("path", "")[len(scope.get("root_path", "")) :]
        if scope["type"] != "http" or not path.startswith(FOLDERS):
            await self.app(scope, receive, send)
            return
        send = _without_fallback(path, send)
        if scope["method"] != "GET" or not path.endswith(KINDS):
            await self.app(scope, receive, send)
            return
        asked = Headers(scope=scope)
        if "gzip" not in asked.get("accept-encoding", "") or "range" in asked:
            await self.app(scope, receive, send)
            return
        if path not in self._kept:
            whole = [
                header
                for header in scope["headers"]
                if header[0] not in (b"accept-encoding", b"if-none-match")
            ]
            answer = _Whole()
            if path == PLOTLY:
                answer.headers = [(b"content-type", b"application/javascript")]
                packed = await asyncio.to_thread(plotly)
            else:
                await self.app(
                    {**scope, "headers": whole}, receive, _without_fallback(path, answer.take)
                )
                if answer.status != 200 or self._bytes > MOST_BYTES:
                    await answer.send_on(send)
                    return
                packed = await asyncio.to_thread(gzip.compress, answer.body, 6)
            self._keep(path, answer.headers, packed)
        await _send(self._kept[path], asked.get("if-none-match", ""), send)

    def _keep(self, path: str, headers: list[tuple[bytes, bytes]], packed: bytes) -> None:
        etag = f'"{sha256(packed).hexdigest()[:32]}"'
        left = (b"content-length", b"etag", b"accept-ranges", b"last-modified", b"vary", b"date")
        kept = [header for header in headers if header[0].lower() not in left]
        if not any(b"max-age" in value for name, value in kept if name.lower() == b"cache-control"):
            kept = [one for one in kept if one[0].lower() != b"cache-control"]
            kept.append((b"cache-control", A_DAY.encode()))
        kept += [
            (b"content-encoding", b"gzip"),
            (b"vary", b"Accept-Encoding"),
            (b"etag", etag.encode()),
        ]
        if path not in self._kept:
            self._bytes += len(packed)
        self._kept[path] = CompressedAnswer(kept, etag, packed)


@lru_cache(maxsize=1)
def plotly() -> bytes:
    """Plotly's script, compressed."""
    return gzip.compress(PLOTLY_FILE.read_bytes(), 6)


def _without_fallback(path: str, send: Send) -> Send:
    """Sends 404 where Streamlit answers for a missing file with its page; no browser keeps an error.

    In a rolling upgrade a page of one version may ask a server of the other for its scripts.
    Source: streamlit 1.67, starlette_static_routes.py, ``get_response``.
    """
    is_page = False

    async def sending(message: Message) -> None:
        nonlocal is_page
        if message["type"] == "http.response.start":
            kind = Headers(raw=message["headers"]).get("content-type", "")
            is_page = kind.startswith("text/html") and not path.endswith(".html")
            if is_page:
                message = {**message, "status": 404, "headers": [(b"content-type", b"text/plain")]}
            if message["status"] >= 400:
                kept = [
                    header for header in message["headers"] if header[0].lower() != b"cache-control"
                ]
                message = {**message, "headers": [*kept, (b"cache-control", b"no-store")]}
        elif is_page:
            message = {**message, "body": b""}
        await send(message)

    return sending


class _Whole:
    """Collects a whole response."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""

    async def take(self, message: Message) -> None:
        """Takes one message of the response."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        else:
            self.body += message.get("body", b"")

    async def send_on(self, send: Send) -> None:
        """Sends the response unchanged."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


async def _send(kept: CompressedAnswer, known: str, send: Send) -> None:
    if kept.etag in known:
        await send({"type": "http.response.start", "status": 304, "headers": kept.headers})
        await send({"type": "http.response.body", "body": b""})
        return
    length = (b"content-length", str(len(kept.body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [*kept.headers, length]})
    await send({"type": "http.response.body", "body": kept.body})
