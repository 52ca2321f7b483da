"""The one place where a figure meets Plotly's classes."""

from __future__ import annotations

from plotly.basedatatypes import BaseFigure

from dashboard.figures import Figure


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
