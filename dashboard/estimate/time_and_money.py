"""Time and cost of a step and a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from dashboard import theme
from dashboard.figures.memory_bars import Figure
from dashboard.words import markup, one_line, units
from estimator import Component, Estimate


def cost_against_time(
    fitting: Sequence[Estimate], front: Sequence[Estimate], chosen: Estimate, *, dark: bool = False
) -> Figure:
    """Dollars against hours of the run on every card that holds it, with a line along the Pareto front."""
    look = theme.DARK if dark else theme.LIGHT
    priced = [it for it in fitting if it.time is not None and it.cost is not None]
    others = [it for it in priced if it not in front]
    return {
        "data": [
            _cards(others, "markers", theme.RESERVE.colour, look),
            _cards(front, "lines+markers+text", VERDICT_GREEN, look),
            _cards(
                [it for it in priced if it.gpu == chosen.gpu], "markers", look.ink, look, ring=True
            ),
        ],
        "layout": {
            "height": 380,
            "margin": {"l": 70, "r": 24, "t": 16, "b": 50},
            "showlegend": False,
            "dragmode": False,
            "hovermode": "closest",
            "xaxis": _log_axis("Hours of the run", "", look),
            "yaxis": _log_axis("US dollars", "$", look),
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
        "x": [
            _middle(it.time.total_hours_low, it.time.total_hours_high)
            for it in estimates
            if it.time
        ],
        "y": [_middle(it.cost.cost_usd_low, it.cost.cost_usd_high) for it in estimates if it.cost],
        "text": [it.gpu.name for it in estimates if it.gpu],
        "textposition": "top center",
        "textfont": {"size": 13, "color": look.ink},
        "marker": {"color": colour, **symbol},
        "line": {"color": colour, "width": 2, "dash": "dot"},
        "customdata": [one_line.run(it) for it in estimates],
        "hovertemplate": "%{text}: %{customdata}<extra></extra>",
        "cliponaxis": False,
    }


def _middle(low: float, high: float) -> float:
    return round(math.sqrt(low * high), 4)


def _log_axis(title: str, prefix: str, look: theme.Look) -> dict[str, Any]:
    return {
        "type": "log",
        "title": {"text": title, "font": {"size": 14, "color": look.ink}},
        "tickprefix": prefix,
        "nticks": 5,
        "tickangle": 0,
        "tickformat": ".2~g",
        "tickfont": {"size": 13, "color": look.ink},
        "gridcolor": theme.GRID,
        "zeroline": False,
        "fixedrange": True,
    }


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
            (it for it in estimate.assumptions if it.startswith("No time")), "No time is known."
        )
        return f'<p class="hr-text">{escape(said)}</p>'
    rows = [
        markup.row(
            None,
            escape(part.name),
            units.seconds(part.low_seconds),
            units.seconds(part.high_seconds),
            "",
        )
        for part in time.parts
    ]
    ends = units.seconds(time.step_seconds_low), units.seconds(time.step_seconds_high)
    rows.append(markup.row(None, "One optimizer step", *ends, "", "hr-sum"))
    table = (
        '<table class="hr-table"><thead><tr><th scope="col">Seconds of a step</th>'
        '<th scope="col" class="hr-n">Fast</th><th scope="col" class="hr-n">Slow</th>'
        '<td class="hr-what"></td></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    lines = [
        f"{time.total_steps:,} step{'s' * (time.total_steps != 1)}; "
        f"{units.rate(time.tokens_per_second_low)} to {units.rate(time.tokens_per_second_high)} tokens a "
        f"second, which is {100 * time.mfu_low:.0f} to {100 * time.mfu_high:.0f} % of the GPU's dense peak.",
    ]
    if estimate.energy_kwh_low is not None and estimate.energy_kwh_high is not None:
        lines.append(
            f"Energy: {estimate.energy_kwh_low:,.1f} to {estimate.energy_kwh_high:,.1f} kWh at the board's rated power."
        )
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
        "their ranges, at the cheapest known listing; a ring marks the chosen GPU.</p>"
    )


def pareto_alt(front: Sequence[Estimate]) -> str:
    """The chart as text."""
    cards = "; ".join(f"{it.gpu.name}: {one_line.run(it)}" for it in front if it.gpu)
    return f"GPUs that no other beats in both hours and dollars: {cards}."
