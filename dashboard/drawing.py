"""The one place where a figure meets Plotly's classes."""

from __future__ import annotations

from typing import Any

from plotly.basedatatypes import BaseFigure

from dashboard.figures import Figure


def menu(filename: str, form: str = "png") -> dict[str, Any]:
    """A chart's own menu: a camera that saves it as PNG or SVG, and nothing else."""
    return {
        "displayModeBar": True,
        "displaylogo": False,
        "modeBarButtons": [["toImage"]],
        "toImageButtonOptions": {"format": form, "filename": filename, "scale": 2},
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
