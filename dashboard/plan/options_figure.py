"""All setups of a question as a density over dollars and hours, with the Pareto front as named points."""

from __future__ import annotations

from html import escape

import numpy as np
from numpy.typing import NDArray

from dashboard import theme
from dashboard.figures import axes
from dashboard.figures.memory_bars import Figure
from estimator import Advice, Component, Range, plan_words

HEIGHT = 470
CELLS = (60, 40)
"""Cells of the density along dollars and hours. Our choice: coarse enough to see single setups."""
MOST_NAMED = 5
"""Maximum labelled points. Our choice: as many as have room."""
CAPTION = (
    "Grey: setups that fit, darker where there are more. Blue: no other is cheaper, faster and roomier; the line is "
    "what the next dollar buys. Diamond: recommended, with the ranges of its hours and dollars. Dashed: your limits."
)
"""How to read the figure."""
Floats = NDArray[np.float64]


def figure(advice: Advice, *, dark: bool = False) -> Figure:
    """Dollars against hours of every setup that fits, both logarithmic, with the front, its steps and the limits.

    If nothing is rented there are no dollars, and the axis shows GPU-hours, which owned cards have too.
    """
    look = theme.DARK if dark else theme.LIGHT
    found, asked = advice.candidates, advice.question
    across, name = _across(advice)
    fits = found.fits & advice.kept & ~np.isnan(found.middle_hours) & ~np.isnan(across)
    traces: list[Figure] = []
    if fits.any():
        traces.append(_density(across[fits], found.middle_hours[fits]))
    traces += _front(advice, across, look)
    shapes = []
    if asked.deadline_hours:
        shapes.append(_limit(look, "y", asked.deadline_hours))
    if asked.budget_usd and has_rent(advice):
        shapes.append(_limit(look, "x", asked.budget_usd))
    return {
        "data": traces,
        "layout": {
            "height": HEIGHT,
            "margin": {"l": 62, "r": 16, "t": 14, "b": 52},
            "showlegend": False,
            "hovermode": "closest",
            "dragmode": False,
            "xaxis": axes.logarithmic(
                name,
                [*across[fits].tolist(), *([asked.budget_usd] if has_rent(advice) else ())],
                look,
                unit="$" * has_rent(advice),
            ),
            "yaxis": axes.logarithmic(
                "Hours", [*found.middle_hours[fits].tolist(), asked.deadline_hours], look
            ),
            "shapes": shapes,
            "annotations": _names(advice, across, look),
        },
    }


def has_rent(advice: Advice) -> bool:
    """Whether every setup costs dollars, as a logarithmic scale requires."""
    found = advice.candidates
    dollars = found.middle_dollars[found.fits & advice.kept & ~np.isnan(found.middle_dollars)]
    return bool(len(dollars)) and bool((dollars > 0).all())


def _across(advice: Advice) -> tuple[Floats, str]:
    found = advice.candidates
    if has_rent(advice):
        return found.middle_dollars, "US dollars"
    return found.middle_hours * found.num_gpus, "GPU-hours"


def _density(across: Floats, hours: Floats) -> Figure:
    edges = [
        np.geomspace(one.min() / axes.MARGIN, one.max() * axes.MARGIN, n + 1)
        for one, n in zip((across, hours), CELLS, strict=True)
    ]
    counts, *_ = np.histogram2d(across, hours, edges)
    shown = np.where(counts > 0, np.log10(counts + 1), np.nan).T
    return {
        "type": "heatmap",
        "name": "Setups",
        "x": edges[0].tolist(),
        "y": edges[1].tolist(),
        "z": [[None if np.isnan(one) else round(float(one), 2) for one in row] for row in shown],
        "customdata": counts.T.astype(int).tolist(),
        "colorscale": [[0, "rgba(127,138,148,0.18)"], [1, "rgba(127,138,148,0.75)"]],
        "showscale": False,
        "hovertemplate": "%{customdata} setups<extra></extra>",
    }


def _front(advice: Advice, across: Floats, look: theme.Look) -> list[Figure]:
    found, front = advice.candidates, advice.front
    if not len(front):
        return []
    steps = [stair.place for stair in advice.stairs]
    line_places = _along(advice)
    colour = theme.COMPONENTS[Component.WEIGHTS].colour
    points = {
        "type": "scatter",
        "mode": "markers",
        "name": "No other is cheaper, faster and roomier",
        "x": across[front].tolist(),
        "y": found.middle_hours[front].tolist(),
        "customdata": front.tolist(),
        "text": [_hover(advice, place) for place in front.tolist()],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"size": 7, "color": colour, "opacity": 0.55},
    }
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "What the next dollar buys",
        "x": across[line_places].tolist(),
        "y": found.middle_hours[line_places].tolist(),
        "customdata": line_places,
        "text": [_hover(advice, place) for place in line_places],
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": colour, "width": 2, "shape": "hv"},
        "marker": {"size": [11 if place in steps else 7 for place in line_places], "color": colour},
    }
    traces = [points, line]
    if advice.recommended is not None:
        traces.append(_recommended(advice, across, look))
    return traces


def _along(advice: Advice) -> list[int]:
    """The places on the line: every step, those that cannot be told from it, and the recommended one."""
    found = advice.candidates
    places = {place for stair in advice.stairs for place in (stair.place, *stair.alike)}
    if advice.recommended is not None:
        places.add(advice.recommended)
    return sorted(places, key=lambda one: (found.middle_dollars[one], -found.middle_hours[one]))


def _recommended(advice: Advice, across: Floats, look: theme.Look) -> Figure:
    """The recommended setup with its ranges of hours and dollars."""
    found, place = advice.candidates, advice.recommended
    assert place is not None
    ends = found.dollars_of(place)
    if not has_rent(advice):
        ends = found.hours_of(place) * float(found.num_gpus[place])
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "Recommended",
        "x": [float(across[place])],
        "y": [float(found.middle_hours[place])],
        "error_x": _error(float(across[place]), ends, look),
        "error_y": _error(float(found.middle_hours[place]), found.hours_of(place), look),
        "customdata": [place],
        "text": [_hover(advice, place)],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"size": 16, "color": look.ink, "symbol": "diamond"},
    }


def _error(middle: float, ends: Range[float], look: theme.Look) -> Figure:
    return {
        "type": "data",
        "symmetric": False,
        "array": [ends.high - middle],
        "arrayminus": [middle - ends.low],
        "color": look.ink,
        "thickness": 1.5,
        "width": 5,
    }


def _hover(advice: Advice, place: int) -> str:
    found = advice.candidates
    lines = (
        plan_words.title(found, place),
        plan_words.terms(found, place),
        plan_words.free(found, place),
    )
    return "<br>".join(escape(line) for line in lines)


def _limit(look: theme.Look, axis: str, at: float) -> Figure:
    other = "x" if axis == "y" else "y"
    return {
        "type": "line",
        f"{axis}0": at,
        f"{axis}1": at,
        f"{other}ref": "paper",
        f"{other}0": 0,
        f"{other}1": 1,
        "line": {"color": look.capacity, "width": 2.5, "dash": "dash"},
    }


def _names(advice: Advice, across: Floats, look: theme.Look) -> list[Figure]:
    """Labels with cards and method, beside the recommended point and the first steps of the front."""
    found = advice.candidates
    places = [] if advice.recommended is None else [advice.recommended]
    places += [stair.place for stair in advice.stairs if stair.place not in places]
    return [
        {
            "x": float(np.log10(across[place])),
            "y": float(np.log10(found.middle_hours[place])),
            "text": escape(plan_words.cards(found, place)),
            "showarrow": True,
            "arrowwidth": 1,
            "arrowcolor": look.ink,
            "ax": 34,
            "ay": -26 - 12 * (number % 2),
            "xanchor": "left",
            "font": {"size": 13, "color": look.ink},
            "bgcolor": look.ground,
            "opacity": 0.9,
        }
        for number, place in enumerate(places[:MOST_NAMED])
    ]


def alt(advice: Advice) -> str:
    """The figure as text."""
    found = advice.candidates
    fitting = int((found.fits & advice.kept).sum())
    named = "; ".join(
        f"{plan_words.cards(found, stair.place)}: {plan_words.terms(found, stair.place)}"
        for stair in advice.stairs
    )
    return f"{fitting:,} setups that fit, by dollars and hours. The cheapest, and what is faster for more: {named}."
