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
PRELOAD = f"""<script data-of="plotly">
if (!document.querySelector('link[href="{SCRIPT}"]'))
  document.head.append(
    Object.assign(document.createElement("link"), {{ rel: "preload", as: "script", href: "{SCRIPT}" }}));
</script>"""
"""Has the browser fetch it while it draws the text; it is run when the first figure is there."""
# Where the script cannot be had, the figure's words stand in its place.
_draw = component(
    "figure",
    html='<div class="hr-plot" role="figure" aria-label="Figure"></div>',
    js=(files(__package__) / "drawing.js").read_text(),
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
