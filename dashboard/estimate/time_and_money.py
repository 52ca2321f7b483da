"""Time and cost of a step and a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from dashboard import theme
from dashboard.figures import axes
from dashboard.figures.memory_bars import Figure
from dashboard.words import markup, one_line, units
from estimator import Component, Estimate


def cost_against_time(
    fitting: Sequence[Estimate], front: Sequence[Estimate], chosen: Estimate, *, dark: bool = False
) -> Figure:
    """Dollars against hours of the run on every card that holds it, with a line along the Pareto front."""
    look = theme.DARK if dark else theme.LIGHT
    priced = [
        estimate for estimate in fitting if estimate.time is not None and estimate.cost is not None
    ]
    own = [
        estimate
        for estimate in priced
        if estimate.gpu and chosen.gpu and estimate.gpu.name == chosen.gpu.name
    ]
    others = [one for one in priced if one not in front]
    across = axes.logarithmic("Hours of the run", map(_hours, priced), look)
    up = axes.logarithmic("US dollars", map(_dollars, priced), look, unit="$")
    joined = _cards(front, "lines+markers+text", VERDICT_GREEN, look)
    joined["text"] = _names(front, across["range"], up["range"])
    return {
        "data": [
            _cards(others, "markers", theme.RESERVE.colour, look),
            joined,
            _cards(own, "markers", look.ink, look, ring=True),
        ],
        "layout": {
            "height": 380,
            "margin": {"l": 70, "r": 24, "t": 16, "b": 50},
            "showlegend": False,
            "dragmode": False,
            "hovermode": "closest",
            "xaxis": across,
            "yaxis": up,
        },
    }


VERDICT_GREEN = theme.COMPONENTS[Component.OPTIMIZER_STATES].colour


def _cards(
    estimates: Sequence[Estimate], mode: str, colour: str, look: theme.Look, *, ring: bool = False
) -> Figure:
    symbol = {"symbol": "circle-open", "size": 20, "line": {"width": 3}} if ring else {"size": 11}
    return {
        "type": "scatter",
        "mode": mode,
        "x": [_hours(estimate) for estimate in estimates],
        "y": [_dollars(estimate) for estimate in estimates],
        "textposition": "top right",
        "textfont": {"size": 13, "color": look.ink},
        "marker": {"color": colour, **symbol},
        "line": {"color": colour, "width": 2, "dash": "dot"},
        "customdata": [
            f"{estimate.gpu.name}: {one_line.run(estimate)}"
            for estimate in estimates
            if estimate.gpu
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
        "cliponaxis": False,
    }


def _names(front: Sequence[Estimate], across: Sequence[float], up: Sequence[float]) -> list[str]:
    """The cards' names, both ends first; empty where a name would cover another."""
    places = [
        (
            (math.log10(_hours(one)) - across[0]) / (across[1] - across[0]),
            (math.log10(_dollars(one)) - up[0]) / (up[1] - up[0]),
        )
        for one in front
    ]
    named: list[int] = []
    for at in sorted(range(len(front)), key=lambda at: at not in {0, len(front) - 1}):
        x, y = places[at]
        if all(
            abs(x - places[one][0]) > APART[0] or abs(y - places[one][1]) > APART[1]
            for one in named
        ):
            named.append(at)
    return [
        estimate.gpu.name if at in named and estimate.gpu else ""
        for at, estimate in enumerate(front)
    ]


APART = 0.4, 0.07
"""Shares of the axes by which names are apart: a long name on a desktop's figure, and a line."""


def _hours(of: Estimate) -> float:
    assert of.time is not None
    return round(of.time.total_hours.middle, 4)


def _dollars(of: Estimate) -> float:
    assert of.cost is not None
    return round(of.cost.cost_usd.middle, 4)


def _row(name: str, ends: Iterable[float], kind: str = "") -> str:
    low, high = map(units.seconds, ends)
    return markup.row(None, name, low, high, "", kind)


def time_html(estimate: Estimate, fastest: Estimate | None, cheapest: Estimate | None) -> str:
    """The parts of a step's time, and the resulting time and cost of the run."""
    time = estimate.time
    if time is None and estimate.gpu is None:
        return '<p class="hr-text">Choose a GPU to see how long the run takes on it.</p>'
    best = [
        f"{name} GPU that holds it: {one.gpu.name}, {one_line.run(one)}."
        for name, one in (("Fastest", fastest), ("Cheapest", cheapest))
        if one is not None and one.gpu is not None
    ]
    if estimate.gpu is not None and not estimate.can_run:
        said = f"It does not fit on {estimate.gpu.name}, so no hours or dollars are given."
        return "".join(f'<p class="hr-text">{escape(line)}</p>' for line in (said, *best))
    if time is None:
        said = next(
            (assumption for assumption in estimate.assumptions if assumption.startswith("No time")),
            "No time is known.",
        )
        return f'<p class="hr-text">{escape(said)}</p>'
    rows = [
        *(_row(escape(part.name), part.seconds) for part in time.parts),
        _row("One optimizer step", time.step_seconds, "hr-sum"),
    ]
    table = (
        '<table class="hr-table"><thead><tr><th scope="col">Seconds of a step</th>'
        '<th scope="col" class="hr-n">Fast</th><th scope="col" class="hr-n">Slow</th>'
        '<td class="hr-what"></td></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    lines = [
        f"{time.total_steps:,} step{'s' * (time.total_steps != 1)}; "
        f"{units.rate(time.tokens_per_second.low)} to {units.rate(time.tokens_per_second.high)} tokens a "
        f"second, which is {100 * time.mfu.low:.0f} to {100 * time.mfu.high:.0f} % of the GPU's dense peak.",
    ]
    if estimate.energy_kwh is not None:
        low, high = estimate.energy_kwh
        lines.append(f"Energy: {low:,.1f} to {high:,.1f} kWh at the board's rated power.")
    lines += best
    said = "".join(f'<p class="hr-text">{escape(line)}</p>' for line in lines)
    return said + table


def own_step_line(estimate: Estimate) -> str:
    """The measurement that narrows the seconds."""
    taken = estimate.setup.run.pace_from
    return f"From your own step{': ' + taken if taken else ''}. On another machine, forget it."


def pareto_html(front: Sequence[Estimate]) -> str:
    """The caption of the chart of dollars and hours."""
    return (
        '<h2 class="hr-head">Dollars against hours on every GPU that holds it</h2>'
        f'<p class="hr-text">No other GPU beats the {len(front)} connected ones in both. Points are the middle of '
        "their ranges, at the cheapest known listing; a ring marks the chosen GPU. Where names would cover each other, "
        "some are left out; point at a card to read its name.</p>"
    )


def pareto_alt(front: Sequence[Estimate]) -> str:
    """The chart as text."""
    cards = "; ".join(
        f"{estimate.gpu.name}: {one_line.run(estimate)}" for estimate in front if estimate.gpu
    )
    return f"GPUs that no other beats in both hours and dollars: {cards}."
