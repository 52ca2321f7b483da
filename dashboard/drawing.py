"""The one place where a figure meets Plotly's classes."""

from __future__ import annotations

from typing import Any

import streamlit as st
from plotly.basedatatypes import BaseFigure

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
