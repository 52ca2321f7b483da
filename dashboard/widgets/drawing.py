"""The one place where a figure meets Plotly, whose JavaScript draws it and updates it in place.

``st.plotly_chart`` makes another chart, and draws it twice, at every change of a figure; and its menu holds nothing but
what JSON can say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import streamlit as st
from streamlit.components.v1 import declare_component
from streamlit.components.v2 import component

from dashboard.figures.memory_bars import Figure


def is_dark() -> bool:
    """Whether the page is dark."""
    return bool(st.context.theme.type == "dark")


declare_component("plotly", path=str(files("plotly") / "package_data"))


SCRIPT = f"component/{__name__}.plotly/plotly.min.js"
"""Where this server has Plotly's own JavaScript, from the installed package."""
DRAW = """
const loaded = (url) => window.headroomPlotly ??= new Promise((done, fail) => {
  const script = document.createElement("script");
  Object.assign(script, { src: url, onload: () => done(window.Plotly), onerror: fail });
  document.head.append(script);
});
const camera = (Plotly, format, name) => ({
  name: `Save as ${format.toUpperCase()}`,
  icon: format === "png" ? Plotly.Icons.camera : Plotly.Icons.disk,
  click: (plot) => Plotly.downloadImage(plot, { format, scale: 2, filename: `headroom-${name}` }),
});
export default function ({ data, parentElement, setTriggerValue }) {
  const box = parentElement.querySelector(".hr-plot");
  const draw = (Plotly) => {
    const { name, menu, picks } = box.wanted;
    const ground = getComputedStyle(document.querySelector(".stApp")).backgroundColor;
    const text = JSON.stringify(box.wanted.figure);
    if (text === box.drawn && ground === box.ground) return;
    Object.assign(box, { drawn: text, ground });
    const figure = JSON.parse(text);  // Plotly writes into what it is given
    const modebar = { bgcolor: "rgba(0,0,0,0)", color: "#7F8A94", activecolor: "#0072B2" };
    const look = { paper_bgcolor: ground, plot_bgcolor: ground, modebar };
    const font = { family: getComputedStyle(box).fontFamily };
    box.cameras ??= [["png", "svg"].map((format) => camera(Plotly, format, name))];
    const config = { displayModeBar: menu, displaylogo: false, modeBarButtons: box.cameras, responsive: true };
    Plotly.react(box, figure.data, { ...look, ...figure.layout, font }, config);
    if (picks && !box.picks) {
      box.picks = true;
      box.on("plotly_click", ({ points: [point] }) => setTriggerValue("picked", point.customdata ?? null));
    }
  };
  box.show = (figure, alt) => {
    box.wanted = { ...data, figure, alt };
    box.style.minHeight = `${figure.layout.height}px`;
    box.setAttribute("aria-label", alt);
    if (window.Plotly) draw(window.Plotly);
    else loaded(data.script).then(draw, () => { box.textContent = box.wanted.alt; });
  };
  box.follows = data.follows;
  if (!data.follows || !window.headroomRows?.answered()) box.show(data.figure, data.alt);
}
"""
"""Where the script cannot be had, the figure's words stand in its place."""
_draw = component(
    "figure",
    html='<div class="hr-plot" role="figure" aria-label="Figure"></div>',
    js=DRAW,
    isolate_styles=False,
)


def plot(
    figure: Figure,
    key: str,
    alt: str,
    *,
    menu: bool | str = "hover",
    on_pick: Callable[[Any], None] | None = None,
    follows: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Draw a figure that has a height.

    ``alt``: the same in words. ``menu``: are its two cameras there always, or while the pointer is over it. ``on_pick``
    is called with the ``customdata`` of a point that is clicked. ``follows``: what ``slider_rows`` needs, to draw it
    while a slider is moved.
    """
    data = {
        "figure": figure,
        "name": key,
        "alt": alt,
        "menu": menu,
        "script": SCRIPT,
        "picks": on_pick is not None,
        "follows": follows,
    }
    if on_pick is None:
        _draw(key=key, data=data)
        return

    def take() -> None:
        picked = st.session_state[key].picked
        if picked is not None:
            on_pick(picked)

    _draw(key=key, data=data, on_picked_change=take)
