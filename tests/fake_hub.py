"""A small Hugging Face Hub on loopback: the HTTP that the real client needs, and failures.

Headers and statuses are the Hub's own, as huggingface_hub 2.4 reads them (utils/_http.py, ``hf_raise_for_status``).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

MEMBER = "hf_member"
"""A token with access to gated and private repositories."""
STRANGER = "hf_stranger"
"""A token that the Hub knows, without access to either."""


@dataclass
class Repository:
    """The Hub's content under one id."""

    files: dict[str, bytes] = field(default_factory=dict)
    info: dict[str, object] = field(default_factory=dict)
    private: bool = False
    disabled: bool = False
    moved_to: str = ""
    answer: Callable[[_Handler], None] | None = None
    """Answers every request for this repository instead of the usual handler."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: tests disconnect early on purpose."""


class FakeHub:
    """Serves ``repositories`` while entered; ``asked`` lists each request's path, ``tokens`` its credentials.

    ``cookies`` lists the cookies that each request sent back.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[str] = []
        self.tokens: list[str | None] = []
        self.cookies: list[str | None] = []
        self.closing = threading.Event()
        hub = self

        class Handler(_Handler):
            @property
            def hub(self) -> FakeHub:
                return hub

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeHub:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def has(
        self,
        hub_id: str,
        config: object = None,
        *,
        files: Mapping[str, bytes | object] | None = None,
        parameters: int | None = None,
        **info: object,
    ) -> Repository:
        """Add a repository; ``info`` is extra content of the API's answer."""
        all_files = dict(files or {}) | ({} if config is None else {"config.json": config})
        written = {
            name: text if isinstance(text, bytes) else json.dumps(text).encode()
            for name, text in all_files.items()
        }
        counted = {} if parameters is None else {"safetensors": {"total": parameters}}
        repository = Repository(files=written, info={**counted, **info})
        self.repositories[hub_id] = repository
        return repository

    def answers(self, hub_id: str, answer: Callable[[_Handler], None]) -> str:
        """Add a repository with its own handler; returns its id."""
        self.repositories[hub_id] = Repository(answer=answer)
        return hub_id


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer waits 40 ms for an acknowledgement

    @property
    def hub(self) -> FakeHub:
        raise NotImplementedError

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        self.hub.asked.append(split.path)
        bearer = self.headers.get("authorization")
        token = bearer.removeprefix("Bearer ") if bearer else None
        self.hub.tokens.append(token)
        self.hub.cookies.append(self.headers.get("cookie"))
        hub_id, name = _wanted(split.path)
        repository = self.hub.repositories.get(hub_id)
        if token not in {None, MEMBER, STRANGER}:
            return self.refuse(401, "", "Invalid credentials in Authorization header")
        if repository is None or (repository.private and token != MEMBER):
            return self.refuse(
                401 if token is None else 404, "RepoNotFound", "Repository not found"
            )
        if repository.answer is not None:
            return repository.answer(self)
        if repository.moved_to:
            return self.send(307, b"", location=self.path.replace(hub_id, repository.moved_to))
        if repository.disabled:
            return self.refuse(403, "", "Access to this resource is disabled.")
        if not name:
            return self.describe(hub_id, repository, parse_qs(split.query).get("expand", []))
        if repository.info.get("gated") and token != MEMBER:
            return self.refuse(401 if token is None else 403, "GatedRepo", "Access is restricted.")
        if name not in repository.files:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        return self.send(200, repository.files[name])

    def describe(self, hub_id: str, repository: Repository, expand: list[str]) -> None:
        files = [{"rfilename": name} for name in repository.files]
        known = {"gated": False, "tags": [], "sha": "c" * 40, "siblings": files, **repository.info}
        shown = {key: known[key] for key in expand if key in known}
        self.send(200, json.dumps({"id": hub_id, **shown}).encode())

    def refuse(self, status: int, code: str, message: str, **headers: str) -> None:
        named = {"x-error-code": code} if code else {}
        self.send(
            status,
            b'{"error": "' + message.encode() + b'"}',
            **named,
            **{"x-error-message": message},
            **headers,
        )

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


def _wanted(path: str) -> tuple[str, str]:
    """The id and the file of ``/api/models/{id}`` or of ``/{id}/resolve/{revision}/{file}``."""
    if path.startswith("/api/models/"):
        return path.removeprefix("/api/models/"), ""
    hub_id, _, rest = path.removeprefix("/").partition("/resolve/")
    return hub_id, rest.partition("/")[2]


# --- repositories with their own handler --------------------------------------------------------


def silence(handler: _Handler) -> None:
    """Accept the request and never answer."""
    handler.hub.closing.wait(10)


def hang_up(handler: _Handler) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True


def drip(handler: _Handler) -> None:
    """Send a byte now and then, so no single read times out."""
    handler.send_response(200)
    handler.send_header("content-length", "100000")
    handler.end_headers()
    try:
        while not handler.hub.closing.wait(0.02):
            handler.wfile.write(b" ")
            handler.wfile.flush()
    except OSError:  # the client has disconnected
        handler.close_connection = True


def fault(handler: _Handler) -> None:
    """An error of the Hub itself."""
    handler.refuse(503, "", "Service unavailable")


def wants_a_token(handler: _Handler) -> None:
    """A mirror's possible answer to a request without a token: no error code of the Hub's."""
    handler.refuse(401, "", "Invalid credentials in Authorization header")


def gives_a_cookie(handler: _Handler) -> None:
    """An error with a cookie that identifies the client."""
    handler.refuse(503, "", "Service unavailable", set_cookie="session=of-a-member; Path=/")


def web_page(handler: _Handler) -> None:
    """A captive portal's answer to everything."""
    handler.send(200, b"<html>Please log in</html>")


def too_many(handler: _Handler) -> None:
    """A rate limit with the Hub's own headers."""
    limit = {"ratelimit": '"api";r=0;t=55', "ratelimit-policy": '"fixed window";"api";q=500;w=300'}
    handler.refuse(429, "", "Too many requests", **limit)


def endless(handler: _Handler) -> None:
    """An endless answer."""
    handler.send_response(200)
    handler.send_header("connection", "close")
    handler.end_headers()
    until = time.monotonic() + 10
    try:
        while time.monotonic() < until and not handler.hub.closing.is_set():
            handler.wfile.write(b" " * 65536)
    except OSError:
        handler.close_connection = True
