"""A setup's picture is self-contained, and each address serves the tags that unfold a link to it."""

from __future__ import annotations

import asyncio
import io
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from html import escape, unescape
from itertools import pairwise
from unittest.mock import patch
from urllib.parse import urlencode

import pytest
import streamlit
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dashboard.address.example import EXAMPLE
from dashboard.figures import share_card
from dashboard.site import static_files, unfolding
from dashboard.site.bounded_pool import BoundedPool
from dashboard.words import one_line, units
from estimator import Estimate, contract, estimate
from tests.test_start_page import move, open_page
from tests.test_start_page import text as text_of

DOES_NOT_FIT = estimate(*contract.parse(dict(EXAMPLE)))
FITS = estimate(*contract.parse({**EXAMPLE, "method": "qlora"}))
LINK, DAY = "https://headroom.example.org", "2026-11-22"


@pytest.mark.parametrize("of", [FITS, DOES_NOT_FIT], ids=["fits", "does not fit"])
def test_the_picture_is_self_contained(of):
    said = unescape(share_card.svg(of, DAY, LINK))
    for text in (
        "Mistral-7B-v0.1",
        "A100-SXM4-80GB",
        units.between(of.need_low_bytes, of.need_high_bytes),
        "79.1 GiB usable",
        "Weights",
        "Context, allocator",
        one_line.setup_line(of),
        DAY,
        LINK,
    ):
        assert text in said
    assert one_line.run(of) in said
    assert ("$" in said) is of.can_run


def test_parts_of_the_picture_have_an_outline_and_what_only_marks_has_none():
    boxes = re.findall(r"<rect [^>]*>", share_card.svg(FITS, DAY, LINK))
    outlined = [box for box in boxes if "stroke=" in box]
    # each part once in the bar and once in the legend; none: the ground, the verdict's edge, the card's line
    assert len(outlined) == 2 * sum(map(bool, share_card.peak_parts(FITS).values()))
    assert len(boxes) - len(outlined) == 3


def test_the_labels_of_the_pictures_legend_stand_side_by_side():
    texts = re.findall(
        r'<text x="([-\d.]+)" y="(\d+)" font-size="20"[^>]*>([^<]*)',
        share_card.svg(FITS, DAY, LINK),
    )
    keys = [(int(y), float(x), unescape(label)) for x, y, label in texts if int(y) >= 500]
    rows = {y: [key for key in keys if key[0] == y] for y, *_ in keys}
    assert 500 in rows
    for row in rows.values():
        for (_, at, label), (_, later, _) in pairwise(row):
            assert later - at >= 10 * len(label)  # 20 pixels high, about half as wide


def short_by(of: Estimate) -> str:
    capacity = of.gpu.memory_bytes
    return units.between(of.need_low_bytes - capacity, of.need_high_bytes - capacity)


def test_the_picture_of_a_run_that_does_not_fit_shows_no_hours():
    said = share_card.svg(DOES_NOT_FIT, DAY, LINK)
    assert f"Does not fit: {short_by(DOES_NOT_FIT)} short" in said
    assert "It runs out at the first optimizer step" in said
    assert "hours" not in said
    assert "$" not in said


def test_the_png_is_the_same_picture():
    with Image.open(io.BytesIO(share_card.png(FITS, DAY, LINK))) as image:
        assert image.size == (share_card.WIDTH, share_card.HEIGHT)
        assert len(image.getcolors(1 << 20) or []) > 8, "bars in their colours, and letters"


def test_a_picture_is_drawn_without_a_session_and_follows_the_setup_on_screen():
    """Streamlit makes a deferred file in a thread of its own; the address chooses no section, which opens the first."""
    asked = {"model": "Qwen/Qwen3-8B", "gpu": "L4", "method": "qlora"}
    with patch.object(streamlit, "download_button") as button:
        page = open_page(**asked, section="")
        png, svg = (call.args[1] for call in button.call_args_list)
        move(page, "max_length", 512)
    assert "At the peak</th>" in text_of(page), "what fills it"
    moved = estimate(*contract.parse({**asked, "max_length": 512}))
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(png).result().startswith(b"\x89PNG")
        assert one_line.setup_line(moved) in unescape(thread.submit(svg).result())


def tags(path: str, query: str) -> str:
    return unfolding.head(path, query, LINK, unfolding.preview(path, query))


def test_names_in_the_address_are_escaped_in_the_tags():
    nasty = 'model=mistralai/Mistral-7B-v0.1&gpu=L4&x="><script>alert(1)</script>'
    written = tags("/", nasty)
    assert "<script>" not in written
    assert escape('"><script>', quote=True) in written


def test_the_tags_name_the_addressed_setup():
    written = unescape(tags("/", "model=Qwen/Qwen3-8B&gpu=L4&method=qlora"))
    assert "<title>QLoRA of Qwen3-8B on L4: fits, 4.7 GiB free</title>" in written
    assert f'og:image" content="{LINK}/share/card.png?model=Qwen/Qwen3-8B&gpu=L4' in written


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/compare", ""),
        ("/", "model=nobody/knows-it"),
        ("/", "x" * 9000),
    ],
)
def test_an_address_without_an_estimate_has_generic_tags_and_no_picture(path, query):
    written = tags(path, query)
    assert f"<title>{unfolding.NAME}</title>" in written
    assert "og:image" not in written


def test_a_comparison_names_its_setups_and_those_not_estimated():
    scenarios = ["small~m.Qwen/Qwen3-0.6B~g.L4", "strange~m.nobody/knows-it"]
    written = tags("/compare", urlencode({"s": scenarios}, doseq=True))
    assert "<title>2 setups compared</title>" in written
    assert "small: needs up to 7.5 GiB, fits. strange: not estimated." in written


def answer_of(path: str, query: str = "", body: bytes = b"") -> tuple[dict, bytes]:
    """What the middleware sends if the server behind it sends this text in two chunks."""
    sent: list[dict] = []

    async def server(scope, receive, send):
        headers = [
            (b"content-length", b"%d" % len(body)),
            (b"etag", b"x"),
            (b"content-type", b"text/html"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body[:20], "more_body": True})
        await send({"type": "http.response.body", "body": body[20:]})

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "https",
        "path": path,
        "query_string": query.encode(),
        "headers": [(b"host", b"headroom.example.org")],
        "server": ("headroom.example.org", 443),
    }
    # in a separate thread: Playwright leaves an event loop running after browser tests
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(lambda: asyncio.run(unfolding.OpenGraph(server)(scope, None, send))).result()
    start, *pieces = sent
    return dict(start["headers"]), b"".join(piece.get("body", b"") for piece in pieces)


def test_previews_are_computed_beside_the_loop_and_busy_beyond_a_bound(monkeypatch):
    """While one is computed and no more may wait, a picture is told to come again, and a page has general tags."""
    threads, pool, go_on = [], BoundedPool("previews", threads=1, most=1), threading.Event()

    def slow(query: str) -> None:
        threads.append(threading.current_thread().name)
        go_on.wait(20)

    monkeypatch.setattr(unfolding, "setup_of", slow)
    monkeypatch.setattr(unfolding, "POOL", pool)
    monkeypatch.setattr(unfolding, "PATIENCE", 0.0)
    client = TestClient(Starlette(routes=unfolding.ROUTES))
    _, impatient = answer_of("/", "model=first", unfolding.TITLE.encode())
    _, busy = answer_of("/", "model=second", unfolding.TITLE.encode())
    refused = client.get(f"{unfolding.PICTURE}?model=third")
    go_on.set()
    assert unfolding.NAME.encode() in impatient
    assert unfolding.NAME.encode() in busy
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
    pool._threads.shutdown()
    assert threads == ["previews_0"], (
        "neither the loop's thread, nor any for those that were refused"
    )


def test_the_tags_replace_streamlits_title():
    page = b"<html><head><meta charset='utf-8'><title>Streamlit</title></head><body></body></html>"
    headers, body = answer_of("/", "model=Qwen/Qwen3-8B&gpu=L4&method=qlora", page)
    assert b"<title>Streamlit</title>" not in body
    assert body.endswith(b"</head><body></body></html>")
    assert int(headers[b"content-length"]) == len(body)
    assert b"etag" not in headers, "the text differs by its address"


@pytest.mark.parametrize(("path", "early"), [("/", True), ("/compare", True), ("/how", False)])
def test_a_page_that_opens_on_a_figure_fetches_plotly_early(path, early):
    _, body = answer_of(path, body=unfolding.TITLE.encode())
    assert (static_files.PLOTLY.encode() in body) is early


def test_files_pass_through_unchanged():
    script = b"const a = '<title>Streamlit</title>' // a script"
    assert answer_of("/static/js/index.js", body=script)[1] == script


def test_streamlits_page_has_the_title_to_replace():
    from importlib.resources import files

    page = (files("streamlit") / "static" / "index.html").read_text()
    assert page.count(unfolding.TITLE) == 1
