"""The hero figure, which is the phases of a step, and below it each method's peak, on the same scale.

They are two, since a move of a slider redraws only the first: the other methods' needs are computed at a pause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dashboard import theme
from dashboard.figures import memory_bars
from dashboard.figures.memory_bars import Bar, Figure
from dashboard.words import terms, units
from estimator import MORE_PASSES, STEP_PHASES, Estimate, Method, Phase

PLACES: Mapping[Phase | Method, float] = {
    Phase.FORWARD: 0.0,
    Phase.LOSS: 1.0,
    Phase.BACKWARD: 2.0,
    Phase.OPTIMIZER_STEP: 3.0,
    Phase.SAVE: 4.0,
    Method.FULL: 5.9,
    Method.LORA: 6.9,
    Method.QLORA: 7.9,
}
"""Position of each bar from the top; the gap is for the second heading. If a pass without gradients takes more than the
loss, it replaces the loss. Likewise evaluation or loading replaces saving."""


class FigurePart(NamedTuple):
    """One of the two figures."""

    heading: str
    at: float
    """The heading's position."""
    span: tuple[float, float]
    """Start and end of the capacity line, which leaves out the heading."""
    top: float
    height: int
    """In pixels."""
    above: int
    """Pixels above the bars, where the first has the capacity in words."""


PHASES = FigurePart("One step, phase by phase", -0.85, (-0.45, 4.5), -1.2, 243, 26)
METHODS = FigurePart("Each method at its peak", 5.05, (5.45, 8.45), 4.7, 155, 2)


def _phases(estimate: Estimate) -> list[Bar]:
    reserve = estimate.need_high_bytes - estimate.decisive.bytes
    beside = max(
        (
            moment
            for phase, moment in estimate.phases.items()
            if phase not in (*STEP_PHASES, *MORE_PASSES)
        ),
        key=lambda moment: moment.bytes,
    )
    asked = max(
        (
            estimate.phases[phase]
            for phase in (Phase.LOSS, *MORE_PASSES)
            if phase in estimate.phases
        ),
        key=lambda moment: moment.bytes,
    )
    shown = {phase: estimate.phases[phase] for phase in STEP_PHASES}
    shown |= {Phase.LOSS: asked, Phase.SAVE: beside}
    return [
        Bar(
            PLACES[place],
            terms.PHASES[moment.phase],
            memory_bars.parts(moment.resident, reserve),
            moment.phase is estimate.decisive.phase,
        )
        for place, moment in shown.items()
    ]


def _methods(estimate: Estimate, methods: Mapping[Method, Estimate]) -> list[Bar]:
    return [
        Bar(
            PLACES[method],
            method.label,
            memory_bars.parts(
                other.decisive.resident, other.need_high_bytes - other.decisive.bytes
            ),
            method is estimate.setup.adapters.method,
        )
        for method, other in methods.items()
    ]


def hero(estimate: Estimate, *, dark: bool = False) -> Figure:
    """The phases of a setup, stacked by component, on a scale that covers them and its card."""
    return _figure(estimate, _phases(estimate), PHASES, dark=dark)


def methods(estimate: Estimate, others: Mapping[Method, Estimate], *, dark: bool = False) -> Figure:
    """The setup's peak under each method, on the same scale, at whose end a longer bar is cut off."""
    drawn = _figure(estimate, _methods(estimate, others), METHODS, dark=dark)
    return {**drawn, "layout": {**drawn["layout"], "annotations": []}}


def _figure(estimate: Estimate, bars: list[Bar], part: FigurePart, *, dark: bool) -> Figure:
    look = theme.DARK if dark else theme.LIGHT
    largest = max(sum(bar.parts.values()) for bar in _phases(estimate))
    if estimate.gpu is not None:
        largest = max(largest, estimate.gpu.memory_bytes)
    end = memory_bars.scale(largest)
    drawn = memory_bars.against(bars, estimate.gpu, look, end, [part.span])
    (stack, totals), shapes, annotations = drawn
    written = {  # browsers draw trace texts faster than annotations
        **totals,
        "x": [*totals["x"], 0],
        "y": [*totals["y"], part.at],
        "text": [*totals["text"], part.heading],
        "textposition": [*totals["textposition"], "middle right"],
    }
    return {
        "data": [stack, written],
        "layout": {
            "barmode": "overlay",
            "height": part.height,
            "margin": {"l": 130, "r": 12, "t": part.above, "b": 30},
            "showlegend": False,
            "hovermode": "closest",
            "dragmode": False,
            "uirevision": part.heading,
            "xaxis": {
                "range": [0, end],
                "fixedrange": True,
                "automargin": False,
                "ticksuffix": " GiB",
                "showticksuffix": "last",
                "tickangle": 0,
                "gridcolor": theme.GRID,
                "zeroline": False,
                "nticks": 7,
                "tickfont": {"size": 14, "color": look.ink},
            },
            "yaxis": {
                "range": [part.span[1], part.top],
                "fixedrange": True,
                "automargin": False,
                "tickvals": [bar.place for bar in bars],
                "ticklabelstandoff": 8,
                "ticktext": [f"<b>▸ {bar.name}</b>" if bar.marked else bar.name for bar in bars],
                "tickfont": {"size": memory_bars.TEXT_SIZE, "color": look.ink},
                "showgrid": False,
                "zeroline": False,
            },
            "shapes": shapes,
            "annotations": annotations,
        },
    }


LARGER = 1.5
"""Factor by which a figure is enlarged for the projector."""


def enlarged(figure: Figure) -> Figure:
    """A figure with larger type, margins and height, for the projector."""
    grown: Figure = _grown(figure)
    layout = grown["layout"]
    margin = {side: round(LARGER * size) for side, size in layout["margin"].items()}
    return {
        **grown,
        "layout": {**layout, "margin": margin, "height": round(LARGER * layout["height"])},
    }


def _grown(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: round(LARGER * inner) if key == "size" else _grown(inner)
            for key, inner in value.items()
        }
    return [_grown(inner) for inner in value] if isinstance(value, list) else value


def hero_alt(estimate: Estimate) -> str:
    """The hero figure as text, for screen readers."""
    line = f"; capacity {units.gib(estimate.gpu.memory_bytes)}" if estimate.gpu else ""
    return f"GPU memory needed, stacked by component: {_said(_phases(estimate))}{line}."


def methods_alt(estimate: Estimate, others: Mapping[Method, Estimate]) -> str:
    """The methods' figure as text."""
    return f"GPU memory needed by each method: {_said(_methods(estimate, others))}."


def _said(bars: list[Bar]) -> str:
    return ", ".join(f"{bar.name} {units.gib(sum(bar.parts.values()))}" for bar in bars)
