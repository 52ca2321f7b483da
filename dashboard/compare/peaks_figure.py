"""Each scenario's peak as a bar, on one scale."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from html import escape
from itertools import accumulate

from dashboard import theme
from dashboard.compare import entry
from dashboard.compare.entry import ComparedEntry
from dashboard.figures.memory_bars import TEXT_SIZE, Figure, capacity_marks, scale, stacked
from dashboard.words import terms, units
from estimator import Estimate


def figure(
    shown: Sequence[ComparedEntry],
    *,
    dark: bool = False,
    large: bool = False,
    chosen: int | None = None,
) -> Figure:
    """Each scenario's peak stacked by component, all on one scale, each with its own capacity as a line.

    Name, card and need are above each bar, because a phone has room there. ``large``: for the projector.
    """
    look = theme.DARK if dark else theme.LIGHT
    found = entry.bars(shown)
    count = max(len(found), 1)
    sizes = [estimate.need_high_bytes for _, estimate in found]
    sizes += [estimate.gpu.memory_bytes for _, estimate in found if estimate.gpu]
    end = scale(max(sizes, default=1))
    text = TEXT_SIZE
    row = 62
    if large:
        row = max(58, min(118, STAGE_PIXELS // count))
        text = 24 if row > 80 else 20
    return {
        "data": [
            stacked([one for _, one in found], end, look, text, BAR),
            *capacity_marks([one for _, one in found], look, row * CAPACITY_SIZE),
            _names(shown, look, text, row, chosen),
        ],
        "layout": {
            "barmode": "overlay",
            "height": 78 + row * count,
            "margin": {"l": 8, "r": 12, "t": 34, "b": 44},
            "showlegend": False,
            "hovermode": "closest",
            "dragmode": False,
            "xaxis": {
                "range": [0, end],
                "fixedrange": True,
                "automargin": False,
                "ticksuffix": " GiB",
                "showticksuffix": "last",
                "tickangle": 0,
                "gridcolor": theme.GRID,
                "zeroline": False,
                "nticks": 5,
                "tickfont": {"size": text - 2, "color": look.ink},
            },
            "yaxis": {
                "range": [count - 0.62, -0.62],
                "fixedrange": True,
                "automargin": False,
                "visible": False,
            },
        },
    }


CAPACITY_SIZE = 0.38
"""Size of a capacity marker as a share of its row. Plotly draws it 1.4 times as long: a little longer than its bar, and
not into the name above."""
BAR = 0.5
"""Height of a bar, as a share of its row."""
STAGE_PIXELS = 480
"""Total height of all bars on the projector: the space below the verdict on 1,080 pixels."""
SHOWN_OF_NAME = 30
"""Maximum characters of a name above its bar. Our choice, for phones; the table shows the full name."""


def _names(
    shown: Sequence[ComparedEntry], look: theme.Look, size: int, row: int, chosen: int | None
) -> Figure:
    """The names above the bars, half a line and a little beyond them.

    ``row``: pixels of a bar with its name. Names are escaped because Plotly interprets some HTML.
    """
    marked = None if chosen is None else shown[chosen].name
    found = entry.bars(shown)
    return {
        "type": "scatter",
        "mode": "text",
        "name": "Need",
        "y": [place - BAR / 2 - 0.66 * size / row for place in range(len(found))],
        "x": [0] * len(found),
        "text": [
            f"{'▸ ' * (name == marked)}<b>{escape(cut(name))}</b>  {escape(total(one))}"
            for name, one in found
        ],
        "textposition": "middle right",
        "textfont": {"size": size, "color": look.ink},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }


def cut(text: str, letters: int = SHOWN_OF_NAME) -> str:
    """Shortens a text to the width of so many letters; capitals are wider, and East Asian letters twice as wide.

    >>> cut("a plain line of thirty letters", 30), cut("W" * 30, 30), cut("显存" * 15, 30)
    ('a plain line of thirty letters', 'WWWWWWWWWWWWWWWWWWW…', '显存显存显存显存显存显存显存…')
    """
    ends = list(accumulate(map(_width, text)))
    if not ends or ends[-1] <= letters:
        return text
    return f"{text[: sum(end <= letters - 1 for end in ends)]}…"


def _width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 2.0
    return 1.5 if letter.isupper() or letter in "mw@%" else 1.0


def total(estimate: Estimate) -> str:
    """The label of a bar: its need, its card's memory, and the verdict's symbol."""
    sign = f" {terms.SIGNS[estimate.verdict]}" if estimate.verdict else ""
    of = f" of {units.number(estimate.gpu.memory_bytes)}" if estimate.gpu else ""
    return f"{units.number(estimate.need_high_bytes)}{of} GiB{sign}"


def figure_alt(shown: Sequence[ComparedEntry]) -> str:
    """The figure as text."""
    said = "; ".join(
        f"{name}: needs {units.gib(estimate.need_high_bytes)}"
        + (
            f" of {units.gib(estimate.gpu.memory_bytes)} on {estimate.gpu.name}"
            if estimate.gpu
            else ""
        )
        for name, estimate in entry.bars(shown)
    )
    return f"GPU memory of each scenario at its peak, stacked by component: {said}."
