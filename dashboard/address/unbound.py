"""Keys in the URL that no bound widget writes.

Streamlit removes a bound key from the URL when its widget is not drawn. So the keys of closed expanders, and those
without a widget, are written here. The session keeps them too: visiting another page removes them from the URL, and
returning restores them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx


def spelled(value: object) -> list[str]:
    """A value as URL strings: one, or one per item; none for null.

    >>> spelled(True), spelled(0.05), spelled(["q_proj", "v_proj"]), spelled(None)
    (['true'], ['0.05'], ['q_proj', 'v_proj'], [])
    >>> spelled({"q_proj": 8}), spelled((("q_proj", 8),))
    (['q_proj=8'], ['q_proj=8'])
    """
    if isinstance(value, dict):
        value = tuple(value.items())
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [_item(one) for one in value]
    return [json.dumps(value) if isinstance(value, bool) else str(value)]


def _item(item: object) -> str:
    if isinstance(item, tuple) and isinstance(item[0], str):  # a pair of a key and its value
        return "=".join(map(str, item))
    return str(item)


def held() -> dict[str, list[str]]:
    """The strings of each key that this module writes."""
    texts: dict[str, list[str]] = st.session_state.get("held", {})
    return texts


def hold(texts: Mapping[str, Sequence[str]]) -> None:
    """Writes keys to the URL, each with its strings; a key without strings is removed."""
    now = {**held(), **{key: list(items) for key, items in texts.items()}}
    st.session_state["held"] = {key: items for key, items in now.items() if items}
    _write(texts)


def arrive(page: str) -> None:
    """Records the visitor's current page, before it is drawn."""
    state = st.session_state
    state["arrived"] = state.get("page", page) != page
    state["page"] = page


def has_been_gone_to() -> bool:
    """Whether the browser navigated to this URL: back, forward or a link.

    Otherwise it repeats a URL that it was sent, which may have been overwritten since.
    """
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation


def moved(keys: Collection[str]) -> bool:
    """Whether the visitor navigated to a URL that has other values for these keys.

    After a change of page to a URL without a query, the session's values are restored instead.
    """
    goes_on = st.session_state["arrived"] and "model" in st.query_params
    if has_been_gone_to() or goes_on:
        return held() != {
            key: st.query_params.get_all(key) for key in keys if key in st.query_params
        }
    if st.session_state["arrived"]:
        _write({**dict.fromkeys(keys, ()), **held()})
    return False


def _write(texts: Mapping[str, Sequence[str]]) -> None:
    """Updates the URL at most once, and only if it changes: every update adds an entry to the browser's history."""
    params = st.query_params
    for key in [key for key, items in texts.items() if not items and key in params]:
        del params[key]
    new = {key: list(items) for key, items in texts.items() if items}
    if any(params.get_all(key) != items for key, items in new.items()):
        params.update(new)
