"""The hero figure: the phases of a step and each method's peak, on one scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard import theme
from dashboard.figures import memory_bars
from dashboard.figures.memory_bars import Bar, Figure
from dashboard.words import terms, units
from estimator import MORE_PASSES, STEP_PHASES, Estimate, Method, Phase

HEIGHT = 372
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
HEADINGS = {
    -0.85: "One step, phase by phase",
    5.05: "Each method at its peak",
}
SPANS = ((-0.45, 4.5), (5.45, 8.45))
"""Start and end of each segment of the capacity line, which leaves out the headings."""


def _bars(estimate: Estimate, methods: Mapping[Method, Estimate]) -> list[Bar]:
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
        (estimate.phases[it] for it in (Phase.LOSS, *MORE_PASSES) if it in estimate.phases),
        key=lambda moment: moment.bytes,
    )
    shown = {phase: estimate.phases[phase] for phase in STEP_PHASES}
    shown |= {Phase.LOSS: asked, Phase.SAVE: beside}
    phases = [
        Bar(
            PLACES[place],
            terms.PHASES[moment.phase],
            memory_bars.parts(moment.resident, reserve),
            moment.phase is estimate.decisive.phase,
        )
        for place, moment in shown.items()
    ]
    others = [
        Bar(
            PLACES[method],
            method.label,
            memory_bars.parts(
                other.decisive.resident, other.need_high_bytes - other.decisive.bytes
            ),
            method is estimate.setup.method,
        )
        for method, other in methods.items()
    ]
    return phases + others


def hero(
    estimate: Estimate,
    methods: Mapping[Method, Estimate],
    *,
    dark: bool = False,
) -> Figure:
    """The phases of one setup and its peak under each method, stacked by component, on one scale.

    The scale covers all parts of the chosen setup and its card. A longer bar of another method is cut off at the end.
    """
    look = theme.DARK if dark else theme.LIGHT
    bars = _bars(estimate, methods)
    largest = max(sum(bar.parts.values()) for bar in bars if bar.place <= PLACES[Phase.SAVE])
    if estimate.gpu is not None:
        largest = max(largest, estimate.gpu.memory_bytes)
    end = memory_bars.scale(largest)
    (stack, totals), shapes, annotations = memory_bars.against(bars, estimate.gpu, look, end, SPANS)
    written = {  # browsers draw trace texts faster than annotations
        **totals,
        "x": [*totals["x"], *(0 for _ in HEADINGS)],
        "y": [*totals["y"], *HEADINGS],
        "text": [*totals["text"], *HEADINGS.values()],
        "textposition": [*totals["textposition"], *("middle right" for _ in HEADINGS)],
    }
    return {
        "data": [stack, written],
        "layout": {
            "barmode": "overlay",
            "height": HEIGHT,
            "margin": {"l": 130, "r": 12, "t": 26, "b": 30},
            "showlegend": False,
            "hovermode": "closest",
            "dragmode": False,
            "uirevision": "hero",
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
                "range": [8.45, -1.2],
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
"""Factor by which the hero figure is enlarged for the projector."""


def enlarged(figure: Figure) -> Figure:
    """The hero figure with larger type, margins and height, for the projector."""
    grown: Figure = _grown(figure)
    layout = grown["layout"]
    margin = {side: round(LARGER * size) for side, size in layout["margin"].items()}
    return {**grown, "layout": {**layout, "margin": margin, "height": round(LARGER * HEIGHT)}}


def _grown(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: round(LARGER * inner) if key == "size" else _grown(inner)
            for key, inner in value.items()
        }
    return [_grown(inner) for inner in value] if isinstance(value, list) else value


def hero_alt(estimate: Estimate, methods: Mapping[Method, Estimate]) -> str:
    """The hero figure as text, for screen readers."""
    bars = ", ".join(
        f"{bar.name} {units.gib(sum(bar.parts.values()))}" for bar in _bars(estimate, methods)
    )
    line = f"; capacity {units.gib(estimate.gpu.memory_bytes)}" if estimate.gpu else ""
    return f"GPU memory needed, stacked by component: {bars}{line}."
