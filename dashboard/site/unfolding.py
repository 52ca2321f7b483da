"""Link previews: title, description and picture of the setup in a URL.

Streamlit sends the same page for every URL, and programs that preview links run no scripts. So the server adds Open
Graph tags to the page. They depend only on the URL and the catalogue; the Hub is not asked.

Source: https://ogp.me (og:title, og:description, og:image, og:url); streamlit 1.67, ``st.App`` takes routes and
middleware.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date
from functools import lru_cache, partial
from html import escape
from typing import NamedTuple
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboard import theme
from dashboard.address import parts, unbound
from dashboard.address.example import EXAMPLE
from dashboard.figures import share_card
from dashboard.site import static_files
from dashboard.site.bounded_pool import BoundedPool, BusyError
from dashboard.words import units
from estimator import Estimate, contract, estimate

PICTURE = "/share/card.png"
ESTIMATE = ("", "/", "/setup")
"""Paths of the page Estimate."""
COMPARE = "/compare"
PAGE_KEYS = (*parts.KEYS, contract.REHEARSED, "s", "setup", "v", "context", "within", "present")
LONGEST = 8192
"""Maximum characters of a URL that are read. Our choice, above what servers accept."""
TITLE = "<title>Streamlit</title>"
NAME = "Headroom: will this fine-tuning run fit?"
SAID = "Memory, hours and dollars of a fine-tuning run, before it starts."


POOL = BoundedPool("previews", threads=1, most=8)
"""One thread, since Python runs one at a time; more requests than these are told to come again. Our choice."""
PATIENCE = 2.0
"""Seconds that a page waits for its tags, before it is sent with general ones. Our choice: those who preview links wait
longer, and visitors need none."""
RETRY_SECONDS = 10
"""After which a program may ask again for a picture. Our choice."""


class Preview(NamedTuple):
    """What is said of an address."""

    title: str
    said: str
    has_picture: bool = False


GENERAL = Preview(NAME, SAID)


def setup_of(query: str) -> Estimate | None:
    """Estimate of the setup in a URL; None if it is refused or its model is not in the catalogue."""
    if len(query) > LONGEST:
        return None
    given = {key: texts for key, texts in parse_qs(query).items() if key not in PAGE_KEYS}
    asked = given or {key: unbound.spelled(value) for key, value in EXAMPLE.items()}
    try:
        reading = contract.read_link(asked)
        if reading.model is None:
            return None
        return estimate(reading.model, reading.gpu, reading.setup)
    except ValueError:
        return None


def comparison_of(query: str) -> Preview | None:
    """Title and description of a comparison; None if its URL names no scenario.

    >>> comparison_of("s=small~m.Qwen/Qwen3-0.6B~g.L4")[:2]
    ('1 setup compared', 'small: needs up to 7.5 GiB, fits.')
    """
    if len(query) > LONGEST:
        return None
    given = parse_qs(query)
    scenarios = contract.read_texts(given.get("s", ()), version=given.get("v", ())).scenarios
    if not scenarios:
        return None
    said = " ".join(
        f"{scenario.name}: {_answer(contract.read(scenario))}." for scenario in scenarios
    )
    return Preview(f"{len(scenarios)} setup{'s' * (len(scenarios) > 1)} compared", said)


@lru_cache(maxsize=512)
def preview(path: str, query: str) -> Preview:
    """Title and description for a URL: of its setup or comparison, else of the whole dashboard."""
    if path in ESTIMATE and (of := setup_of(query)):
        return Preview(share_card.title(of), share_card.description(of), has_picture=True)
    return (comparison_of(query) if path == COMPARE else None) or GENERAL


def _answer(asked: contract.Reading) -> str:
    try:
        of = estimate(asked.model, asked.gpu, asked.setup) if asked.model else None
    except ValueError:
        of = None
    if of is None:
        return "not estimated"
    word = f", {theme.VERDICTS[of.verdict].label.lower()}" if of.verdict else ""
    return f"needs up to {units.gib(of.need_high_bytes)}{word}"


def head(path: str, query: str, origin: str, of: Preview) -> str:
    """The tags for a URL, with the title of its page."""
    address = f"{origin}{path or '/'}{'?' * bool(query)}{query}"
    tags = {"og:title": of.title, "og:description": of.said, "og:type": "website"}
    tags["og:url"] = address
    if of.has_picture:
        tags["og:image"] = f"{origin}{PICTURE}{'?' * bool(query)}{query}"
        tags |= {"og:image:width": str(share_card.WIDTH), "og:image:height": str(share_card.HEIGHT)}
        tags["og:image:alt"] = of.title
    lines = [
        f'<meta property="{key}" content="{escape(text, quote=True)}">'
        for key, text in tags.items()
    ]
    card = "summary_large_image" if of.has_picture else "summary"
    lines += [
        f'<meta name="{key}" content="{escape(text, quote=True)}">'
        for key, text in {"description": of.said, "twitter:card": card}.items()
    ]
    return f"<title>{escape(of.title)}</title>{''.join(lines)}"


async def _preview(path: str, query: str) -> Preview:
    """The same as ``preview``, computed in the pool; general if that is busy or takes too long."""
    if path not in (*ESTIMATE, COMPARE):
        return GENERAL
    try:
        return await POOL.run((path, query), partial(preview, path, query), PATIENCE)
    except (BusyError, TimeoutError):
        return GENERAL


@lru_cache(maxsize=64)
def _drawn(query: str, day: str, link: str) -> bytes | None:
    of = setup_of(query)
    return None if of is None else share_card.png(of, day, link)


async def picture(request: Request) -> Response:
    """The picture of the setup in a URL; 503 while as many as may wait are computed."""
    link = str(request.url.replace(path="/", query="")).rstrip("/")
    asked = (request.url.query, date.today().isoformat(), link)
    try:
        drawn = await POOL.run(asked, partial(_drawn, *asked))
    except BusyError:
        retry = {"Retry-After": str(RETRY_SECONDS)}
        return PlainTextResponse("Busy; ask again soon.", status_code=503, headers=retry)
    if drawn is None:
        return PlainTextResponse("This address names no setup that can be drawn.", status_code=404)
    return Response(drawn, media_type="image/png", headers={"Cache-Control": "max-age=3600"})


ROUTES = [Route(PICTURE, picture)]


class OpenGraph:
    """Middleware that puts the tags into the page that Streamlit sends."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes requests on, and adds the tags to the responses for pages."""
        if scope["type"] != "http" or scope["method"] != "GET" or _is_file(scope["path"]):
            await self.app(scope, receive, send)
            return
        headers = [(key, value) for key, value in scope["headers"] if key not in NOT_PASSED]
        request = Request(scope)
        path, query = scope["path"], request.url.query
        origin = str(request.base_url).rstrip("/")
        tags = head(path, query, origin, await _preview(path, query))
        if path in (*ESTIMATE, COMPARE):  # they open on a figure
            tags += static_files.EARLY
        await self.app({**scope, "headers": headers}, receive, _with(tags, send))


NOT_PASSED = (b"accept-encoding", b"if-none-match", b"if-modified-since", b"range")
"""Request headers to drop, so that Streamlit sends the page in full, uncompressed and every time."""


def _is_file(path: str) -> bool:
    """Whether a path is a file or a path of Streamlit's own, not a page."""
    return (
        path.startswith(("/_stcore", "/static", "/component", "/media", "/share"))
        or "." in path.rpartition("/")[2]
    )


def _with(tags: str, send: Send) -> Callable[[Message], Awaitable[None]]:
    """Buffers the response and replaces its title by the tags."""
    held: list[Message] = []
    pieces: list[bytes] = []

    async def forward(message: Message) -> None:
        if message["type"] == "http.response.start":
            held.append(message)
            return
        pieces.append(message.get("body", b""))
        if message.get("more_body"):
            return
        body = b"".join(pieces).replace(TITLE.encode(), tags.encode(), 1)
        (start,) = held
        kept = [
            header
            for header in start["headers"]
            if header[0].lower() not in (b"content-length", b"etag")
        ]
        length = (b"content-length", str(len(body)).encode())
        await send({**start, "headers": [*kept, length]})
        await send({"type": "http.response.body", "body": body})

    return forward
