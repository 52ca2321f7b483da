"""Rows of answers along a slider, from which the browser redraws while the slider moves.

Streamlit's slider sends its value to the server only on release. ``slider_rows.js`` follows the slider and shows the
answer from the row. The server's own answer follows and is identical. A ruler's flag and a number of the setup's
sentence move the slider; if it is in a closed expander, they send its value themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files

import streamlit as st
from streamlit.components.v2 import component
from streamlit.delta_generator import DeltaGenerator

from dashboard.figures.rows import Document, row
from dashboard.state import question, session
from dashboard.widgets import in_order, rerun, several_gpus
from estimator import Estimate, contract

Show = Callable[[Estimate | str], Document]
"""Builds the document that the page shows for an answer or a refusal."""
SLIDERS: Mapping[str, str] = {
    (key.name if key.name in session.BOUND else f"{key.name}-box"): key.name
    for key in contract.KEYS
    if isinstance(key.widget, contract.Widget) and key.widget.shape == "slider"
}
"""Keys with a slider, by their name in Streamlit's CSS classes."""
_component = component(
    "slider_rows",
    html="",
    css=".st-key-slider-rows, .st-key-row-yields { display: none !important; }",
    js=in_order.SCRIPT
    + "".join(
        (files(__package__) / word).read_text() for word in ("alone.js", "ink.js", "slider_rows.js")
    ),
    isolate_styles=False,
)


def bases(look: object) -> dict[str, str]:
    """For each slider, a hash of all inputs at all its steps; ``look``: anything else that affects the page."""
    made = {key: several_gpus.at_steps(key) for key in SLIDERS.values()}
    others = question.all_but({key: [key, *made[key][0]] for key in made})
    return {
        slider: str(hash((others[key], str(made[key]), look))) for slider, key in SLIDERS.items()
    }


def positions() -> dict[str, str]:
    """For each slider, the step of the current answer, in the slider's own text."""
    return {slider: str(session.value(key)) for slider, key in SLIDERS.items()}


def draw(show: Show, look: object) -> None:
    """Sends the requested row, or the last one while it is valid. Computes no other."""
    state = st.session_state
    yields = st.container(key="row-yields").empty()
    if (slider := state.get(rerun.ROW_ASKED)) is not None:
        base = bases(look)[slider]
        state["row"] = {"slider": slider, "base": base, **_row(SLIDERS[slider], show, yields)}
        del state[rerun.ROW_ASKED]
    elif (sent := state.get("row")) and sent["base"] != bases(look)[sent["slider"]]:
        state["row"] = None
    steps = {slider: state["steps"][key] for slider, key in SLIDERS.items()}
    data = in_order.numbered({"row": state.get("row"), "steps": steps})
    _component(key="slider-rows", data=data, on_slider_change=_take, on_moved_change=_move)


def _take() -> None:
    slider = st.session_state["slider-rows"].slider
    if slider in SLIDERS:
        st.session_state[rerun.ROW_ASKED] = slider


def _move() -> None:
    """Sets what the browser moved without its slider, whose expander is closed."""
    slider, step = st.session_state["slider-rows"].moved
    if slider in SLIDERS and step in st.session_state["steps"][SLIDERS[slider]]:
        session.put(several_gpus.at_step(SLIDERS[slider], step))
        rerun.redraw()


def _row(key: str, show: Show, yields: DeltaGenerator) -> Document:
    """The answers along a slider. A move interrupts it between two steps, and its run goes on with the rest."""
    steps, shown = st.session_state["steps"][key], []
    for step in steps:
        shown.append(show(question.answer_with(several_gpus.at_step(key, step))))
        yields.html("<i></i>")
    return {"texts": [str(step) for step in steps], **row(shown)}
