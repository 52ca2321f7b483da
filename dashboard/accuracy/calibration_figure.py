"""Published speeds within their estimated ranges, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles
from typing import Any

from dashboard import theme
from dashboard.figures.memory_bars import Figure
from estimator import Calibration, Component

SHOWN = ("all", "method", "GPUs", "tokens", "strategy", "generation")
"""Kinds of classes in the figure; sources are in the table alone."""
ROW, MARGINS = 25, 122
"""Pixels of a class, and of the rest."""
GAP = 0.5
"""Rows between two kinds of classes."""
BEYOND = -0.25, 1.75
"""Ends of the axis: 0 is the fast end, 1 the slow end. A run beyond stands at the edge."""
FEW = 8
"""Runs below which a class proves little and is drawn pale."""


def figure(found: Sequence[Calibration], *, dark: bool = False) -> Figure:
    """One line per class: where nine in ten measured times lie within the range, and each run outside it."""
    look = theme.DARK if dark else theme.LIGHT
    shown = [one for one in found if one.kind in SHOWN]
    rows = _rows(shown)
    return {
        "data": [*_lines(shown, rows), _outside(shown, rows, look)],
        "layout": {
            "height": int(ROW * rows[-1]) + MARGINS,
            "margin": {"l": 158, "r": 118, "t": 46, "b": 50},
            "showlegend": False,
            "dragmode": False,
            "hovermode": "closest",
            "xaxis": {
                "range": [BEYOND[0] - 0.05, BEYOND[1] + 0.05],
                "tickvals": [0, 1],
                "ticktext": ["fast", "slow"],
                "tickangle": 0,
                "tickfont": {"size": 14, "color": look.ink},
                "showgrid": False,
                "zeroline": False,
                "fixedrange": True,
            },
            "yaxis": {
                "range": [rows[-1] + 0.6, -0.6],
                "tickvals": rows,
                "ticktext": [_name(one) for one in shown],
                "tickfont": {"size": 13, "color": look.ink},
                "showgrid": False,
                "zeroline": False,
                "fixedrange": True,
            },
            "shapes": [
                {
                    "type": "rect",
                    "layer": "below",
                    "x0": 0,
                    "x1": 1,
                    "yref": "paper",
                    "y0": 0,
                    "y1": 1,
                    "fillcolor": theme.GRID,
                    "line": {"width": 0},
                }
            ],
            "annotations": [
                {**_beside("inside", 1, 44, look), "yref": "paper", "yanchor": "bottom"},
                {**_beside("width", 1, 100, look), "yref": "paper", "yanchor": "bottom"},
                *(
                    _beside(f"{100 * row.inside / row.runs:.0f} %", at, 44, look)
                    for at, row in zip(rows, shown, strict=True)
                ),
                *(
                    _beside(f"{one.width:.2f}", at, 100, look)
                    for at, one in zip(rows, shown, strict=True)
                ),
            ],
        },
    }


def _rows(shown: Sequence[Calibration]) -> list[float]:
    """Heights of the classes, from the top."""
    kinds = list(dict.fromkeys(one.kind for one in shown))
    return [at + GAP * kinds.index(one.kind) for at, one in enumerate(shown)]


def _name(of: Calibration) -> str:
    return (
        f"{PLAIN.get((of.kind, of.name), of.name)}{' tokens' * (of.kind == 'tokens')} · {of.runs}"
    )


PLAIN = {("all", ""): "all", ("GPUs", "one"): "one GPU", ("strategy", "none"): "no strategy"}
"""Names that would say too little beside those of other kinds."""


def _lines(shown: Sequence[Calibration], rows: Sequence[float]) -> list[Figure]:
    """From the fastest to the slowest twentieth, and the median."""
    colour = theme.COMPONENTS[Component.WEIGHTS].colour
    drawn: list[Figure] = []
    for at, row in zip(rows, shown, strict=True):
        low, middle, high = _twentieths(row.positions)
        pale = 0.35 if row.runs < FEW else 1
        drawn += [
            {
                "type": "scatter",
                "mode": "lines",
                "x": [low, high],
                "y": [at, at],
                "line": {"color": colour, "width": 7},
                "opacity": pale,
                "hoverinfo": "skip",
            },
            {
                "type": "scatter",
                "mode": "markers",
                "x": [middle],
                "y": [at],
                "marker": {
                    "symbol": "line-ns",
                    "size": 16,
                    "line": {"color": theme.COMPONENTS[Component.GRADIENTS].colour, "width": 3},
                },
                "opacity": pale,
                "hovertemplate": f"{_name(row)} runs: {row.inside} inside, {row.faster} faster, {row.slower} slower; "
                f"width {row.width:.2f} in the median, {row.widest:.2f} at most<extra></extra>",
            },
        ]
    return drawn


def _twentieths(positions: Sequence[float]) -> tuple[float, float, float]:
    if len(positions) == 1:
        return (_within(positions[0]),) * 3
    cuts = quantiles(positions, n=20, method="inclusive")
    return _within(cuts[0]), _within(cuts[9]), _within(cuts[-1])


def _within(position: float) -> float:
    return round(min(max(position, BEYOND[0]), BEYOND[1]), 6)


def _outside(shown: Sequence[Calibration], rows: Sequence[float], look: theme.Look) -> Figure:
    outside = [
        (at, position)
        for at, row in zip(rows, shown, strict=True)
        for position in row.positions
        if not 0 <= position <= 1
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [_within(position) for _, position in outside],
        "y": [at for at, _ in outside],
        "marker": {"color": look.capacity, "size": 6, "opacity": 0.8},
        "hoverinfo": "skip",
    }


def _beside(text: str, at: float, right: int, look: theme.Look) -> dict[str, Any]:
    return {
        "text": text,
        "x": 1,
        "xref": "paper",
        "xshift": right,
        "xanchor": "right",
        "y": at,
        "showarrow": False,
        "font": {"size": 13, "color": look.ink},
    }


def alt(found: Sequence[Calibration]) -> str:
    """The figure as text."""
    shown = "; ".join(
        f"{_name(row)} runs, {100 * row.inside / row.runs:.0f} % inside, width {row.width:.2f}"
        for row in found
        if row.kind in SHOWN
    )
    return f"Published runs inside their estimated range of seconds, by class: {shown}."


CAPTION = (
    "Blue: from the fastest to the slowest twentieth of a class's runs, within the range that was estimated for each; "
    "orange: their median. Red: runs outside. Pale: fewer than eight runs, which prove little."
)
"""How to read the figure."""
