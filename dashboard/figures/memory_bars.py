"""Bars of memory, stacked by component, as plain Plotly dicts.

A dict takes 0.02 ms; Plotly's figure classes take 4 ms or more. Heights and ranges change in coarse steps, so the
figure does not jump when a slider moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from dashboard import theme
from dashboard.words import units
from estimator import Component, Estimate, Gpu

Figure = dict[str, Any]
"""A Plotly figure: ``data`` and ``layout``. Its values are Plotly's, hence ``Any``."""
TOTAL_WIDTH = 0.06
"""Maximum width of a total's label, as a share of the scale, on a wide screen."""
TEXT_SIZE = 16
"""Size of the bars' texts in pixels. At 1,440 pixels on a wall two metres wide, capitals are 15 mm tall."""
_EVERY: Sequence[theme.DrawnPart] = (*theme.COMPONENTS.values(), theme.RESERVE)


class Bar(NamedTuple):
    """One bar: its name, its parts by label, and whether it is highlighted."""

    place: float
    name: str
    parts: Mapping[str, int]
    marked: bool


def scale(largest: int) -> float:
    """End of an axis in GiB: the smallest of 1, 1.5, 2, 3, 4, 6, 8, 12 … that leaves room for a total.

    >>> from dashboard.words.units import GIB
    >>> scale(80 * GIB), scale(85 * GIB), scale(87 * GIB)
    (96.0, 96.0, 128.0)
    """
    end = 1.0
    while end < units.in_gib(largest) * 1.11:
        end *= 1.5 if end.is_integer() and int(end) & (int(end) - 1) == 0 else 4 / 3
        end = round(end, 6)
    return end


def parts(resident: Mapping[Component, int], reserve: int) -> dict[str, int]:
    """Bytes by label, including the reserve that the card must have."""
    held = {part.label: resident.get(c, 0) for c, part in theme.COMPONENTS.items()}
    return {**held, theme.RESERVE.label: reserve}


def _stack(
    bars: Sequence[Bar],
    end: float,
    look: theme.Look,
    size: int = TEXT_SIZE,
    width: float = 0.78,
    lines: Sequence[float | None] = (),
) -> Figure:
    """All stacked bars as one trace. With one trace per part browsers take twice as long.

    ``end``: end of the scale in GiB; longer bars are cut there. ``size``: font size of the texts in pixels. ``width``:
    width of a bar; bars are at distance 1. ``lines``: each bar's capacity in GiB. A part that it crosses is split in
    two, so that the line crosses no text. ``drawing.js`` knows how many pixels a part has: it writes name and number in
    it, or what of them has room, and names the others in a legend.
    """
    pieces: list[tuple[float, theme.DrawnPart, int, str]] = []
    bases: list[float] = []
    lengths: list[float] = []
    for bar, line in zip_longest(bars, lines):
        reached = 0
        for part in _EVERY:
            held = bar.parts[part.label]
            base = units.in_gib(reached)
            reached += held
            if held and base < end:
                spans = _pieces(base, units.in_gib(held), line, end)
                widest = max(length for _, length in spans)
                for at, length in spans:
                    is_cut = at + length >= end
                    is_named = length == widest and not is_cut
                    pieces.append((bar.place, part, held, units.number(held) if is_named else ""))
                    bases.append(at)
                    lengths.append(length)
    return {
        "type": "bar",
        "orientation": "h",
        "name": "Memory",
        "y": [place for place, *_ in pieces],
        "x": lengths,
        "base": bases,
        "width": width,
        "marker": {
            "color": [part.fill for _, part, *_ in pieces],
            "line": {
                "color": [part.edge for _, part, *_ in pieces],
                "width": [part.edge_width for _, part, *_ in pieces],
            },
        },
        "text": [text for *_, text in pieces],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "insidetextfont": {
            "color": [look.ink if part.hollow else part.ink for _, part, *_ in pieces],
            "size": size,
        },
        "hovertext": [f"{part.label}: {units.in_gib(held):.2f} GiB" for _, part, held, _ in pieces],
        "hoverinfo": "text",
    }


def _pieces(
    base: float, length: float, line: float | None, end: float
) -> list[tuple[float, float]]:
    """A part, cut off at the end of the scale and split at the line, as pairs (begin, length).

    >>> _pieces(10.0, 20.0, 24.0, 32.0), _pieces(10.0, 40.0, None, 32.0)
    ([(10.0, 14.0), (24.0, 6.0)], [(10.0, 22.0)])
    """
    length = min(length, round(end - base, 3))
    if line is None or not base < line < base + length:
        return [(base, length)]
    return [(base, round(line - base, 3)), (line, round(base + length - line, 3))]


def peak_parts(estimate: Estimate) -> dict[str, int]:
    """Bytes at the peak by label, including the reserve that the card must have."""
    return parts(estimate.peak.resident, estimate.need_high_bytes - estimate.peak.bytes)


def stacked(
    estimates: Sequence[Estimate], end: float, look: theme.Look, size: int, width: float
) -> Figure:
    """Each estimate's peak as a stacked bar, from top to bottom; ``size``: font size of the texts in pixels."""
    bars = [Bar(place, "", peak_parts(one), False) for place, one in enumerate(estimates)]
    lines = [
        None if estimate.gpu is None else units.in_gib(estimate.gpu.memory_bytes)
        for estimate in estimates
    ]
    return _stack(bars, end, look, size, width, lines)


def capacity_marks(estimates: Sequence[Estimate], look: theme.Look, height: float) -> list[Figure]:
    """A line across each bar at its own card's capacity; ``height``: in pixels."""
    held = [(place, estimate.gpu) for place, estimate in enumerate(estimates) if estimate.gpu]
    line: Figure = {
        "type": "scatter",
        "mode": "markers",
        "name": "Capacity",
        "y": [place for place, _ in held],
        "x": [units.in_gib(gpu.memory_bytes) for _, gpu in held],
        "marker": _mark(height, 4, look.capacity),
        "text": [f"{gpu.name}: {units.gib(gpu.memory_bytes)} usable" for _, gpu in held],
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,
    }
    clear = _mark(height, 9, look.ground)
    return [{**line, "name": "Clear", "marker": clear, "hoverinfo": "skip"}, line]


def _mark(height: float, width: int, colour: str) -> Figure:
    return {
        "symbol": "line-ns",
        "size": round(height),
        "line": {"width": width, "color": colour},
    }


def _totals(bars: list[Bar], look: theme.Look, line: float | None, end: float) -> Figure:
    """Each bar's total, beyond the bar's end, or on the bar if the capacity or the scale leaves no room.

    Totals of bars that fit stay below the capacity. A bar that is cut off at the end of the scale has an arrow.
    """
    texts, places, sides = [], [], []
    for bar in bars:
        whole = sum(bar.parts.values())
        text = units.number(whole)
        at = units.in_gib(whole)
        is_cut = at > end
        on_it = is_cut or (line is not None and at <= line < at + end * TOTAL_WIDTH)
        text += " →" if is_cut else ""
        texts.append(f"<b>{text}</b>" if bar.marked else text)
        places.append(min(at, end))
        sides.append("middle left" if on_it else "middle right")
    return {
        "type": "scatter",
        "mode": "text",
        "name": "Total",
        "y": [bar.place for bar in bars],
        "x": places,
        "text": [f" {text} " for text in texts],
        "textposition": sides,
        "textfont": {"size": TEXT_SIZE, "color": look.ink, "shadow": _halo(look)},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }


def _halo(look: theme.Look) -> str:
    """An outline around letters that keeps them legible on any colour."""
    return ", ".join(f"{x}px {y}px 2px {look.ground}" for x in (-1, 0, 1) for y in (-1, 0, 1))


def _capacity(
    memory_bytes: int, end: float, look: theme.Look, spans: Sequence[tuple[float, float]]
) -> Figure:
    """A capacity line through the bars of each span, with a tint beyond it."""
    at = units.in_gib(memory_bytes)
    line = {"color": look.capacity, "width": 2.5, "dash": "dash"}
    beyond = {"type": "rect", "x0": at, "x1": end, "fillcolor": "rgba(213,94,0,0.09)"}
    through = {"type": "line", "x0": at, "x1": at, "line": line, "name": "capacity"}
    return {
        "shapes": [
            {**_ALL_BARS, **beyond, "line": {"width": 0}, "layer": "below"},
            *({**through, "xref": "x", "yref": "y", "y0": top, "y1": low} for top, low in spans),
            *([] if spans else [{**through, **_ALL_BARS}]),
        ],
        "label": {
            "x": at,
            "xref": "x",
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "xanchor": "right" if at > end / 2 else "left",
            "showarrow": False,
            "text": f"<b>{units.gib(memory_bytes)} usable</b>",
            "font": {"size": TEXT_SIZE, "color": look.capacity},
        },
    }


_ALL_BARS = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1}


def against(
    bars: list[Bar],
    gpu: Gpu | None,
    look: theme.Look,
    end: float,
    spans: Sequence[tuple[float, float]] = (),
) -> tuple[tuple[Figure, Figure], list[Figure], list[Figure]]:
    """Bars and their totals against a card: two traces, shapes and annotations.

    ``spans``: start and end of each segment of the capacity line; empty: all.
    """
    line = None if gpu is None else units.in_gib(gpu.memory_bytes)
    totals = _totals(bars, look, line, end)
    traces = _stack(bars, end, look, lines=[line] * len(bars)), totals
    if gpu is None:
        return traces, [], []
    capacity = _capacity(gpu.memory_bytes, end, look, spans)
    return traces, capacity["shapes"], [capacity["label"]]
