"""The sidebar, with all controls."""

from __future__ import annotations

import streamlit as st

from dashboard.state import actions, configs, heard, models, question, what_ifs
from dashboard.widgets import (
    batch_sliders,
    boxes,
    config_box,
    gpu_box,
    images,
    lora,
    method_box,
    model_box,
    objective,
    rerun,
    several_gpus,
)
from dashboard.words import controls
from estimator import Method, contract


def _actions() -> None:
    """Draws undo, reset and the visitor's own config, always in the same place."""
    with st.container(horizontal=True, key="actions", gap="small"):
        st.button(
            "Undo",
            on_click=actions.undo,
            disabled=not st.session_state.get("undo"),
            key="undo last",
            help="Undoes the last click on a card, a remedy, the map or a GPU.",
        )
        st.button(
            "Reset",
            on_click=actions.reset,
            key="reset to example",
            help="Back to the example: Mistral-7B on one A100 80GB, as TRL runs it by default.",
        )
        config_box.draw()


UNUSUAL = {
    **method_box.UNUSUAL,
    **batch_sliders.UNUSUAL,
    **several_gpus.UNUSUAL,
    **lora.UNUSUAL,
    **images.UNUSUAL,
    **objective.UNUSUAL,
}
CAPTIONS = {
    contract.Section.OBJECTIVE: "Settings of the chosen objective.",
    contract.Section.GENERATION: "Where completions come from, in grpo and rloo.",
    contract.Section.LORA: "For LoRA and QLoRA; full fine-tuning has no adapters.",
    contract.Section.QUANTISATION: "For QLoRA, which has a 4-bit base.",
}


@st.fragment(key=rerun.EXPANDERS)
def _expanders() -> None:
    for section in contract.Section:
        if section is contract.Section.ALWAYS:
            continue
        if section is contract.Section.IMAGES and not images.sees():
            continue
        if section is contract.Section.GENERATION and not objective.generates():
            continue
        with boxes.expander(section) as opened:
            if opened:
                if section in CAPTIONS:
                    st.caption(CAPTIONS[section])
                boxes.draw(section, UNUSUAL)
    heard.draw()


def _open_what_applies(method: Method) -> None:
    """Opens the expanders that belong to the chosen method."""
    state = st.session_state
    if state.get("method drawn") != method:
        state["method drawn"] = method
        state[f"{contract.Section.LORA} open"] = method.has_adapters
        state[f"{contract.Section.QUANTISATION} open"] = method.has_4bit_base


def draw() -> None:
    """Draws all controls, always in the same places. Controls that do not apply keep their value."""
    models.settle()
    configs.follow()
    models.follow()
    what_ifs.follow(question.reading())
    now = question.reading()
    _open_what_applies(now.setup.adapters.method)
    with st.sidebar:
        _actions()
        model_box.draw(now.model)
        gpu_box.draw(now.gpu)
        boxes.draw(contract.Section.ALWAYS, UNUSUAL, in_sight=True)
        with st.expander(controls.DRAWER, key="drawer"):
            boxes.draw(contract.Section.ALWAYS, UNUSUAL)
            _expanders()
            model_box.draw_own(now.model)
            gpu_box.draw_own(now.gpu)
    if st.session_state["model"] is None:  # after Back to a URL without a query
        st.rerun()
