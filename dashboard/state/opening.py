"""Opening a URL: sets the widgets to its values.

Streamlit silently drops invalid values in a URL. So the contract reads the URL first and reports them. A URL without a
query opens ``EXAMPLE``, whose keys are then written to the URL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import streamlit as st
from streamlit.errors import StreamlitAPIException

from dashboard.address import links, parts, unbound
from dashboard.address.example import EXAMPLE
from dashboard.state import comparison, models, question, session, what_ifs
from estimator import KEY_FACET, HubModel, catalog, contract

UNBOUND = tuple(name for name in KEY_FACET if name not in session.BOUND)
"""The contract's keys stored by ``session``: those with widgets in expanders, and those without a widget."""
PAGE_KEYS = (*parts.KEYS, *comparison.KEYS, contract.REHEARSED)
"""URL keys that describe the page, not the setup."""
STEPS: Mapping[str, tuple[int, ...]] = {
    key.name: key.widget.steps
    for key in contract.KEYS
    if isinstance(key.widget, contract.Widget) and key.widget.steps
}
"""Steps of each slider. A valid value in a URL between two steps is added to them."""


def open_address() -> None:
    """Reads the URL once per visit, reports invalid values, and sets the widgets to the others."""
    state = st.session_state
    if models.is_known(state.get("model")) and not unbound.moved(UNBOUND) and not _is_gone_to():
        return
    what_ifs.forget()
    params = st.query_params
    given = {key: params.get_all(key) for key in params if key not in PAGE_KEYS}
    asked = given or {key: unbound.spelled(value) for key, value in EXAMPLE.items()}
    if "model" not in given:
        asked = comparison.estimate_params() or asked
    read = contract.read_link(asked, models.known())
    problems = list(read.problems)
    if read.model is None:
        problems = models.instead(asked, problems)
        read = replace(read, model=catalog.model(str(EXAMPLE["model"])))
    mended = _mended(asked, read)
    if mended is not None:  # the page refuses the setup, and offers what mends it
        read, problems = mended, list(mended.problems)
    assert read.model is not None
    state["address_problems"] = problems
    state["unbound"] = {}
    state["steps"] = {
        key: tuple(sorted({*steps, read.setup.value(key)})) for key, steps in STEPS.items()
    }
    values = values_of(read)
    if mended is not None:
        values |= {key: contract.default_of(key) for key in question.MEND}
    state["own"] = {"gpu": values["gpu"]}
    if not models.is_known(values["model"]):
        models.remember(str(values["model"]), HubModel(model=read.model, notes=read.model.notes))
    spelled = {key: unbound.spelled(values[key]) for key in asked if key in session.BOUND}
    spelled |= {"model": unbound.spelled(values["model"])}
    is_written = False
    unfolded = parts.opened(params.get(parts.PART_KEY))
    if unfolded or any(given.get(key) != texts for key, texts in spelled.items()):
        spelled |= {key: texts for key, texts in session.spelled(values).items() if texts}
        # after Back to a URL without a query, the existing widgets write it
        with suppress(StreamlitAPIException):
            st.query_params.update(
                {**spelled, **unfolded}
            )  # one update: one entry in the browser's history
            is_written = True
    session.put(values)
    if is_written:
        st.rerun()  # makes the widgets read the updated URL


def _mended(asked: Mapping[str, Sequence[str]], read: contract.Reading) -> contract.Reading | None:
    """The reading of a link with ``question.MEND``, if its ranks divide layers only then."""
    mend = {key: unbound.spelled(value) for key, value in question.MEND.items()}
    other = contract.read_link({**asked, **mend}, models.known())
    is_mended = read.setup.mesh.tp_size == 1 < other.setup.mesh.tp_size
    return other if is_mended and other.model == read.model else None


def _is_gone_to() -> bool:
    """Whether the visitor navigated to a URL of another model, which no bound widget takes over."""
    asked = st.query_params.get("model")
    return unbound.has_been_gone_to() and asked not in (None, st.session_state["in use"])


def values_of(read: contract.Reading) -> dict[str, object]:
    """The value of each widget for a URL."""
    assert read.model is not None
    facts = contract.write_fields(read.model, read.gpu, contract.DEFAULT)
    return {
        **{name: read.setup.value(name) for name in KEY_FACET},
        "lora_target_modules": links.targets_as_chosen(read.model, read.setup),
        "model": question.as_option(facts["model"]),
        "gpu": question.as_option(facts["gpu"]) if "gpu" in facts else None,
    }
