"""Headers with which a browser keeps the page to itself; and no question to a host that shows the server its address.

The policy lets the page load scripts, styles, fonts and pictures from its own server alone. Streamlit needs two
exceptions: styles inside the page, and scripts that are compiled while it runs.

Source: CSP Level 3 (W3C); Fetch, section 3.6 (nosniff); Referrer Policy (W3C); streamlit 1.67, ``net_util.py``.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import net_util

POLICY = {
    "default-src": "'self'",
    "script-src": "'self' 'unsafe-inline' blob:",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "worker-src": "'self' blob:",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'self' https://huggingface.co https://*.streamlit.app",
}
"""Content-Security-Policy. The last row: who may frame the page, as Spaces and Community Cloud do."""
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{key} {value}" for key, value in POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # an address holds a setup
}


class Headers:
    """Middleware that adds the headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes requests on, and adds the headers to the responses."""
        if scope["type"] != "http":  # a websocket's messages, many a second
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, with_headers)


def ask_no_address() -> None:
    """Keeps Streamlit from asking checkip.amazonaws.com for the server's address.

    It does so when it starts on all addresses, to print it, and at each websocket of another origin, to compare it: a
    second or two in which nobody is served. Such a websocket is now refused at once, unless the server's settings or
    its own network interface name its origin.
    """
    net_util.get_external_ip = lambda: None
