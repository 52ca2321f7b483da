"""Scripts are compressed once and served from memory; everything else passes through unchanged."""

from __future__ import annotations

import gzip
import re
from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from dashboard.site import static_files
from dashboard.widgets import drawing

TEXT = "let a = 1;\n" * 1000


def served() -> tuple[TestClient, list[str]]:
    """A server of one script, and the paths requested from it."""
    asked: list[str] = []

    async def script(request: Request) -> Response:
        asked.append(request.url.path)
        if request.path_params["name"] == "c.js":  # Streamlit's answer for a file that it lacks
            return HTMLResponse("<html>", 200, {"Cache-Control": "no-cache"})
        found = request.path_params["name"] == "a.js"
        return Response(TEXT, 200 if found else 404, {"Cache-Control": "max-age=31536000"})

    async def page(request: Request) -> Response:
        return PlainTextResponse(request.headers.get("accept-encoding", ""))

    routes = [Route("/static/{name}", script), Route("/x", page)]
    app = Starlette(routes=routes, middleware=[Middleware(static_files.Compressed)])
    return TestClient(app), asked


def test_a_script_is_read_and_compressed_once():
    client, asked = served()
    first, second = (client.get("/static/a.js") for _ in range(2))
    assert asked == ["/static/a.js"]
    assert first.text == second.text == TEXT
    assert first.headers["content-encoding"] == "gzip"
    assert int(first.headers["content-length"]) < len(TEXT) / 10
    assert first.headers["cache-control"] == "max-age=31536000"
    assert "accept-encoding" in first.headers["vary"].lower()


def test_a_cached_script_gets_304_and_clients_without_gzip_get_it_plain():
    client, _ = served()
    etag = client.get("/static/a.js").headers["etag"]
    again = client.get("/static/a.js", headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    plain = client.get("/static/a.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == TEXT


def test_missing_scripts_are_not_cached_and_pages_pass_through():
    client, asked = served()
    assert [client.get("/static/b.js").status_code for _ in range(2)] == [404, 404]
    assert asked == ["/static/b.js"] * 2
    for encoding in ("gzip", "identity"):
        gone = client.get("/static/c.js", headers={"Accept-Encoding": encoding})
        assert (gone.status_code, gone.text) == (404, "")
        assert gone.headers["cache-control"] == "no-store"
    assert client.get("/x").text  # the page answers with the request's Accept-Encoding


def test_plotly_is_served_before_the_first_run_declares_it():
    client, asked = served()
    assert f"/{drawing.SCRIPT}" == static_files.PLOTLY
    with client.stream("GET", static_files.PLOTLY) as answer:
        packed = b"".join(answer.iter_raw())
    script, whole = gzip.decompress(packed), files("plotly") / "package_data" / "plotly.min.js"
    said = re.compile(rb"plotly\.js .*v([\d.]+)")
    versions = [said.findall(one[:200]) for one in (script, whole.read_bytes())]
    assert versions[0] == versions[1] != [], "figures are tested against the package"
    # the traces of all figures, as plotly.js registers them
    assert all(
        f'moduleType:"trace",name:"{word}"'.encode() in script
        for word in ("bar", "heatmap", "scatter")
    )
    assert answer.headers["cache-control"] == static_files.A_DAY
    assert asked == []


def test_the_page_preloads_the_scripts_of_its_first_widgets_that_exist():
    # a browser asks for a script that it cannot find at each visit, and nobody sees it
    asked = re.findall(r'rel="modulepreload"[^>]* href="\./([^"]+)"', static_files.EARLY)
    assert {Path(one).name.partition(".")[0] for one in asked} > set(static_files.FIRST_DRAWN)
    assert all((static_files.STREAMLIT / one).is_file() for one in asked)
    own = (static_files.STREAMLIT / "index.html").read_text()
    assert not [one for one in asked if one in own]
