"""Opening an address: the widgets are set to what it says.

Streamlit silently drops what it cannot read in an address, so the address is first read here through the
contract, and what is invalid is reported. A bare address opens on ``EXAMPLE``, written out in the address.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import streamlit as st
from streamlit.errors import StreamlitAPIException

from dashboard.address import links, unbound
from dashboard.address.example import EXAMPLE
from dashboard.state import comparison, models, question, session, what_ifs
from estimator import KEY_FACET, HubModel, catalog, contract

UNBOUND = tuple(name for name in KEY_FACET if name not in session.BOUND)
"""The contract's keys that ``session`` keeps: of those in expanders, and of those that have no widget."""
PAGE_KEYS = ("section", *comparison.KEYS)
"""Keys of an address that describe the page, not the setup."""
STEPS: Mapping[str, tuple[int, ...]] = {
    key.name: key.widget.steps
    for key in contract.KEYS
    if isinstance(key.widget, contract.Widget) and key.widget.steps
}
"""What a slider offers; a sound value of an address that lies between is added to it."""


def open_address() -> None:
    """Once a visit: read the address, report what is invalid in it, set the widgets to the rest."""
    state = st.session_state
    if models.is_known(state.get("model")) and not unbound.moved(UNBOUND):
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
    assert read.model is not None
    state["address_problems"] = problems
    state["unbound"] = {}
    state["steps"] = {
        key: tuple(sorted({*steps, getattr(read.setup, key)})) for key, steps in STEPS.items()
    }
    values = values_of(read)
    state["own"] = {"gpu": values["gpu"]}
    if not models.is_known(values["model"]):
        models.remember(str(values["model"]), HubModel(model=read.model, notes=read.model.notes))
    spelled = {key: unbound.spelled(values[key]) for key in asked if key in session.BOUND}
    spelled |= {"model": unbound.spelled(values["model"])}
    is_written = False
    if any(given.get(key) != texts for key, texts in spelled.items()):
        spelled |= {key: texts for key, texts in session.spelled(values).items() if texts}
        # back to a bare address: the widgets stand and write it
        with suppress(StreamlitAPIException):
            st.query_params.update(spelled)  # all at once: one entry in the browser's history
            is_written = True
    session.put(values)
    if is_written:
        st.rerun()  # so that the widgets read the address as it is spelled now


def values_of(read: contract.Reading) -> dict[str, object]:
    """What each widget shows of an address."""
    assert read.model is not None
    facts = contract.write_fields(read.model, read.gpu, contract.DEFAULT)
    return {
        **{name: getattr(read.setup, name) for name in KEY_FACET},
        "lora_target_modules": links.targets_as_chosen(read.model, read.setup),
        "model": question.as_option(facts["model"]),
        "gpu": question.as_option(facts["gpu"]) if "gpu" in facts else None,
    }
