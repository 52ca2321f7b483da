"""The only place that calls Plotly, whose JavaScript draws a figure and updates it in place.

Whenever a figure changes, ``st.plotly_chart`` creates a new chart and draws it twice. Its menu only allows JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import streamlit as st
from streamlit.components.v1 import declare_component
from streamlit.components.v2 import component

from dashboard.figures.memory_bars import Figure
from dashboard.widgets import in_order


def is_dark() -> bool:
    """Whether the page has a dark theme."""
    return bool(st.context.theme.type == "dark")


declare_component("plotly", path=str(files(__package__) / "plotly"))


SCRIPT = f"component/{__name__}.plotly/plotly-cartesian.min.js"
"""URL of Plotly's JavaScript on this server: the bundle of bars, lines and heatmaps, a third of the whole.

Source: plotly-cartesian.min.js of https://www.npmjs.com/package/plotly.js-cartesian-dist-min, in the version that the
package ``plotly`` of ``requirements.txt`` has; its licence (MIT) is beside it.
"""
PRELOAD = f"""<script data-of="plotly">
if (!document.querySelector('link[href$="{SCRIPT}"]'))
  document.head.append(
    Object.assign(document.createElement("link"), {{ rel: "preload", as: "script", href: "{SCRIPT}" }}));
</script>"""
"""Lets the browser fetch the script while it draws the text. The script runs with the first figure."""
# If the script cannot be loaded, the figure's text is shown instead.
_draw = component(
    "figure",
    html='<p class="hr-legend"></p><div class="hr-plot" role="figure" aria-label="Figure"></div>'
    '<p class="hr-heard" aria-live="polite"></p>',
    js=in_order.SCRIPT + (files(__package__) / "drawing.js").read_text(),
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
    of: str = "",
    legend: str = "",
) -> None:
    """Draws a figure that has a height.

    ``alt``: the figure as text. ``menu``: whether its two camera buttons are always visible or only on hover.
    ``on_pick``: called with the ``customdata`` of a clicked point. ``follows``: data with which ``slider_rows`` redraws
    it while a slider moves. ``of``: the mark of its setup. ``legend``: the key of a figure whose legend has its parts,
    too.
    """
    data = in_order.numbered(
        {
            "figure": figure,
            "name": key,
            "alt": alt,
            "menu": menu,
            "script": SCRIPT,
            "picks": on_pick is not None,
            "follows": follows,
            "of": of,
            "legend": legend or key,
        }
    )
    if on_pick is None:
        _draw(key=key, data=data)
        return

    def take() -> None:
        picked = st.session_state[key].picked
        if picked is not None:
            on_pick(picked)

    _draw(key=key, data=data, on_picked_change=take)
