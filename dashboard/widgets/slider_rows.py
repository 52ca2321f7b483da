"""Rows of answers along a slider, from which the browser draws while the slider is moved.

Streamlit's slider tells the server where it stands when it is let go. ``slider_rows.js`` sees where it is on the way,
and shows what the server would answer there; the server's own answer follows, and is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files

import streamlit as st
from streamlit.components.v2 import component

from dashboard.figures.rows import Document, row
from dashboard.state import question, session
from estimator import Estimate, contract

Show = Callable[[Estimate | str], Document]
"""What the page shows of an answer, or of the sentence that refuses it."""
SLIDERS: Mapping[str, str] = {
    (key.name if key.name in session.BOUND else f"{key.name}-box"): key.name
    for key in contract.KEYS
    if isinstance(key.widget, contract.Widget) and key.widget.shape == "slider"
}
"""Keys that have a slider, by the name that Streamlit's style classes give it."""
_component = component(
    "slider_rows",
    html="",
    css=".st-key-slider-rows { display: none; }",
    js=(files(__package__) / "slider_rows.js").read_text(),
    isolate_styles=False,
)


def bases(look: object) -> dict[str, str]:
    """For each slider what all other widgets say, as a number; ``look``: what else the page shows depends on."""
    return {slider: _base(key, look) for slider, key in SLIDERS.items()}


def _base(key: str, look: object) -> str:
    return str(hash((question.all_but(key), look)))


def standing() -> dict[str, str]:
    """For each slider the step at which the answer was given, as the slider says it."""
    return {slider: str(session.value(key)) for slider, key in SLIDERS.items()}


def draw(show: Show, look: object) -> None:
    """Send the row that is asked for, or the last one while it holds; no other is worked out."""
    state = st.session_state
    if (slider := state.pop("row asked", None)) is not None:
        base = _base(SLIDERS[slider], look)
        state["row"] = {"slider": slider, "base": base, **_row(SLIDERS[slider], show)}
    elif (sent := state.get("row")) and sent["base"] != _base(SLIDERS[sent["slider"]], look):
        state["row"] = None
    _component(key="slider-rows", data={"row": state.get("row")}, on_slider_change=_take)


def _take() -> None:
    slider = st.session_state["slider-rows"].slider
    if slider in SLIDERS:
        st.session_state["row asked"] = slider


def _row(key: str, show: Show) -> Document:
    steps = st.session_state["steps"][key]
    return {
        "texts": [str(step) for step in steps],
        **row([show(question.answer_at(key, step)) for step in steps]),
    }
