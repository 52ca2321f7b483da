"""The only module that calls the Hugging Face Hub: an id becomes a model, or a sentence that says what to do.

At most three small requests: the repository's metadata (ids, licence, gating, safetensors counts), its ``config.json``,
and for an adapter its ``adapter_config.json``. Never weights, never code. Every answer is limited in bytes, the call in
time. `fetch` blocks until then, so a page calls it in a worker thread.

Only the token passed to a call is sent, and only for that call. Without one no token is sent, whatever the environment
or ``~/.cache/huggingface`` contain, and the local file cache, which may hold gated files, is not read. So a public
server shows anonymous visitors only what is public.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http.cookiejar import DefaultCookiePolicy
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from estimator.sources import catalog
from estimator.sources.repository import About, HubModel, Trouble, from_config
from estimator.values.json_text import LONGEST_TEXT, read_object
from estimator.values.refusals import show

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

LONGEST_WAIT = 5.0
"""Seconds until an answer, by default: ours."""
LONGEST_ANSWER = 8_000_000
"""Bytes of metadata accepted for one repository: ours; each listed file takes a few hundred."""
MOST_AT_ONCE = 16
"""Concurrent lookups: ours, so that an unresponsive Hub cannot pile up threads."""
KEPT_SECONDS = 600.0
"""How long an answer is kept: ours."""
KEPT_ANSWERS = 256
"""How many: ours; some kilobytes each."""

PASTE = "paste its config.json"
OTHERWISE = "choose a model of the catalogue, or paste a config.json"

# fields of GET /api/models/{id}; huggingface_hub 2.4, hf_api.py, ExpandModelProperty_T
ASKED = ("gated", "library_name", "pipeline_tag", "safetensors", "sha", "siblings", "tags")

NO_COOKIES = DefaultCookiePolicy(allowed_domains=())
"""Keeps no cookie and sends none."""

_SURE = frozenset(
    {
        Trouble.BAD_ID,
        Trouble.NOT_FOUND,
        Trouble.GATED,
        Trouble.DISABLED,
        Trouble.NO_CONFIG,
        Trouble.UNREADABLE,
        Trouble.NOT_A_DECODER,
        Trouble.NOT_MODELLED,
    }
)
"""Troubles that a retry would not resolve; only these are cached."""


class _Refused(Exception):
    """Why there is no model, and what to do."""

    def __init__(self, trouble: Trouble, sentence: str) -> None:
        super().__init__(sentence)
        self.trouble = trouble


def fetch(
    asked: str,
    *,
    token: str | None = None,
    endpoint: str | None = None,
    seconds: float = LONGEST_WAIT,
) -> HubModel:
    """The model of a Hub id or page address; never raises, and returns within ``seconds``.

    ``token`` is used only for this call: it never enters an answer, a sentence or the cache. ``endpoint``: the Hub's
    address, by default ``HF_ENDPOINT`` or https://huggingface.co.
    """
    hub_id, token = catalog.as_hub_id(asked), (token or "").strip() or None
    key = (endpoint or "", hub_id.casefold())
    kept = _KEPT.get(key)
    if kept is not None and (kept.model is not None or token is None):
        return kept
    found = _within(seconds, hub_id, token, endpoint)
    if token is None and (found.model is not None or found.trouble in _SURE):
        _KEPT.put(key, found)
    return found


def own_token() -> str | None:
    """The local user's token, from ``HF_TOKEN`` or ``hf auth login``; only for the command line."""
    try:
        from huggingface_hub import get_token
    except ImportError:
        return None
    return get_token()


def forget() -> None:
    """Clear the cached answers."""
    _KEPT.clear()


# --- bounded in time ----------------------------------------------------------------------------

_free = threading.BoundedSemaphore(MOST_AT_ONCE)


def _within(seconds: float, hub_id: str, token: str | None, endpoint: str | None) -> HubModel:
    """Ask in a thread and abandon it at the deadline, since a DNS lookup ignores the client's timeout."""
    deadline = time.monotonic() + seconds
    answer: SimpleQueue[HubModel] = SimpleQueue()
    if not _free.acquire(timeout=seconds):
        return _refusal(hub_id, _slow(seconds))

    def ask() -> None:
        try:
            answer.put(_ask(hub_id, token, endpoint, seconds, deadline))
        finally:
            _free.release()

    threading.Thread(target=ask, name="hub", daemon=True).start()
    try:
        return answer.get(timeout=max(0.0, deadline - time.monotonic()))
    except Empty:
        return _refusal(hub_id, _slow(seconds))


def _slow(seconds: float) -> _Refused:
    return _Refused(
        Trouble.SLOW,
        f"The Hub has not answered within {seconds:g} s; try again, {OTHERWISE}.",
    )


def _refusal(hub_id: str, why: _Refused, about: About | None = None) -> HubModel:
    return HubModel(about=about or About(hub_id=hub_id), trouble=why.trouble, problem=str(why))


class _Kept:
    """Cached answers to requests without a token, with an expiry; evicts the oldest first."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, str], tuple[float, HubModel]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, str]) -> HubModel | None:
        with self._lock:
            until, found = self._answers.get(key, (0.0, None))
        return found if time.monotonic() < until else None

    def put(self, key: tuple[str, str], found: HubModel) -> None:
        with self._lock:
            self._answers[key] = (time.monotonic() + KEPT_SECONDS, found)
            self._answers.move_to_end(key)
            while len(self._answers) > KEPT_ANSWERS:
                self._answers.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._answers.clear()


_KEPT = _Kept()


# --- one question -------------------------------------------------------------------------------


def _ask(
    hub_id: str, token: str | None, endpoint: str | None, seconds: float, deadline: float
) -> HubModel:
    try:
        return _found(_Hub.of(token, endpoint, seconds, deadline), hub_id, may_be_adapter=True)
    except _Refused as why:
        return _refusal(hub_id, why)
    except ImportError:
        needs = "Asking the Hub needs huggingface_hub; install it (pip install huggingface_hub)"
        return _refusal(hub_id, _Refused(Trouble.OFFLINE, f"{needs}, {OTHERWISE}."))
    except Exception as fault:  # nothing would catch it in a worker thread
        said = (
            f"The Hub's answer could not be read ({type(fault).__name__}); try again, {OTHERWISE}."
        )
        return _refusal(hub_id, _Refused(Trouble.DOWN, said))


def _found(hub: _Hub, hub_id: str, *, may_be_adapter: bool) -> HubModel:
    info = hub.repository(hub_id)
    about = _about(info, hub_id)
    files = _file_names(info)
    try:
        if "config.json" in files:
            found = from_config(_config(hub, about, info, "config.json"), about)
        elif "adapter_config.json" in files and may_be_adapter:
            found = _base_of(hub, about, info)
        else:
            raise _Refused(*_without_config(about, info, files))
    except _Refused as why:
        found = _refusal(hub_id, why, about)
    if about.hub_id.casefold() == hub_id.casefold():
        return found
    return _with_note(found, f"{hub_id} is called {about.hub_id} on the Hub now.")


def _config(hub: _Hub, about: About, info: Mapping[str, object], name: str) -> dict[str, object]:
    sha = info.get("sha")
    revision = sha if isinstance(sha, str) and re.fullmatch("[0-9a-f]{40}", sha) else "main"
    text = hub.file(about.hub_id, name, revision)
    if len(text) > LONGEST_TEXT:
        raise _Refused(
            Trouble.UNREADABLE,
            f"The {name} of {about.hub_id} is longer than {LONGEST_TEXT} bytes and is not read; choose another "
            "model, or paste the part of it that describes the text model.",
        )
    try:
        return read_object(text, f"The {name} of {about.hub_id}", "one JSON object")
    except ValueError as problem:
        advice = f"{problem} Tell its authors, or choose another model."
        raise _Refused(Trouble.UNREADABLE, advice) from None


def _base_of(hub: _Hub, about: About, info: Mapping[str, object]) -> HubModel:
    """The model that an adapter was trained on."""
    adapter = _config(hub, about, info, "adapter_config.json")
    base = adapter.get("base_model_name_or_path")
    if not isinstance(base, str) or not _is_id(base):
        raise _Refused(
            Trouble.NO_CONFIG,
            f"{about.hub_id} is an adapter whose adapter_config.json names {show(base)} as its base, which is no id on "
            "the Hub; ask for the model it was trained on.",
        )
    found = _catalogued(base) or _found(hub, base, may_be_adapter=False)
    return _with_note(
        found, f"{about.hub_id} is an adapter; this is its base, {found.about.hub_id}."
    )


def _catalogued(hub_id: str) -> HubModel | None:
    """A base model from the catalogue, which saves a request; many are gated."""
    entry = catalog.models().get(hub_id)
    if entry is None:
        return None
    about = About(
        hub_id=hub_id,
        license=entry.license,
        gated=entry.gated,
        published_parameters=entry.published_parameters,
    )
    return HubModel(about=about, model=entry.model)


def _with_note(found: HubModel, note: str) -> HubModel:
    notes = (note, *found.notes)
    model = replace(found.model, notes=notes) if found.model else None
    return replace(found, model=model, notes=notes)


def _without_config(
    about: About, info: Mapping[str, object], files: frozenset[str]
) -> tuple[Trouble, str]:
    origin = f", {about.origin}" * bool(about.origin)
    if "model_index.json" in files or info.get("library_name") == "diffusers":
        return (
            Trouble.NOT_A_DECODER,
            f"{about.hub_id} is a diffusion pipeline; only decoders, which write text token by token, are estimated. "
            "Choose one of those.",
        )
    if any(name.endswith(".gguf") for name in files):
        return (
            Trouble.NO_CONFIG,
            f"{about.hub_id} holds GGUF files for llama.cpp and no config.json; ask for the repository that they were "
            f"made from{origin}.",
        )
    if "adapter_config.json" in files:
        return (
            Trouble.NO_CONFIG,
            f"{about.hub_id} is an adapter on an adapter; ask for the model that it was trained on{origin}.",
        )
    return (
        Trouble.NO_CONFIG,
        f"{about.hub_id} has no config.json; ask for a repository in the format of transformers{origin}, or {PASTE}.",
    )


# --- what the Hub says of a repository ----------------------------------------------------------


def _about(info: Mapping[str, object], hub_id: str) -> About:
    tags = info.get("tags")
    listed = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    name, counts, pipeline = info.get("id"), info.get("safetensors"), info.get("pipeline_tag")
    total = counts.get("total") if isinstance(counts, Mapping) else None
    return About(
        hub_id=name if isinstance(name, str) and _is_id(name) else hub_id,
        license=_tagged(listed, "license:") or "unknown",
        gated=_gated(info.get("gated")),
        published_parameters=total if type(total) is int and total > 0 else None,
        pipeline_tag=pipeline if isinstance(pipeline, str) else "",
        origin=_origin(listed),
    )


def _gated(value: object) -> str:
    """The API says ``auto`` or ``manual``, or false."""
    match value:
        case False:
            return "no"
        case str():
            return "yes"
        case _:
            return "unknown"


def _tagged(tags: list[str], prefix: str) -> str:
    return next((tag.removeprefix(prefix)[:100] for tag in tags if tag.startswith(prefix)), "")


def _origin(tags: list[str]) -> str:
    """The repository it was derived from: ``base_model:quantized:owner/name``, or without the middle."""
    named = (tag.rpartition(":")[2] for tag in tags if tag.startswith("base_model:"))
    return next((name for name in named if _is_id(name)), "")


def _file_names(info: Mapping[str, object]) -> frozenset[str]:
    siblings = info.get("siblings")
    files = siblings if isinstance(siblings, list) else []
    names = (file.get("rfilename") for file in files if isinstance(file, Mapping))
    return frozenset(name for name in names if isinstance(name, str))


def _is_id(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


# --- requests -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Hub:
    """The Hub for one lookup: its address, the token's headers, and the deadline."""

    endpoint: str
    headers: Mapping[str, str]
    seconds: float
    deadline: float
    has_token: bool

    @classmethod
    def of(cls, token: str | None, endpoint: str | None, seconds: float, deadline: float) -> _Hub:
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers

        well_formed = token is not None and re.fullmatch(r"[!-~]{1,500}", token) is not None
        hub = cls(
            endpoint=(endpoint or constants.ENDPOINT).rstrip("/"),
            headers={
                **build_hf_headers(token=token if well_formed else False),  # False: nor any other
                "accept-encoding": "identity",  # so that LONGEST_ANSWER bounds what is unpacked too
            },
            seconds=seconds,
            deadline=deadline,
            has_token=token is not None,
        )
        if token is not None and not well_formed:
            raise _Refused(Trouble.BAD_TOKEN, f"This is no token; {hub.another_token}")
        return hub

    @property
    def another_token(self) -> str:
        return f"copy it anew from {self.endpoint}/settings/tokens, or leave it out."

    def repository(self, hub_id: str) -> dict[str, object]:
        """The Hub's metadata of a repository, which follows renames."""
        if not _is_id(hub_id):
            raise _Refused(
                Trouble.BAD_ID,
                f"{show(hub_id)} is no id on the Hub; give owner/name, such as mistralai/Mistral-7B-v0.1.",
            )
        address = f"{self.endpoint}/api/models/{hub_id}"
        text = self._get(hub_id, address, {"expand": list(ASKED)}, most=LONGEST_ANSWER)
        if len(text) > LONGEST_ANSWER:
            raise _Refused(
                Trouble.UNREADABLE,
                f"{self.endpoint} says more than {LONGEST_ANSWER} bytes of {hub_id}, which are not read; {PASTE}.",
            )
        try:
            return read_object(text, "The Hub's answer", longest=LONGEST_ANSWER)
        except ValueError:
            raise _Refused(
                Trouble.DOWN,
                f"{self.endpoint} answers with something else than the Hub would; look whether it is the right "
                f"address, {OTHERWISE}.",
            ) from None

    def file(self, hub_id: str, name: str, revision: str) -> bytes:
        """A small file of a repository."""
        address = f"{self.endpoint}/{hub_id}/resolve/{revision}/{name}"  # as hf_hub_url writes it
        return self._get(hub_id, address, {}, most=LONGEST_TEXT)

    def _get(
        self, hub_id: str, address: str, asked: Mapping[str, list[str]], *, most: int
    ) -> bytes:
        """The body of a response, at most ``most`` + 1 bytes; every failure is raised as `_Refused`."""
        from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled
        from huggingface_hub.utils import get_session, hf_raise_for_status

        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _slow(self.seconds)
        session = (
            get_session()
        )  # one for all visitors: it shall bring no cookie of one's to the next
        session.cookies.jar.set_policy(NO_COOKIES)
        try:
            with session.stream(
                "GET",
                address,
                params=asked,
                headers=dict(self.headers),
                timeout=left,
                follow_redirects=True,
            ) as answer:
                hf_raise_for_status(answer)
                body = bytearray()
                for piece in answer.iter_raw(64 * 1024):
                    body += piece
                    if len(body) > most or time.monotonic() > self.deadline:
                        break
                if time.monotonic() > self.deadline:
                    raise _slow(self.seconds)
                return bytes(body[: most + 1])
        except HfHubHTTPError as failure:
            raise _refused(self, hub_id, failure) from None
        except OfflineModeIsEnabled:
            raise _Refused(
                Trouble.OFFLINE,
                f"HF_HUB_OFFLINE is set, so the Hub is not asked for {hub_id}; unset it, {OTHERWISE}.",
            ) from None
        except (
            HTTPError
        ) as failure:  # of httpx, whose timeouts and broken connections are no OSError
            if "Timeout" in type(failure).__name__:
                raise _slow(self.seconds) from None
            raise _Refused(
                Trouble.DOWN,
                f"The Hub cannot be reached at {self.endpoint}; try again later, {OTHERWISE}.",
            ) from None


def _refused(hub: _Hub, hub_id: str, failure: HfHubHTTPError) -> _Refused:
    """Explain an HTTP error of the Hub; subclasses are matched before their base classes."""
    from huggingface_hub import errors

    page, status = f"{hub.endpoint}/{hub_id}", failure.response.status_code
    match failure:
        case errors.GatedRepoError() if hub.has_token:
            return _Refused(
                Trouble.GATED,
                f"{hub_id} is gated, and the account of this token has no access; ask for it at {page} and try again "
                f"when it is granted, or {PASTE}.",
            )
        case errors.GatedRepoError():
            return _Refused(
                Trouble.GATED,
                f"{hub_id} is gated; accept its terms at {page} and give a token of that account, or {PASTE}.",
            )
        case errors.RepositoryNotFoundError():
            seen = "this token may not see it" if hub.has_token else "it is private"
            token = "" if hub.has_token else ", or give a token that may see it"
            return _Refused(
                Trouble.NOT_FOUND,
                f"{hub_id} is not on the Hub, or {seen}; look for its id at {hub.endpoint}/models{token}.",
            )
        case errors.DisabledRepoError():
            return _Refused(
                Trouble.DISABLED, f"The Hub has disabled {hub_id}; choose another model."
            )
        case errors.EntryNotFoundError():
            return _Refused(
                Trouble.NO_CONFIG,
                f"{hub_id} lists a config that the Hub does not give out; try again, or {PASTE}.",
            )
    if status == 401 and not hub.has_token:
        return _Refused(
            Trouble.GATED,
            f"{hub_id} is private or gated: the Hub wants a token; give one that may see it, or {PASTE}.",
        )
    if status == 401:
        return _Refused(Trouble.BAD_TOKEN, f"The Hub does not know this token; {hub.another_token}")
    if status == 429:
        return _Refused(
            Trouble.RATE_LIMITED,
            f"The Hub takes no more questions from here{_for_how_long(failure.response.headers)}; try again then, "
            f"{OTHERWISE}.",
        )
    if status >= 500:
        return _Refused(
            Trouble.DOWN,
            f"The Hub has a server error (status {status}); try again later, {OTHERWISE}.",
        )
    return _Refused(
        Trouble.NOT_FOUND,
        f"The Hub refuses {hub_id} (status {status}); look at {page}, {OTHERWISE}.",
    )


def _for_how_long(headers: Mapping[str, str]) -> str:
    """How long a rate limit lasts, by the ``RateLimit`` header (its ``t``) or ``Retry-After``."""
    from huggingface_hub.utils import parse_ratelimit_headers

    limit = parse_ratelimit_headers(headers)
    after = headers.get("retry-after", "")
    wait = (
        limit.reset_in_seconds if limit else int(after) if re.fullmatch("[0-9]{1,6}", after) else 0
    )
    return f" for {wait} s" if wait else ""
