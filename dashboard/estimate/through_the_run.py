"""Memory through the run, moment by moment, as a silhouette under the card's ceiling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from textwrap import wrap
from typing import Any, NamedTuple

from dashboard import theme
from dashboard.estimate import ledger
from dashboard.figures.memory_bars import Figure, scale
from dashboard.words import setup_sentence, terms, units
from estimator import (
    Component,
    Estimate,
    Moment,
    Phase,
    overflow,
)

HEIGHT = 340
LEAST_SHARE = 1 / 18
"""Minimum width of a phase, as a share of the figure, so that a phase of one moment is seen. Our choice."""
OUTSIDE_STEPS = (Phase.LOAD, Phase.EVALUATION, Phase.SAVE)
TICKS: Mapping[Phase, str] = {
    Phase.LOAD: "Load",
    Phase.PUSH_WEIGHTS: "Push",
    Phase.GENERATION: "Generate",
    Phase.SCORING: "Score",
    Phase.FORWARD: "Forward",
    Phase.LOSS: "Loss",
    Phase.REFERENCE: "Reference",
    Phase.BACKWARD: "Backward",
    Phase.OPTIMIZER_STEP: "Step",
    Phase.EVALUATION: "Eval",
    Phase.SAVE: "Save",
}
"""Names below the axis, short enough for a phone."""
WIDE = 1 / 8
"""Share of the figure from which a phase has its name in the first row below the axis; others take the next two."""
NOTE_WIDTH = 24
"""Maximum characters per line of a note, to fit a narrow page."""
NOTE_ROOM = 1.2
"""Height of the axis over the peak, besides what ``scale`` leaves: three lines of text fit above it."""


class DrawnPhase(NamedTuple):
    """The moments of one phase in a row, and the columns that they take."""

    instants: Sequence[overflow.Instant]
    repeats: int
    """Columns of each moment."""

    @property
    def columns(self) -> int:
        """Columns of all its moments."""
        return len(self.instants) * self.repeats


def silhouette(estimate: Estimate, before: Estimate | None = None, *, dark: bool = False) -> Figure:
    """Stepped areas: memory at each moment from loading to saving, with the capacity, and the stop or the peak, marked.

    ``before``: another setup, whose outline is drawn for comparison.

    The axis shows order, not time: each moment takes a column, those of short phases several. On top is the least that
    the card needs outside PyTorch, so the silhouette crosses the capacity where the run stops, or later where PyTorch's
    blocks do not fit although its tensors would.
    """
    look = theme.DARK if dark else theme.LIGHT
    stretches = _stretches(estimate)
    columns = [
        instant for group in stretches for instant in group.instants for _ in range(group.repeats)
    ]
    beside = overflow.beside_bytes(estimate)
    line = estimate.gpu.memory_bytes if estimate.gpu is not None else 0
    ghost = [] if before is None else _outline(before, stretches)
    largest = max(
        max(column.moment.bytes for column in columns) + beside,
        *(round(y * units.GIB) for trace in ghost for y in trace["y"]),
        0,
    )
    highest = max(  # the last step's, which every later step repeats
        range(len(columns)), key=lambda at: (columns[at].moment.bytes, columns[at].step)
    )
    moments = [column.moment for column in columns]
    numbers = _closed([at for at, of in enumerate(_numbered(stretches)) for _ in range(of)])
    there = [c for c in theme.COMPONENTS if any(moment.resident.get(c) for moment in moments)]
    areas = [*(_area(component, moments) for component in there), _beside(beside, columns)]
    stop, stops_in = _stop(estimate, columns)
    starts = _starts(columns)
    if stop is None or stops_in is None:
        note = _peak_note(moments[highest], highest, len(columns), look)
    else:
        note = _stop_note(stops_in, stop, len(columns), look)
    return {
        "data": [*({**area, "customdata": numbers} for area in areas), *_drawn(ghost, look)],
        "layout": {
            "height": HEIGHT,
            "margin": {"l": 70, "r": 12, "t": 44, "b": 56},
            "showlegend": False,
            "hovermode": "x unified",
            "dragmode": False,
            "xaxis": {
                "range": [0, len(columns)],
                "fixedrange": True,
                "tickangle": 0,
                "showgrid": False,
                "zeroline": False,
                **_ticks(stretches),
                "tickfont": {"size": 13, "color": look.ink},
            },
            "yaxis": {
                "range": [0, scale(max(int(NOTE_ROOM * largest), line))],
                "fixedrange": True,
                "ticksuffix": " GiB",
                "gridcolor": theme.GRID,
                "zeroline": False,
                "nticks": 6,
                "tickfont": {"size": 13, "color": look.ink},
            },
            "shapes": [
                *(_upright(at, 1.06, look.ink, 1.5, "step") for at in starts.values()),
                *_ceiling(line, look),
                *([] if stop is None else [_upright(stop, 1, look.capacity, 2.5, "stop")]),
            ],
            "annotations": [
                *_ceiling_name(line, moments, starts[1], look),
                *(_step_name(_named(estimate, step), at, look) for step, at in starts.items()),
                note,
            ],
        },
    }


def _outline(of: Estimate, stretches: Sequence[DrawnPhase]) -> list[Figure]:
    """The top of another setup's silhouette, each phase as wide as here; as wide as the whole if it has others."""
    theirs, beside = _stretches(of), overflow.beside_bytes(of)
    widths = [float(stretch.columns) for stretch in stretches]
    if [_tick(one) for one in theirs] != [_tick(stretch) for stretch in stretches]:
        scale_ = sum(widths) / sum(column.columns for column in theirs)
        widths = [column.columns * scale_ for column in theirs]
    at, places, heights = 0.0, [], []
    for phase, width in zip(theirs, widths, strict=True):
        for instant in phase.instants:
            places.append(round(at, 3))
            heights.append(units.in_gib(instant.moment.bytes + beside))
            at += width / len(phase.instants)
    return [{"x": [*places, round(at, 3)], "y": _closed(heights)}]


def _drawn(ghost: Sequence[Figure], look: theme.Look) -> Iterator[Figure]:
    for one in ghost:
        yield {
            **one,
            "type": "scatter",
            "mode": "lines",
            "name": "Before",
            "line": {"shape": "hv", "width": 2, "dash": "dot", "color": look.ink},
            "hoverinfo": "skip",
        }


def _stretches(estimate: Estimate) -> list[DrawnPhase]:
    groups = [
        list(group)
        for _, group in groupby(
            overflow.instants(estimate),
            key=lambda moment: (moment.step, moment.micro_step, moment.moment.phase),
        )
    ]
    least = LEAST_SHARE * sum(map(len, groups))
    return [DrawnPhase(group, max(1, round(least / len(group)))) for group in groups]


def _numbered(stretches: Sequence[DrawnPhase]) -> Iterator[int]:
    """Columns of each moment, in order."""
    for group in stretches:
        yield from (group.repeats for _ in group.instants)


def picked_html(estimate: Estimate, number: object) -> str:
    """The ledger of the moment with this number, counted from the first; empty if there is none."""
    instants = [*overflow.instants(estimate)]
    if not isinstance(number, int) or not 0 <= number < len(instants):
        return ""
    moment = instants[number].moment
    return ledger.moment_html(moment, f"In {terms.moment(moment)}")


def _starts(columns: Sequence[overflow.Instant]) -> dict[int, int]:
    """The column at which each of the two steps begins."""
    inside = [
        (at, moment)
        for at, moment in enumerate(columns)
        if moment.moment.phase not in OUTSIDE_STEPS
    ]
    return {one.step: at for at, one in reversed(inside)}


def _named(estimate: Estimate, step: int) -> str:
    if step != 1:
        return "Second step<br>and all others"
    made = estimate.phases[Phase.OPTIMIZER_STEP].resident.get(Component.OPTIMIZER_STATES)
    is_without = made and not overflow.starts_with_states(estimate.setup.optimisation)
    return "First step:<br>no states yet" if is_without else "First step"


def _area(component: Component, moments: Sequence[Moment]) -> Figure:
    part = theme.COMPONENTS[component]
    said = f"{part.label} %{{y:.1f}} GiB<extra></extra>"
    area = {
        **_AREA,
        "name": part.label,
        "y": _closed([units.in_gib(moment.resident.get(component, 0)) for moment in moments]),
        "line": {"shape": "hv", "width": 0.5, "color": part.colour},
        "fillcolor": part.colour,
        "hovertemplate": said,
    }
    if component is not Component.WEIGHTS:
        return area
    texts = _closed([terms.moment(moment) for moment in moments])
    return {**area, "text": texts, "hovertemplate": f"<b>%{{text}}</b><br>{said}"}


def _beside(size: int, columns: Sequence[overflow.Instant]) -> Figure:
    return {
        **_AREA,
        "name": theme.RESERVE.label,
        "y": [units.in_gib(size)] * (len(columns) + 1),
        "line": {"shape": "hv", "width": 1, "color": theme.RESERVE.colour},
        "fillcolor": theme.RESERVE.fill,
        "hovertemplate": f"{theme.RESERVE.label}, at least %{{y:.1f}} GiB<extra></extra>",
    }


_AREA = {"type": "scatter", "stackgroup": "memory", "mode": "lines"}


def _closed(values: list[Any]) -> list[Any]:
    """The values and the last once more, at the right end of its column."""
    return [*values, values[-1]]


def _ticks(stretches: Sequence[DrawnPhase]) -> dict[str, list[Any]]:
    """A name in the middle of each phase; with accumulation, of each micro-step, whose phases are too narrow."""
    values, texts, start, row = [], [], 0, 0
    whole = sum(stretch.columns for stretch in stretches)
    for text, group in groupby(stretches, key=_tick):
        width = sum(column.columns for column in group)
        row = 0 if width > whole * WIDE else 2 if row == 1 else 1
        values.append(start + width / 2)
        texts.append("<br>" * row + text)
        start += width
    return {"tickvals": values, "ticktext": texts}


def _tick(of: DrawnPhase) -> str:
    first = of.instants[0]
    if first.micro_step:
        return "Micro 1" if first.micro_step == 1 else "Micro 2+"
    return TICKS[first.moment.phase]


def _upright(at: float, height: float, colour: str, width: float, name: str) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": height,
        "line": {"color": colour, "width": width},
        "name": name,
    }


def _ceiling(capacity: int, look: theme.Look) -> Iterator[dict[str, Any]]:
    if capacity:
        yield {
            "type": "line",
            "xref": "paper",
            "yref": "y",
            "x0": 0,
            "x1": 1,
            "y0": units.in_gib(capacity),
            "y1": units.in_gib(capacity),
            "line": {"color": look.capacity, "width": 2.5, "dash": "dash"},
            "name": "capacity",
        }


def _ceiling_name(
    capacity: int, moments: Sequence[Moment], first: int, look: theme.Look
) -> Iterator[dict[str, Any]]:
    """The capacity's name, where the first step begins or at the end: where memory is lower."""
    width = len(moments) // 8 + 1
    begins, ends = (
        max(moment.bytes for moment in over)
        for over in (moments[first : first + width], moments[-width:])
    )
    if capacity:
        yield {
            "x": first if begins <= ends else len(moments),
            "xref": "x",
            "xanchor": "left" if begins <= ends else "right",
            "y": units.in_gib(capacity),
            "yref": "y",
            "yanchor": "bottom",
            "showarrow": False,
            "text": f"{units.gib(capacity)} usable",
            "font": {"size": 14, "color": look.capacity},
        }


def _stop(
    estimate: Estimate, columns: Sequence[overflow.Instant]
) -> tuple[float | None, Moment | None]:
    """The middle of the column where the run stops, and in what; None if it does not, or on another GPU of a map."""
    over = overflow.first_overflow(estimate)
    if over is None or over.among not in columns:
        return None, None
    return columns.index(over.among) + 0.5, over.at.moment


def _stop_note(moment: Moment, at: float, of: int, look: theme.Look) -> dict[str, Any]:
    return {
        "x": at,
        "xref": "x",
        "xanchor": "right" if at > of / 3 else "left",
        "y": 1,
        "yref": "paper",
        "yanchor": "top",
        "xshift": -4 if at > of / 3 else 4,
        "showarrow": False,
        "bgcolor": look.ground,
        "borderpad": 2,
        "align": "left",
        "text": "<br>".join(("<b>Runs out here</b>", *wrap(terms.moment(moment), NOTE_WIDTH))),
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


def _peak_note(moment: Moment, at: int, of: int, look: theme.Look) -> dict[str, Any]:
    is_right = at > of / 2
    return {
        "x": at + 0.5,
        "xref": "x",
        "y": units.in_gib(moment.bytes),
        "yref": "y",
        "xanchor": "right" if is_right else "left",
        "ax": -30 if is_right else 30,
        "ay": -12,
        "yanchor": "bottom",
        "showarrow": True,
        "arrowwidth": 2,
        "arrowcolor": look.ink,
        "bgcolor": look.ground,
        "borderpad": 2,
        "align": "left",
        "text": "<br>".join(
            (f"<b>Peak {units.gib(moment.bytes)}</b>", *wrap(terms.moment(moment), NOTE_WIDTH))
        ),
        "font": {"size": 14, "color": look.ink},
    }


def run_html(estimate: Estimate, before: Estimate | None = None) -> str:
    """Heading and caption of the silhouette; ``before``: the setup of its dotted outline."""
    text = "In order, not to scale: loading, two steps"
    after = [
        terms.PHASES[phase].lower()
        for phase in (Phase.EVALUATION, Phase.SAVE)
        if phase in _phases(estimate)
    ]
    text += f", {' and '.join(after)}." if after else "."
    made = estimate.phases[Phase.OPTIMIZER_STEP].resident.get(Component.OPTIMIZER_STATES, 0)
    if not overflow.starts_with_states(estimate.setup.optimisation):
        made -= estimate.timeline.states_from_start
    if made and overflow.starts_with_states(estimate.setup.optimisation):
        text += f" The optimizer states ({units.gib(made)}) exist before the first."
    elif made:
        text += (
            f" The optimizer creates its states ({units.gib(made)}) at the end of the first step."
        )
    if before is not None:
        said = setup_sentence.text(before.model, before.gpu, before.setup)
        text += f" Dotted: what it was before. {said}"
    text += " Click a moment to list what is alive in it."
    return f'<h2 class="hr-head">Memory through the run</h2><p class="hr-text">{escape(text)}</p>'


def run_alt(estimate: Estimate) -> str:
    """The silhouette as text."""
    phases = ", ".join(
        f"{terms.PHASES[phase].lower()} {units.gib(size)}"
        for phase, size in _phases(estimate).items()
    )
    return (
        f"Memory through the run, highest in each phase: {phases}; the peak of {units.gib(estimate.decisive.bytes)} "
        f"comes in {terms.moment(estimate.decisive)}. {overflow.runs_out(estimate, units.gib_or_bytes)}"
    ).rstrip()


def _phases(estimate: Estimate) -> dict[Phase, int]:
    """The largest size in each phase of the run, in order of time."""
    sizes: dict[Phase, int] = {}
    for instant in overflow.instants(estimate):
        phase = instant.moment.phase
        sizes[phase] = max(sizes.get(phase, 0), instant.moment.bytes)
    return sizes
