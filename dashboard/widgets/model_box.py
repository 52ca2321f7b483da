"""The model box: search, the Hub, a config.json, other dimensions, and the token.

A select box writes its options' labels to the URL, not their values. So the widget bound to the URL, ``model``, is
hidden. It follows the model in use, because a busy browser may send its old value again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from html import escape
from itertools import count

import streamlit as st

from dashboard.state import models
from dashboard.state.models import NoModel
from dashboard.words import units
from estimator import Model, catalog, hub

MOST_PROPOSED = 6
"""Maximum models proposed for a search. Our choice: as many as a phone can show."""
POLL_SECONDS = 0.3
"""Seconds between polls for the Hub's answer. Our choice."""
SHOWN = (
    ("num_hidden_layers", "Layers"),
    ("hidden_size", "Hidden size"),
    ("intermediate_size", "Intermediate size"),
    ("num_attention_heads", "Heads"),
    ("num_key_value_heads", "Key-value heads"),
    ("vocab_size", "Vocabulary"),
)
"""Dimensions with an input field, and their labels."""


def draw(model: Model | None) -> None:
    """Draws the model box and search proposals."""
    state = st.session_state
    st.text_input("Model in the address", None, key="model", bind="query-params")  # hidden
    state["model drawn"] = True
    state["model box"] = state["in use"]
    names = labels()
    st.selectbox(
        "Model",
        list(names),
        key="model box",
        format_func=lambda option: names.get(option, option),
        accept_new_options=True,
        on_change=_choose,
        help="The model to fine-tune: search by name and size, such as qwen 7b, or type any id of the Hugging Face "
        "Hub, owner/name. No default.",
    )
    _aside()
    _proposals()


def draw_own(model: Model | None) -> None:
    """Draws what few need: custom models, and the token."""
    with st.expander("Own model", key="own model"):
        _own_model(model)
    with st.expander("Hub token", key="token"):
        _token()


@lru_cache(maxsize=1)
def _catalogued() -> Mapping[str, str]:
    return {
        option: _label(option, entry.parameters, entry.license, entry.gated)
        for option, entry in catalog.models().items()
    }


def labels() -> dict[str, str]:
    """The options and their labels: the session's models, newest first, then the catalogue's.

    >>> labels()["meta-llama/Llama-3.1-8B"]
    'meta-llama/Llama-3.1-8B · 8.03B · llama3.1 · gated'
    """
    own: dict[str, str] = {}
    numbers = count(1)
    for option, found in models.found_models().items():
        if found.model is not None and option not in _catalogued():
            subject = found.model.hub_id or f"Own model {next(numbers)}: {found.model.model_type}"
            size = found.parameters or 0
            own[option] = _label(subject, size, found.about.license, found.about.gated)
    return {**dict(reversed(own.items())), **_catalogued()}


def _label(subject: str, parameters: int, license: str, gated: str) -> str:
    size = re.sub(r" (.)illion$", lambda unit: unit[1].upper(), units.count(parameters))
    parts = [subject, size.replace(" trillion", "T")]
    parts += [license] if license != "unknown" else []
    parts += ["gated"] if gated == "yes" else []
    return " · ".join(parts)


def _choose() -> None:
    """Handles a choice or typed text: a known model (by id or name), a Hub id, a config, or words to search for."""
    typed: str = (st.session_state["model box"] or "").strip()
    typed = typed if typed.startswith("{") else catalog.as_hub_id(typed)
    if typed in {
        "",
        st.session_state["in use"],
    }:  # browsers also send this after the box was reset
        return
    models.forget_question()
    spelled = {option.casefold(): option for option in [*catalog.models(), *models.found_models()]}
    named = [
        value for value in spelled.values() if value.casefold().endswith(f"/{typed.casefold()}")
    ]
    option = spelled.get(typed.casefold()) or (named[0] if len(named) == 1 else None)
    if option is not None:
        models.take_known(option)
    elif typed.startswith("{"):
        models.take_text(typed)
    elif "/" in typed or not catalog.search(typed):
        models.ask(typed)
    else:
        st.session_state["proposed"] = typed


def _proposals() -> None:
    """Shows models of the catalogue that match the search."""
    typed: str | None = st.session_state.get("proposed")
    if typed is None:
        return
    st.html(f'<p class="hr-note">Found in the catalogue for “{escape(typed[:100])}”:</p>')
    with st.container(key="proposed models", gap="xsmall"):
        for entry in catalog.search(typed, MOST_PROPOSED):
            st.button(
                _label(entry.hub_id, entry.parameters, "unknown", entry.gated),
                on_click=models.take_known,
                args=(entry.hub_id,),
                key=f"take {entry.hub_id}",
                width="stretch",
            )
        st.button(
            "None of these: ask the Hub", on_click=models.ask, args=(typed,), key="ask the Hub"
        )


def _own_model(model: Model | None) -> None:
    """Fields of a custom model: a config.json, or other dimensions."""
    st.text_area(
        "Paste a config.json",
        key="config text",
        height=120,
        placeholder='{"model_type": "llama", "hidden_size": 4096, …}',
        persist_state="session",
    )
    st.button("Use this config", on_click=models.take_pasted, key="take config", width="stretch")
    st.file_uploader(
        "Or drop the file",
        type=["json"],
        key="config file",
        max_upload_size=1,
        on_change=models.take_dropped,
    )
    if model is None:
        return
    st.html(f'<p class="hr-note">Or {escape(_called(model))} with other dimensions:</p>')
    option = st.session_state["in use"]
    fields = {key: f"own {key} {hash(option)}" for key, _ in SHOWN if getattr(model, key) > 0}
    with st.container(key="dimensions"), st.grid(2, min_column_width=120, gap="small"):
        for key, title in SHOWN:
            if key in fields:
                st.number_input(title, 1, None, getattr(model, key), 1, key=fields[key])
    st.button(
        "Use these dimensions",
        on_click=models.take_dimensions,
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
        on_change=models.ask_again,
    )
    st.caption(
        "For gated and private models; a read token is enough. It stays in this session's memory, is sent only to "
        "the Hub, and is never part of a link."
    )


def status() -> None:
    """Status on the page: a pending request, why a model is unavailable, and notes on the model in use."""
    poll = POLL_SECONDS if models.pending() else None
    st.session_state["polling"] = False
    st.fragment(_status, run_every=poll, key="model status")()
    st.session_state["polling"] = True
    if not models.pending():
        st.session_state["asking"] = st.session_state["answered"] = None


def _status() -> None:
    state = st.session_state
    asking = models.pending()
    if asking is not None and asking.answer.done() and state["polling"]:
        st.rerun(scope="app")  # not before the browser has drawn the URL's first widgets
    refusal: NoModel | None = state.get("trouble")
    if refusal is not None and refusal.trouble in models.ASK_AGAIN:
        with st.container(horizontal=True, wrap=False, vertical_alignment="center", gap="small"):
            _said()
            st.button("Ask again", on_click=models.ask_again, key="ask again")
    else:
        _said()
    found = models.found_models().get(state["in use"])
    notes = list(found.notes) if found is not None else []
    if state["in use"].startswith(models.UNLINKED):
        notes.append("This model's config is too long for a link; a copied link opens without it.")
    if notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in notes)
        st.html(f'<ul class="hr-note hr-notes">{items}</ul>')


def _aside() -> None:
    """Repeats the status next to the box, because on a phone the controls cover the page."""
    with st.container(key="model aside"):
        _said()


def _said() -> None:
    asking = models.pending()
    refusal: NoModel | None = st.session_state.get("trouble")
    using = escape(labels()[st.session_state["in use"]].partition(" · ")[0])
    if asking is not None:
        st.html(
            f'<p class="hr-note hr-asking" role="status">Asking the Hub for <b>{escape(asking.hub_id[:100])}</b>, at '
            f"most {hub.LONGEST_WAIT:g} seconds; until then the page shows {using}.</p>"
        )
    elif refusal is not None:
        about = f"<b>{escape(refusal.hub_id[:100])}</b>: " if refusal.hub_id else ""
        about *= refusal.hub_id not in refusal.sentence
        st.html(
            f'<p class="hr-note hr-refusal" role="alert">{about}{escape(refusal.sentence)} The page shows {using}.</p>'
        )
