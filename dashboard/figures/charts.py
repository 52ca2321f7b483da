"""The figures below the hero: how far a setup can go, and how memory moves through two steps. Plain dicts as there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

from dashboard import theme
from dashboard.figures.memory_bars import Figure, scale
from dashboard.words import wording
from estimator.answer.overflow import Instant, instants, starts_with_states
from estimator.values.results import Estimate, Moment
from estimator.values.specs import STEP_PHASES, Component

Grid = Sequence[Sequence[int | None]]
"""Bytes of headroom, a row a micro-batch and a column a context; None where the setup cannot be trained."""


def headroom_map(
    batches: Sequence[int],
    lengths: Sequence[int],
    headroom: Grid,
    current: tuple[int, int],
    *,
    dark: bool = False,
) -> Figure:
    """Micro-batch × context, coloured by headroom, with the line where it stops fitting.

    Over every cell lies an unseen marker that a click can choose; its ``customdata`` is [micro-batch, context].
    """
    look = theme.DARK if dark else theme.LIGHT
    columns, rows = [_tokens(n) for n in lengths], [f"{n:,}" for n in batches]
    known = [abs(size) for row in headroom for size in row if size is not None]
    largest = wording.in_gib(sorted(known)[len(known) // 2]) if known else 1.0
    gib = [[None if size is None else wording.in_gib(size) for size in row] for row in headroom]
    cells = {
        "type": "heatmap",
        "x": list(range(len(columns))),
        "y": list(range(len(rows))),
        "z": gib,
        "zmin": -max(largest, 1.0),
        "zmax": max(largest, 1.0),
        "colorscale": [[0, "#B83A00"], [0.4999, "#F7D9C8"], [0.5, "#CDEBE0"], [1, "#00785A"]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "text": [[_room(size) for size in row] for row in headroom],
        "texttemplate": "%{text}",
        "textfont": {"size": 13},
        "hoverinfo": "skip",
    }
    clicks = {
        "type": "scatter",
        "mode": "markers",
        "x": [x for _ in rows for x in range(len(columns))],
        "y": [y for y in range(len(rows)) for _ in columns],
        "customdata": [[batch, length] for batch in batches for length in lengths],
        "marker": {"size": 34, "opacity": 0, "symbol": "square"},
        "text": [
            _cell(batch, length, size)
            for batch, row in zip(batches, headroom, strict=True)
            for length, size in zip(lengths, row, strict=True)
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }
    chosen = {
        "type": "scatter",
        "mode": "markers",
        "x": [lengths.index(current[1])],
        "y": [batches.index(current[0])],
        "marker": {
            "size": 40,
            "symbol": "square-open",
            "color": look.ink,
            "line": {"width": 3, "color": look.ink},
        },
        "hoverinfo": "skip",
    }
    return {
        "data": [cells, _border(headroom, look), chosen, clicks],
        "layout": {
            "height": 90 + 34 * len(rows),
            "margin": {"l": 64, "r": 12, "t": 10, "b": 50},
            "showlegend": False,
            "dragmode": False,
            "clickmode": "event+select",
            "hovermode": "closest",
            "xaxis": _axis("Context (tokens)", columns, look),
            "yaxis": _axis("Micro-batch", rows, look),
        },
    }


def _axis(title: str, ticks: Sequence[str], look: theme.Look) -> dict[str, Any]:
    return {
        "title": {"text": title, "font": {"size": 14, "color": look.ink}},
        "tickvals": list(range(len(ticks))),
        "ticktext": list(ticks),
        "tickfont": {"size": 13, "color": look.ink},
        "tickangle": 0,
        "automargin": False,
        "range": [-0.5, len(ticks) - 0.5],
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }


def _tokens(length: int) -> str:
    """A context as people say it: ``4k`` for 4,096."""
    return f"{length // 1024:,}k" if length % 1024 == 0 else f"{length:,}"


def _room(size: int | None) -> str:
    """Headroom in whole GiB, short enough for a phone: ``+9``, ``−125``, ``−1.2k``."""
    if size is None:
        return "–"
    whole = round(abs(size) / wording.GIB)
    return f"{'+' if size >= 0 else '−'}{whole if whole < 1000 else f'{whole / 1000:.1f}k'}"


def _cell(batch: int, length: int, size: int | None) -> str:
    setup = f"{batch:,} × {length:,} tokens"
    if size is None:
        return f"{setup}: cannot be trained"
    said = f"{wording.gib(size)} free" if size >= 0 else f"{wording.gib(-size)} too little"
    return f"{setup}: {said}. Click to set both."


def _border(headroom: Grid, look: theme.Look) -> Figure:
    """The staircase between what fits and what does not: for each context, above the last batch that fits."""
    xs: list[float] = []
    ys: list[float] = []
    for column in range(len(headroom[0])):
        fitting = sum(1 for row in headroom if (size := row[column]) is not None and size >= 0)
        xs += [column - 0.5, column + 0.5]
        ys += [fitting - 0.5] * 2
    return {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "y": ys,
        "line": {"color": look.capacity, "width": 3, "dash": "dash"},
        "hoverinfo": "skip",
    }


# --- through the step ---------------------------------------------------------------------------


def through_the_step(estimate: Estimate, *, dark: bool = False) -> Figure:
    """The moments of the first two steps in order of time as stepped areas, against the capacity, the peak marked."""
    look = theme.DARK if dark else theme.LIGHT
    steps = [it for it in instants(estimate) if it.moment.phase in STEP_PHASES]
    moments = [it.moment for it in steps]
    first = sum(it.step == 1 for it in steps)
    largest = max(moment.bytes for moment in moments)
    line = estimate.gpu.memory_bytes if estimate.gpu is not None else 0
    end = scale(max(largest, line))
    highest = max(range(first, len(moments)), key=lambda at: moments[at].bytes)
    made = any(moment.resident.get(Component.OPTIMIZER_STATES) for moment in moments[:first])
    no_states = ":<br>no states yet" if made and not starts_with_states(estimate.setup) else ""
    there = [c for c in theme.COMPONENTS if any(moment.resident.get(c) for moment in moments)]
    return {
        "data": [_area(component, moments) for component in there],
        "layout": {
            "height": 420,
            "margin": {"l": 70, "r": 12, "t": 56, "b": 50 if steps[0].micro_step else 34},
            "showlegend": False,
            "hovermode": "x unified",
            "dragmode": False,
            "xaxis": {
                "range": [0, len(moments)],
                "fixedrange": True,
                "showgrid": False,
                "zeroline": False,
                **(_micro_step_ticks(steps) if steps[0].micro_step else _phase_ticks(moments)),
                "tickfont": {"size": 13, "color": look.ink},
            },
            "yaxis": {
                "range": [0, end],
                "fixedrange": True,
                "ticksuffix": " GiB",
                "gridcolor": theme.GRID,
                "zeroline": False,
                "tickfont": {"size": 13, "color": look.ink},
            },
            "shapes": _lines(first, line, look),
            "annotations": [
                _step_name(f"First step{no_states}", 0, look),
                _step_name("Second step<br>and all others", first, look),
                _peak_note(moments[highest], highest, len(moments), end, look),
            ],
        },
    }


def _area(component: Component, moments: Sequence[Moment]) -> Figure:
    part = theme.COMPONENTS[component]
    sizes = [wording.in_gib(moment.resident.get(component, 0)) for moment in moments]
    return {
        "type": "scatter",
        "stackgroup": "memory",
        "name": part.label,
        "mode": "lines",
        "x": list(range(len(moments) + 1)),
        "y": [*sizes, sizes[-1]],
        "line": {"shape": "hv", "width": 0.5, "color": part.colour},
        "fillcolor": part.colour,
        "text": [*(wording.moment(moment) for moment in moments), wording.moment(moments[-1])],
        "hovertemplate": f"{part.label} %{{y:.1f}} GiB<extra></extra>"
        if component is not Component.WEIGHTS
        else f"<b>%{{text}}</b><br>{part.label} %{{y:.1f}} GiB<extra></extra>",
    }


def _micro_step_ticks(steps: Sequence[Instant]) -> Mapping[str, list[Any]]:
    """With accumulation a tick in the middle of each micro-step: its phases are too narrow for their names."""
    values, texts, start = [], [], 0
    for number, group in groupby(steps, key=lambda it: it.micro_step):
        width = len(list(group))
        if number:
            values.append(start + width / 2)
            texts.append(f"Micro-step<br>{'1' if number == 1 else '2 and on'}")
        start += width
    return {"tickvals": values, "ticktext": texts}


def _phase_ticks(moments: Sequence[Moment]) -> Mapping[str, list[Any]]:
    """A tick in the middle of every phase that is wide enough for its name."""
    values, texts, start = [], [], 0
    for phase, group in groupby(moments, key=lambda moment: moment.phase):
        width = len(list(group))
        if width > len(moments) / 12:
            values.append(start + width / 2)
            texts.append(wording.PHASES[phase])
        start += width
    return {"tickvals": values, "ticktext": texts}


def _lines(middle: int, capacity: int, look: theme.Look) -> list[dict[str, Any]]:
    between = {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": middle,
        "x1": middle,
        "y0": 0,
        "y1": 1.06,
        "line": {"color": look.ink, "width": 1.5},
    }
    if not capacity:
        return [between]
    across = {
        "type": "line",
        "xref": "paper",
        "yref": "y",
        "x0": 0,
        "x1": 1,
        "y0": wording.in_gib(capacity),
        "y1": wording.in_gib(capacity),
        "line": {"color": look.capacity, "width": 2.5, "dash": "dash"},
        "label": {
            "text": f"{wording.gib(capacity)} usable",
            "textposition": "start",
            "yanchor": "bottom",
            "font": {"size": 14, "color": look.capacity},
        },
        "name": "capacity",
    }
    return [between, across]


def _step_name(text: str, at: int, look: theme.Look) -> dict[str, Any]:
    return {
        "x": at,
        "xref": "x",
        "xanchor": "left",
        "y": 1.02,
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
        "align": "left",
        "text": f"<b>{text}</b>",
        "font": {"size": 14, "color": look.ink},
    }


NOTE_WIDTH = 34
"""Letters of a line of the peak's note, so that it stays beside the axis of a narrow page."""


def _peak_note(moment: Moment, at: int, of: int, end: float, look: theme.Look) -> dict[str, Any]:
    height = wording.in_gib(moment.bytes)
    return {
        "x": at + 0.5,
        "xref": "x",
        "y": height,
        "yref": "y",
        "xanchor": "right" if at > of / 2 else "left",
        "ax": -30 if at > of / 2 else 30,
        "ay": 34 if height > end * 0.7 else -34,
        "showarrow": True,
        "arrowwidth": 2,
        "arrowcolor": look.ink,
        "bgcolor": "#FFFFFF" if look is theme.LIGHT else "#0E1117",
        "borderpad": 3,
        "align": "left",
        "text": "<br>".join(
            (f"<b>Peak {wording.gib(moment.bytes)}</b>", *wrap(wording.moment(moment), NOTE_WIDTH))
        ),
        "font": {"size": 14, "color": look.ink},
    }


# --- time and money -----------------------------------------------------------------------------


def cost_against_time(
    fitting: Sequence[Estimate], front: Sequence[Estimate], chosen: Estimate, *, dark: bool = False
) -> Figure:
    """Dollars against hours of the run for every card that holds it; those that no other beats in both are joined."""
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
        "customdata": [wording.run(it) for it in estimates],
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
