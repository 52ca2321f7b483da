"""The one place where a figure meets Plotly: in its classes, and in the browser."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import streamlit as st
from plotly.basedatatypes import BaseFigure
from streamlit.components.v1 import declare_component
from streamlit.components.v2 import component

from dashboard.figures import Figure

PICTURES = ("PNG", "SVG")


def menu(filename: str, shown: bool | str = "hover") -> dict[str, Any]:
    """A chart's own menu: a camera that saves it as the picture that the visitor has chosen, and nothing else."""
    return {
        "displayModeBar": shown,
        "displaylogo": False,
        "modeBarButtons": [["toImage"]],
        "toImageButtonOptions": {
            "format": st.session_state.get("picture", PICTURES[0]).lower(),
            "filename": f"headroom-{filename}",
            "scale": 2,
        },
    }


class Drawn(BaseFigure):  # type: ignore[misc]  # plotly has no types
    """A figure that is sent as it was written.

    Streamlit has Plotly validate a plain dict whenever it is drawn, some 25 ms at every move of a slider. Here a test
    validates what ``figures.hero`` writes, once.
    """

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    def to_dict(self) -> Figure:
        """The figure as it was written."""
        return self._figure


declare_component("plotly", path=str(files("plotly") / "package_data"))
SCRIPT = f"component/{__name__}.plotly/plotly.min.js"
"""Where this server has Plotly's own JavaScript, from the installed package."""

DRAW = """
const loaded = (url) => window.headroomPlotly ??= new Promise((done, fail) => {
  const script = document.createElement("script");
  Object.assign(script, { src: url, onload: () => done(window.Plotly), onerror: fail });
  document.head.append(script);
});
export default function ({ data, parentElement }) {
  const box = parentElement.querySelector(".hr-plot");
  box.wanted = data;
  box.style.minHeight = `${data.figure.layout.height}px`;
  box.setAttribute("aria-label", data.alt);
  loaded(data.script).then((Plotly) => {
    const { figure, config } = box.wanted;
    const font = { family: getComputedStyle(box).fontFamily };
    Plotly.react(box, figure.data, { ...figure.layout, font }, { ...config, responsive: true });
  }, () => { box.textContent = data.alt; });
}
"""
"""Draws into the figure that stands, where ``st.plotly_chart`` makes another one, twice, at every change of it.

Where the script cannot be had, the figure's words stand in its place.
"""
_draw = component(
    "figure", html='<div class="hr-plot" role="img"></div>', js=DRAW, isolate_styles=False
)


def plot(figure: Figure, key: str, alt: str) -> None:
    """Draw a figure that changes while one looks; it needs a height and a background. ``alt``: the same in words."""
    _draw(
        key=key,
        data={"figure": figure, "config": menu(key), "alt": alt, "script": SCRIPT},
    )
