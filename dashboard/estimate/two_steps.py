"""Memory over two training steps, moment by moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from textwrap import wrap
from typing import Any

from dashboard import theme
from dashboard.figures.memory_bars import Figure, scale
from dashboard.words import terms, units
from estimator import (
    GENERATION_PHASES,
    MORE_PASSES,
    STEP_PHASES,
    Component,
    Estimate,
    Moment,
    Phase,
    overflow,
)


def through_the_step(estimate: Estimate, *, dark: bool = False) -> Figure:
    """Stepped areas: memory at each moment of the first two steps, with the capacity and the peak marked."""
    look = theme.DARK if dark else theme.LIGHT
    steps = [
        it
        for it in overflow.instants(estimate)
        if it.moment.phase in (*GENERATION_PHASES, *STEP_PHASES, *MORE_PASSES)
    ]
    moments = [it.moment for it in steps]
    first = sum(it.step == 1 for it in steps)
    largest = max(moment.bytes for moment in moments)
    line = estimate.gpu.memory_bytes if estimate.gpu is not None else 0
    end = scale(max(int(NOTE_ROOM * largest), line))
    highest = max(range(first, len(moments)), key=lambda at: moments[at].bytes)
    made = any(moment.resident.get(Component.OPTIMIZER_STATES) for moment in moments[:first])
    no_states = (
        ":<br>no states yet" if made and not overflow.starts_with_states(estimate.setup) else ""
    )
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
            "shapes": [*_lines(first, line, look), *_stops(estimate, steps, look)],
            "annotations": [
                _step_name(f"First step{no_states}", 0, look),
                _step_name("Second step<br>and all others", first, look),
                _peak_note(moments[highest], highest, len(moments), look),
                *(_stop_note(it["x0"], len(moments), look) for it in _stops(estimate, steps, look)),
            ],
        },
    }


def _area(component: Component, moments: Sequence[Moment]) -> Figure:
    part = theme.COMPONENTS[component]
    sizes = [units.in_gib(moment.resident.get(component, 0)) for moment in moments]
    return {
        "type": "scatter",
        "stackgroup": "memory",
        "name": part.label,
        "mode": "lines",
        "x": list(range(len(moments) + 1)),
        "y": [*sizes, sizes[-1]],
        "line": {"shape": "hv", "width": 0.5, "color": part.colour},
        "fillcolor": part.colour,
        "text": [*(terms.moment(moment) for moment in moments), terms.moment(moments[-1])],
        "hovertemplate": f"{part.label} %{{y:.1f}} GiB<extra></extra>"
        if component is not Component.WEIGHTS
        else f"<b>%{{text}}</b><br>{part.label} %{{y:.1f}} GiB<extra></extra>",
    }


def _micro_step_ticks(steps: Sequence[overflow.Instant]) -> Mapping[str, list[Any]]:
    """With accumulation, one tick per micro-step: its phases are too narrow for labels."""
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
            texts.append(terms.PHASES[phase])
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
        "y0": units.in_gib(capacity),
        "y1": units.in_gib(capacity),
        "line": {"color": look.capacity, "width": 2.5, "dash": "dash"},
        "label": {
            "text": f"{units.gib(capacity)} usable",
            "textposition": "start",
            "yanchor": "bottom",
            "font": {"size": 14, "color": look.capacity},
        },
        "name": "capacity",
    }
    return [between, across]


def _stops(
    estimate: Estimate, steps: Sequence[overflow.Instant], look: theme.Look
) -> list[dict[str, Any]]:
    """A line where the run stops; none if it does not stop in a step."""
    over = overflow.first_overflow(estimate)
    if over not in steps:
        return []
    at = steps.index(over) + 0.5
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": at,
            "x1": at,
            "y0": 0,
            "y1": 1,
            "line": {"color": look.capacity, "width": 2},
            "name": "stop",
        }
    ]


def _stop_note(at: float, of: int, look: theme.Look) -> dict[str, Any]:
    return {
        "x": at,
        "xref": "x",
        "xanchor": "right" if at > of / 4 else "left",
        "y": 0.12,
        "yref": "paper",
        "showarrow": False,
        "bgcolor": look.ground,
        "borderpad": 3,
        "text": "<b>Runs out here</b>",
        "font": {"size": 14, "color": look.capacity},
    }


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


NOTE_WIDTH = 28
"""Maximum characters per line of the peak's note, to fit a narrow page."""


NOTE_ROOM = 1.2
"""Height of the axis over the peak, besides what ``scale`` leaves: three lines of text fit above it."""


def _peak_note(moment: Moment, at: int, of: int, look: theme.Look) -> dict[str, Any]:
    height = units.in_gib(moment.bytes)
    return {
        "x": at + 0.5,
        "xref": "x",
        "y": height,
        "yref": "y",
        "xanchor": "right" if at > of / 2 else "left",
        "ax": -30 if at > of / 2 else 30,
        "ay": -12,
        "yanchor": "bottom",
        "showarrow": True,
        "arrowwidth": 2,
        "arrowcolor": look.ink,
        "bgcolor": "#FFFFFF" if look is theme.LIGHT else "#0E1117",
        "borderpad": 3,
        "align": "left",
        "text": "<br>".join(
            (f"<b>Peak {units.gib(moment.bytes)}</b>", *wrap(terms.moment(moment), NOTE_WIDTH))
        ),
        "font": {"size": 14, "color": look.ink},
    }


def step_html(estimate: Estimate) -> str:
    """The caption of the chart of two steps."""
    text = "Every moment of two training steps, in order."
    made = estimate.phases[Phase.OPTIMIZER_STEP].resident.get(Component.OPTIMIZER_STATES, 0)
    if made and overflow.starts_with_states(estimate.setup):
        text += f" The optimizer states ({units.gib(made)}) exist before the first."
    elif made:
        text += (
            f" The optimizer creates its states ({units.gib(made)}) at the end of the first step; from then on "
            "everything else is added to them."
        )
    return f'<p class="hr-text">{escape(f"{text} {overflow.runs_out(estimate)}")}</p>'


def step_alt(estimate: Estimate) -> str:
    """The chart of two steps as text."""
    phases = ", ".join(
        f"{terms.PHASES[phase].lower()} {units.gib(estimate.phases[phase].bytes)}"
        for phase in (*GENERATION_PHASES, *STEP_PHASES, *MORE_PASSES)
        if phase in estimate.phases
    )
    return (
        f"Memory through the second step, highest in each phase: {phases}; the peak of "
        f"{units.gib(estimate.peak.bytes)} comes in {terms.moment(estimate.peak)}. {overflow.runs_out(estimate)}"
    ).rstrip()
