"""The model box: any model, of the catalogue, of the Hub, of a config.json, or a known one with other dimensions.

What is in use stands under the key ``in use``, as the address carries it: an id, or the JSON of a model of one's own.
A select box writes its options' texts into an address, not their values; so the widget that the address is bound to,
``model``, is one that is not seen. It follows what is in use: a browser that is busy sends its old value once more.

The Hub is asked in a thread. Until it answers, and where it has no model to give, the page goes on with the model that
it had.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from itertools import count
from urllib.parse import quote

import streamlit as st

from dashboard.address.example import EXAMPLE
from dashboard.state import actions, session
from dashboard.words import wording
from estimator import catalog, hub
from estimator.contract.setups import MODEL_MISSING, read_link, read_setup
from estimator.sources.repository import HubModel, Trouble, from_text
from estimator.values.json_text import read_object
from estimator.values.specs import Model

LONGEST_IN_LINK = 1500
"""Characters that a model may take in an address: ours, so that a link stays under 2,000 with all else in it."""
MOST_KEPT = 100
"""Models of one's own in a session: ours, more than can be undone to."""
MOST_PROPOSED = 6
"""Models that a few words propose: ours, what a phone shows."""
POLL_SECONDS = 0.3
"""How often the page looks whether the Hub has answered: ours."""

POPOVER_PIXELS = 380
"""As wide as a phone lets it be: ours."""

IN_USE = "the model in use"
"""What the contract is asked for where the catalogue lacks the model."""
UNLINKED = "own config"
"""How the address names a config that is too long for it."""
LOST = (
    "The link was of a pasted config.json that is too long for a link; paste it again under “Own model”. The page "
    f"opened on {EXAMPLE['model']}."
)
SHOWN = (
    ("num_hidden_layers", "Layers"),
    ("hidden_size", "Hidden size"),
    ("intermediate_size", "Intermediate size"),
    ("num_attention_heads", "Heads"),
    ("num_key_value_heads", "Key-value heads"),
    ("vocab_size", "Vocabulary"),
)
"""The dimensions that have a field, and what they are called."""
ASK_AGAIN = frozenset(
    {
        Trouble.BAD_TOKEN,
        Trouble.NOT_FOUND,
        Trouble.GATED,
        Trouble.DOWN,
        Trouble.SLOW,
        Trouble.RATE_LIMITED,
    }
)
"""Troubles that another token or another moment may heal."""

_threads = ThreadPoolExecutor(max_workers=2 * hub.MOST_AT_ONCE, thread_name_prefix="ask")


@dataclass(frozen=True, slots=True)
class Asking:
    """A question to the Hub that is under way."""

    hub_id: str
    wanted: Mapping[str, object] | None
    """The model of one's own that is made like it; None: the model itself."""
    answer: Future[HubModel]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no such model, and what was asked."""

    sentence: str
    trouble: Trouble | None = None
    hub_id: str = ""
    wanted: Mapping[str, object] | None = None


# --- what is in use -----------------------------------------------------------------------------


def is_known(option: object) -> bool:
    """Whether a model can be used at once: it is in the catalogue, or was found or made in this session."""
    return option in catalog.models() or option in _found()


def known() -> dict[str, Model]:
    """The session's models beside the catalogue, by what the address calls them."""
    return {option: found.model for option, found in _found().items() if found.model}


def name() -> str:
    """What the contract is asked for: a name that the catalogue has, or ``IN_USE``."""
    option: str = st.session_state["in use"]
    return option if option in catalog.models() else IN_USE


def in_use() -> Mapping[str, Model]:
    """What ``IN_USE`` is."""
    found = _found().get(st.session_state["in use"])
    return {IN_USE: found.model} if found is not None and found.model else {}


def follow() -> None:
    """Let the address follow what is in use; before any widget is drawn."""
    if st.session_state.get("model") is not None:
        st.session_state["model"] = st.session_state["in use"]


def remember(option: str, found: HubModel) -> None:
    """Keep a model of this session; the oldest go first."""
    if option not in catalog.models() or found.notes:
        kept = {**_found(), option: found}
        st.session_state["found"] = dict(list(kept.items())[-MOST_KEPT:])


def _found() -> dict[str, HubModel]:
    found: dict[str, HubModel] = st.session_state.get("found", {})
    return found


# --- an address ---------------------------------------------------------------------------------


def instead(asked: Mapping[str, Sequence[str]], problems: Sequence[str]) -> list[str]:
    """What is to be said of an address whose model cannot be used at once; what the Hub may know is asked for.

    ``problems`` is what the contract says of it.
    """
    _settled()
    named, wanted = _named_in("".join(asked.get("model", ())))
    lost, asks = named.startswith(UNLINKED), _may_be_id(named)
    if not lost and not asks:
        return [*problems, f"The page opened on {EXAMPLE['model']}."]
    others = {key: texts for key, texts in asked.items() if key != "model"}
    rest = [problem for problem in read_link(others).problems if problem != MODEL_MISSING]
    if lost:
        return [*rest, LOST]
    _ask(named, wanted)
    st.session_state["model drawn"] = False
    return rest


def _named_in(text: str) -> tuple[str, Mapping[str, object] | None]:
    """The name in an address's model, and the model of one's own that is like it."""
    if not text.lstrip().startswith("{"):
        return text, None
    try:
        wanted = read_object(text, "model")
    except ValueError:
        return "", None
    like = wanted.get("like")
    return (like, wanted) if isinstance(like, str) else ("", None)


def _may_be_id(text: str) -> bool:
    """Whether it looks like ``owner/name`` and is not known here."""
    return re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", text) is not None and not is_known(text)


# --- asking the Hub -----------------------------------------------------------------------------


def _settled() -> None:
    """Nothing is asked, refused or proposed any more."""
    st.session_state.update({"asking": None, "trouble": None, "proposed": None})


def _ask(hub_id: str, wanted: Mapping[str, object] | None = None) -> None:
    token = st.session_state.get("hub token") or None
    _settled()
    answer = _threads.submit(hub.fetch, hub_id, token=token)
    st.session_state["asking"] = Asking(hub_id, wanted, answer)


def _ask_again() -> None:
    """Ask what was asked before; the whole page follows, so that it looks for the answer."""
    refusal: Refusal | None = st.session_state.get("trouble")
    if refusal is not None and refusal.trouble in ASK_AGAIN:
        _ask(refusal.hub_id, refusal.wanted)
        st.rerun()


def is_asking() -> bool:
    """Whether the whole page must run to take an answer."""
    return st.session_state.get("asking") is not None


def _pending() -> Asking | None:
    asking: Asking | None = st.session_state.get("asking")
    return None if asking is st.session_state.get("answered") else asking


def settle() -> None:
    """Take the Hub's answer, where it has come; before any widget is drawn.

    But not in the run that opens an address: a bound widget that is drawn for the first time has the address's value.
    A click may break a run off; so the question stands until a run has shown its answer, and is answered again.
    """
    asking: Asking | None = st.session_state.get("asking")
    drawn = st.session_state.get("model drawn", False)
    if asking is None or not asking.answer.done() or not drawn:
        return
    st.session_state["answered"] = asking
    found = asking.answer.result()
    if found.model is None:
        sentence = " ".join(found.sentences)
        refusal = Refusal(sentence, found.trouble, asking.hub_id, asking.wanted)
        st.session_state["trouble"] = refusal
    elif asking.wanted is None:
        remember(found.model.hub_id, found)
        session.put({"model": found.model.hub_id})
    else:
        remember(asking.hub_id, found)
        _take_own(asking.wanted, session.put)


# --- a model of one's own -----------------------------------------------------------------------


def _take_text(text: str | bytes) -> None:
    """Use a config.json that was pasted or dropped."""
    _settled()
    found = from_text(text)
    if found.model is None:
        st.session_state["trouble"] = Refusal(" ".join(found.sentences), found.trouble)
        return
    option = _as_option(json.loads(found.model.config))
    remember(option, found)
    actions.take({"model": option})


def _take_own(wanted: Mapping[str, object], take: Callable[[Mapping[str, object]], None]) -> None:
    """Use a known model with other dimensions."""
    reading = read_setup({"model": dict(wanted)}, known())
    if reading.model is None:
        sentence = reading.problems[0].removeprefix("model: ")
        st.session_state["trouble"] = Refusal(sentence[:1].upper() + sentence[1:])
        return
    option = _as_option(wanted)
    remember(option, HubModel(model=reading.model, notes=reading.model.notes))
    take({"model": option})


def _as_option(own: Mapping[str, object]) -> str:
    """A model of one's own as the address carries it, or a name where it is too long for that."""
    text = json.dumps(own, separators=(",", ":"))
    if len(quote(text)) <= LONGEST_IN_LINK:
        return text
    number = st.session_state.get("unlinked", 0) + 1
    st.session_state["unlinked"] = number
    return f"{UNLINKED} {number}"


def _take_pasted() -> None:
    _take_text(st.session_state.get("config text") or "")


def _take_dropped() -> None:
    dropped = st.session_state.get("config file")
    if dropped is not None:
        _take_text(dropped.getvalue())


def _take_dimensions(model: Model, fields: Mapping[str, str]) -> None:
    _settled()
    state = st.session_state
    chosen = {key: state[field] for key, field in fields.items()}
    changed = {key: value for key, value in chosen.items() if value != getattr(model, key)}
    if changed:
        _take_own({**_own(state["in use"]), **changed}, actions.take)


def _own(option: str) -> dict[str, object]:
    """A model in use as one of one's own, to which dimensions may be added."""
    if not option.startswith("{"):
        return {"like": option}
    fact: dict[str, object] = json.loads(option)
    return fact if "like" in fact else {"like": fact}


# --- the box ------------------------------------------------------------------------------------


def draw(model: Model | None) -> None:
    """The model box, what is proposed for a few words, models of one's own, and the token."""
    state = st.session_state
    st.text_input("Model in the address", None, key="model", bind="query-params")  # not seen
    state["model drawn"] = True
    state["model box"] = state["in use"]
    names = labels()
    st.selectbox(
        "Model",
        list(names),
        key="model box",
        format_func=lambda option: names.get(option, option),
        required=True,
        accept_new_options=True,
        on_change=_choose,
        help="The model to fine-tune: search by name and size, such as qwen 7b, or type any id of the Hugging Face "
        "Hub, owner/name. No default.",
    )
    _aside()
    _proposals()
    with st.container(horizontal=True, key="own and token", gap="small"):
        with (
            st.popover("Own model", key="own model", width="stretch"),
            st.container(width=POPOVER_PIXELS),
        ):
            _own_model(model)
        with (
            st.popover("Hub token", key="token", width="stretch"),
            st.container(width=POPOVER_PIXELS),
        ):
            _token()


@lru_cache(maxsize=1)
def _catalogued() -> Mapping[str, str]:
    return {
        option: _label(option, entry.parameters, entry.license, entry.gated)
        for option, entry in catalog.models().items()
    }


def labels() -> dict[str, str]:
    """What the box offers, and how it reads: the session's models, the newest first, and the catalogue's.

    >>> labels()["meta-llama/Llama-3.1-8B"]
    'meta-llama/Llama-3.1-8B · 8.03B · llama3.1 · gated'
    """
    own: dict[str, str] = {}
    numbers = count(1)
    for option, found in _found().items():
        if found.model is not None and option not in _catalogued():
            subject = found.model.hub_id or f"Own model {next(numbers)}: {found.model.model_type}"
            size = found.parameters or 0
            own[option] = _label(subject, size, found.about.license, found.about.gated)
    return {**dict(reversed(own.items())), **_catalogued()}


def _label(subject: str, parameters: int, license: str, gated: str) -> str:
    size = re.sub(r" (.)illion$", lambda unit: unit[1].upper(), wording.count(parameters))
    parts = [subject, size.replace(" trillion", "T")]
    parts += [license] if license != "unknown" else []
    parts += ["gated"] if gated == "yes" else []
    return " · ".join(parts)


def _choose() -> None:
    """What was chosen, or typed: a known model, an id for the Hub, a config, or a few words to search for."""
    typed: str = (st.session_state["model box"] or "").strip()
    if typed in {
        "",
        st.session_state["in use"],
    }:  # a browser says so, too, when the box was set back
        return
    _settled()
    spelled = {option.casefold(): option for option in [*catalog.models(), *_found()]}
    option = spelled.get(typed.casefold())
    if option is not None:
        _take_known(option)
    elif typed.startswith("{"):
        _take_text(typed)
    elif "/" in typed or not catalog.search(typed):
        _ask(typed)
    else:
        st.session_state["proposed"] = typed


def _proposals() -> None:
    """The catalogue's models that a few words fit."""
    typed: str | None = st.session_state.get("proposed")
    if typed is None:
        return
    st.html(f'<p class="hr-note">Found in the catalogue for “{escape(typed[:100])}”:</p>')
    with st.container(key="proposed models", gap="xsmall"):
        for entry in catalog.search(typed, MOST_PROPOSED):
            st.button(
                _label(entry.hub_id, entry.parameters, "unknown", entry.gated),
                on_click=_take_known,
                args=(entry.hub_id,),
                key=f"take {entry.hub_id}",
                width="stretch",
            )
        st.button("None of these: ask the Hub", on_click=_ask, args=(typed,), key="ask the Hub")


def _take_known(option: str) -> None:
    _settled()
    if option in catalog.models():  # what was said of it as an adapter's base is said no more
        _found().pop(option, None)
    session.put({"model": option})


def _own_model(model: Model | None) -> None:
    """A config.json, or other dimensions."""
    st.text_area(
        "Paste a config.json",
        key="config text",
        height=120,
        placeholder='{"model_type": "llama", "hidden_size": 4096, …}',
        persist_state="session",
    )
    st.button("Use this config", on_click=_take_pasted, key="take config", width="stretch")
    st.file_uploader(
        "Or drop the file",
        type=["json"],
        key="config file",
        max_upload_size=1,
        on_change=_take_dropped,
    )
    if model is None:
        return
    st.html(f'<p class="hr-note">Or like {escape(_called(model))}, with other dimensions:</p>')
    option = st.session_state["in use"]
    fields = {key: f"own {key} {hash(option)}" for key, _ in SHOWN if getattr(model, key) > 0}
    with st.container(key="dimensions"), st.grid(2, min_column_width=120, gap="small"):
        for key, title in SHOWN:
            if key in fields:
                st.number_input(title, 1, None, getattr(model, key), 1, key=fields[key])
    st.button(
        "Use these dimensions",
        on_click=_take_dimensions,
        args=(model, fields),
        key="take dimensions",
        width="stretch",
    )


def _called(model: Model) -> str:
    return model.hub_id or f"this {model.model_type}"


def _token() -> None:
    st.text_input(
        "Hugging Face token",
        type="password",
        key="hub token",
        autocomplete="off",
        persist_state="session",
        on_change=_ask_again,
    )
    st.caption(
        "For gated and private models; one that may read is enough. It stays in the memory of this session, goes to "
        "the Hub alone, and never into the link."
    )


# --- what is said of it -------------------------------------------------------------------------


def status() -> None:
    """On the page: that the Hub is asked, why there is no such model, and what must be known of the one in use."""
    poll = POLL_SECONDS if _pending() else None
    st.session_state["polling"] = False
    st.fragment(_status, run_every=poll, key="model status")()
    st.session_state["polling"] = True
    if not _pending():
        st.session_state["asking"] = st.session_state["answered"] = None


def _status() -> None:
    state = st.session_state
    asking = _pending()
    if asking is not None and asking.answer.done() and state["polling"]:
        st.rerun(scope="app")  # not before a browser has drawn the address's first widgets
    refusal: Refusal | None = state.get("trouble")
    if refusal is not None and refusal.trouble in ASK_AGAIN:
        with st.container(horizontal=True, wrap=False, vertical_alignment="center", gap="small"):
            _said()
            st.button("Ask again", on_click=_ask_again, key="ask again")
    else:
        _said()
    found = _found().get(state["in use"])
    notes = list(found.notes) if found is not None else []
    if state["in use"].startswith(UNLINKED):
        notes.append("This model's config is too long for a link: a copied link opens without it.")
    if notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in notes)
        st.html(f'<ul class="hr-note hr-notes">{items}</ul>')


def _aside() -> None:
    """The same beside the box, where a phone shows the controls over the page."""
    with st.container(key="model aside"):
        _said()


def _said() -> None:
    asking = _pending()
    refusal: Refusal | None = st.session_state.get("trouble")
    using = escape(labels()[st.session_state["in use"]].partition(" · ")[0])
    if asking is not None:
        st.html(
            f'<p class="hr-note hr-asking" role="status">Asking the Hub for <b>{escape(asking.hub_id[:100])}</b>, at '
            f"most {hub.LONGEST_WAIT:g} seconds; until then the page is of {using}.</p>"
        )
    elif refusal is not None:
        about = f"<b>{escape(refusal.hub_id[:100])}</b>: " if refusal.hub_id else ""
        about *= refusal.hub_id not in refusal.sentence
        st.html(
            f'<p class="hr-note hr-refusal" role="alert">{about}{escape(refusal.sentence)} The page is of {using}.</p>'
        )


def asked_of_the_hub(hub_id: str) -> Future[HubModel]:
    """What the Hub says of a model, in a thread; with the visitor's token where one was given."""
    return _threads.submit(hub.fetch, hub_id, token=st.session_state.get("hub token") or None)
