"""The models of a session: the one in use, those found or created, and pending requests to the Hub.

The key ``in use`` stores the model in use in the URL's form: an id, or the JSON of a custom model. A thread asks the
Hub. Until the Hub answers, or if it lacks the model, the page keeps its previous model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote

import streamlit as st

from dashboard.address.example import EXAMPLE
from dashboard.state import actions, session
from estimator import HubModel, Model, Trouble, catalog, contract, hub, repository

LONGEST_IN_LINK = 1500
"""Maximum characters of a model in a URL. Our choice, so that whole links stay under 2,000."""
MOST_KEPT = 100
"""Maximum custom models in a session. Our choice: more than undo can reach."""
IN_USE = "the model in use"
"""Name passed to the contract for a model outside the catalogue."""
UNLINKED = "own config"
"""Placeholder in the URL for a config that is too long."""
LOST = (
    "The link was for a pasted config.json that is too long for a link; paste it again under “Own model”. The page "
    f"opened on {EXAMPLE['model']}."
)
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
"""Errors that another token or a later attempt may fix."""
_threads = ThreadPoolExecutor(max_workers=2 * hub.MOST_AT_ONCE, thread_name_prefix="ask")


@dataclass(frozen=True, slots=True)
class Asking:
    """A pending request to the Hub."""

    hub_id: str
    wanted: Mapping[str, object] | None
    """Keys of the custom model based on it; None: the model itself."""
    answer: Future[HubModel]


@dataclass(frozen=True, slots=True)
class NoModel:
    """A failed request: the reason, and what was requested."""

    sentence: str
    trouble: Trouble | None = None
    hub_id: str = ""
    wanted: Mapping[str, object] | None = None


def is_known(option: object) -> bool:
    """Whether a model is available: in the catalogue, or found or created in this session."""
    return option in catalog.models() or option in found_models()


def known() -> dict[str, Model]:
    """The session's models outside the catalogue, keyed by their form in the URL."""
    return {option: found.model for option, found in found_models().items() if found.model}


def name() -> str:
    """The name passed to the contract: a name in the catalogue, or ``IN_USE``."""
    option: str = st.session_state["in use"]
    return option if option in catalog.models() else IN_USE


def in_use() -> Mapping[str, Model]:
    """The model that ``IN_USE`` refers to."""
    found = found_models().get(st.session_state["in use"])
    return {IN_USE: found.model} if found is not None and found.model else {}


def follow() -> None:
    """Updates the URL to the model in use. Call before any widget is drawn."""
    if st.session_state.get("model") is not None:
        st.session_state["model"] = st.session_state["in use"]


def remember(option: str, found: HubModel) -> None:
    """Adds a model to the session, dropping the oldest if there are too many."""
    if option not in catalog.models() or found.notes:
        kept = {**found_models(), option: found}
        st.session_state["found"] = dict(list(kept.items())[-MOST_KEPT:])


def found_models() -> dict[str, HubModel]:
    """The models found or created in this session."""
    found: dict[str, HubModel] = st.session_state.get("found", {})
    return found


def instead(asked: Mapping[str, Sequence[str]], problems: Sequence[str]) -> list[str]:
    """Asks the Hub for a URL's missing model if the Hub may know it. Returns the problems to report.

    ``problems``: the problems that the contract reported.
    """
    forget_question()
    named, wanted = _named_in("".join(asked.get("model", ())))
    lost, asks = named.startswith(UNLINKED), _may_be_id(named)
    if not lost and not asks:
        return [*problems, f"The page opened on {EXAMPLE['model']}."]
    others = {key: texts for key, texts in asked.items() if key != "model"}
    rest = [
        problem
        for problem in contract.read_link(others).problems
        if problem != contract.MODEL_MISSING
    ]
    if lost:
        return [*rest, LOST]
    ask(named, wanted)
    st.session_state["model drawn"] = False
    return rest


def _named_in(text: str) -> tuple[str, Mapping[str, object] | None]:
    """The name in a URL's model, and the custom model based on it."""
    if not text.lstrip().startswith("{"):
        return text, None
    try:
        wanted = contract.read_object(text, "model")
    except ValueError:
        return "", None
    like = wanted.get("like")
    return (like, wanted) if isinstance(like, str) else ("", None)


def _may_be_id(text: str) -> bool:
    """Whether a text has the form ``owner/name`` and is not a known model."""
    return re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", text) is not None and not is_known(text)


def forget_question() -> None:
    """Clears pending requests, refusals and proposals."""
    st.session_state.update({"asking": None, "trouble": None, "proposed": None})


def ask(hub_id: str, wanted: Mapping[str, object] | None = None) -> None:
    """Asks the Hub for a model, in a thread."""
    token = st.session_state.get("hub token") or None
    forget_question()
    answer = _threads.submit(hub.fetch, hub_id, token=token)
    st.session_state["asking"] = Asking(hub_id, wanted, answer)


def ask_again() -> None:
    """Repeats the last request and reruns the whole page, which then polls for the answer."""
    refusal: NoModel | None = st.session_state.get("trouble")
    if refusal is not None and refusal.trouble in ASK_AGAIN:
        ask(refusal.hub_id, refusal.wanted)
        st.rerun()


def is_asking() -> bool:
    """Whether the whole page must rerun to receive an answer."""
    return st.session_state.get("asking") is not None


def pending() -> Asking | None:
    """The pending request, if any."""
    asking: Asking | None = st.session_state.get("asking")
    return None if asking is st.session_state.get("answered") else asking


def settle() -> None:
    """Receives the Hub's answer if it has arrived. Call before any widget is drawn.

    Do not call it in the run that opens a URL: a bound widget takes the URL's value when first drawn. A click may
    interrupt a run, so the request stays pending until a run has shown its answer.
    """
    asking: Asking | None = st.session_state.get("asking")
    drawn = st.session_state.get("model drawn", False)
    if asking is None or not asking.answer.done() or not drawn:
        return
    st.session_state["answered"] = asking
    found = asking.answer.result()
    if found.model is None:
        sentence = " ".join(found.sentences)
        refusal = NoModel(sentence, found.trouble, asking.hub_id, asking.wanted)
        st.session_state["trouble"] = refusal
    elif asking.wanted is None:
        remember(found.model.hub_id, found)
        session.put({"model": found.model.hub_id})
    else:
        remember(asking.hub_id, found)
        _take_own(asking.wanted, session.put)


def take_text(text: str | bytes) -> None:
    """Uses a pasted or dropped config.json."""
    forget_question()
    found = repository.from_text(text)
    if found.model is None:
        st.session_state["trouble"] = NoModel(" ".join(found.sentences), found.trouble)
        return
    option = _as_option(json.loads(found.model.config))
    remember(option, found)
    actions.take({"model": option})


def _take_own(wanted: Mapping[str, object], take: Callable[[Mapping[str, object]], None]) -> None:
    """Uses a known model with other dimensions."""
    reading = contract.read_setup({"model": dict(wanted)}, known())
    if reading.model is None:
        sentence = reading.problems[0].removeprefix("model: ")
        st.session_state["trouble"] = NoModel(sentence[:1].upper() + sentence[1:])
        return
    option = _as_option(wanted)
    remember(option, HubModel(model=reading.model, notes=reading.model.notes))
    take({"model": option})


def _as_option(own: Mapping[str, object]) -> str:
    """A custom model in the URL's form, or a placeholder name if it is too long."""
    text = json.dumps(own, separators=(",", ":"))
    if len(quote(text)) <= LONGEST_IN_LINK:
        return text
    number = st.session_state.get("unlinked", 0) + 1
    st.session_state["unlinked"] = number
    return f"{UNLINKED} {number}"


def take_pasted() -> None:
    """Uses the pasted config.json."""
    take_text(st.session_state.get("config text") or "")


def take_dropped() -> None:
    """Uses the dropped config.json."""
    dropped = st.session_state.get("config file")
    if dropped is not None:
        take_text(dropped.getvalue())


def take_dimensions(model: Model, fields: Mapping[str, str]) -> None:
    """Uses the model with the dimensions in the fields."""
    forget_question()
    state = st.session_state
    chosen = {key: state[field] for key, field in fields.items()}
    changed = {key: value for key, value in chosen.items() if value != getattr(model, key)}
    if changed:
        _take_own({**_own(state["in use"]), **changed}, actions.take)


def _own(option: str) -> dict[str, object]:
    """The model in use as a custom model, to which dimensions can be added."""
    if not option.startswith("{"):
        return {"like": option}
    fact: dict[str, object] = json.loads(option)
    return fact if "like" in fact else {"like": fact}


def take_known(option: str) -> None:
    """Uses a known model."""
    forget_question()
    if option in catalog.models():  # drops the notes on it as an adapter's base
        found_models().pop(option, None)
    session.put({"model": option})


def asked_of_the_hub(hub_id: str) -> Future[HubModel]:
    """Asks the Hub for a model in a thread, with the visitor's token if there is one."""
    return _threads.submit(hub.fetch, hub_id, token=st.session_state.get("hub token") or None)


def ask_for(facts: Iterable[object]) -> tuple[bool, dict[str, str]]:
    """Asks the Hub for unknown models. Returns whether answers are pending, and the status of each.

    ``facts``: models as the contract writes them.
    """
    asked: dict[str, Future[HubModel]] = st.session_state.setdefault("asked of the Hub", {})
    said: dict[str, str] = {}
    for fact in facts:
        hub_id = contract.unknown_model(contract.Scenario("", {"model": fact}), known())
        if not hub_id:
            continue
        if hub_id not in asked:
            asked[hub_id] = asked_of_the_hub(hub_id)
        if not asked[hub_id].done():
            said[hub_id] = f"The Hub is being asked for {hub_id}."
        elif (found := asked[hub_id].result()).model is None:
            said[hub_id] = " ".join(found.sentences)
        else:
            remember(hub_id, found)
    return any(not asked[one].done() for one in said), said
