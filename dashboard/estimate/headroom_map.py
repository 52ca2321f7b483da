"""Map of headroom by micro-batch and context."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import estimator  # its "needs" imports numpy, which the start page does without
from dashboard import theme
from dashboard.figures.memory_bars import Figure
from dashboard.words import units
from estimator import (
    LARGEST,
    Estimate,
    largest_micro_batch,
    least_batch,
    longest_context,
    shortest_row,
)

MAP_STEPS = 8
"""Number of doublings along each axis of the map."""


class Around(NamedTuple):
    """Headroom in bytes for batches (rows) × contexts (columns); None if the setup cannot be trained."""

    batches: list[int]
    lengths: list[int]
    headroom: list[list[int | None]]


def around(of: Estimate) -> Around:
    """Headroom at doublings of micro-batch and context, up to two beyond the first that does not fit."""
    assert of.gpu is not None
    setup, gpu = of.setup, of.gpu
    shortest = setup.replace(per_device_train_batch_size=least_batch(setup))
    lengths = [
        length
        for length in _doublings(
            setup.batch.max_length,
            longest_context(of.model, gpu, shortest),
            128 << MAP_STEPS - 1,
            of.model.position_limit or LARGEST["max_length"],
        )
        if length >= shortest_row(of.model, setup)
    ]
    batches = _doublings(
        setup.batch.per_device_train_batch_size,
        largest_micro_batch(of.model, gpu, setup.replace(max_length=lengths[0])),
        8,
        LARGEST["per_device_train_batch_size"],
    )
    rows = [[batch] for batch in batches]
    found = estimator.needs(
        of.model, gpu, setup, per_device_train_batch_size=rows, max_length=lengths
    )
    headroom = (gpu.memory_bytes - found.high_bytes).tolist()
    return Around(
        batches,
        lengths,
        [
            [None if is_refused else size for size, is_refused in zip(*row, strict=True)]
            for row in zip(headroom, found.refused.tolist(), strict=True)
        ],
    )


def _doublings(current: int, limit: int, least_top: int, most: int) -> list[int]:
    """Powers of two up to just beyond the limit, plus the current number."""
    top = 1
    while top < max(limit, current, least_top):
        top *= 2
    chosen = {max(1, top >> step) for step in range(MAP_STEPS)}
    return sorted({min(number, most) for number in chosen} | {current})


Grid = Sequence[Sequence[int | None]]
"""Headroom in bytes, one row per micro-batch and one column per context; None if the setup cannot be trained."""


def headroom_map(
    batches: Sequence[int],
    lengths: Sequence[int],
    headroom: Grid,
    current: tuple[int, int],
    *,
    dark: bool = False,
) -> Figure:
    """Heatmap of micro-batch × context, coloured by headroom, with the line beyond which nothing fits.

    Every cell has an invisible clickable marker. Its ``customdata`` is [micro-batch, context].
    """
    look = theme.DARK if dark else theme.LIGHT
    columns, rows = [_tokens(n) for n in lengths], [f"{n:,}" for n in batches]
    known = [abs(size) for row in headroom for size in row if size is not None]
    largest = units.in_gib(sorted(known)[len(known) // 2]) if known else 1.0
    gib = [[None if size is None else units.in_gib(size) for size in row] for row in headroom]
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
    """A context in short form: ``4k`` for 4,096."""
    return f"{length // 1024:,}k" if length % 1024 == 0 else f"{length:,}"


def _room(size: int | None) -> str:
    """Headroom in whole GiB, short enough for a phone: ``+9``, ``−125``, ``−1.2k``."""
    if size is None:
        return "–"
    whole = round(abs(size) / units.GIB)
    return f"{'+' if size >= 0 else '−'}{whole if whole < 1000 else f'{whole / 1000:.1f}k'}"


def _cell(batch: int, length: int, size: int | None) -> str:
    setup = f"{batch:,} × {length:,} tokens"
    if size is None:
        return f"{setup}: cannot be trained"
    said = f"{units.gib(size)} free" if size >= 0 else f"{units.gib(-size)} short"
    return f"{setup}: {said}. Click to set both."


def _border(headroom: Grid, look: theme.Look) -> Figure:
    """The boundary of what fits: for each context, a line above the largest batch that fits."""
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


def map_html(estimate: Estimate) -> str:
    """Caption of the map."""
    assert estimate.gpu is not None
    return (
        f'<p class="hr-text">GiB free (+) or short (−) on {escape(estimate.gpu.name)} for each micro-batch and '
        "context. Below the dashed line it fits. The frame marks this setup; click a cell to set both sliders.</p>"
    )


def map_alt(
    batches: Sequence[int], lengths: Sequence[int], headroom: Sequence[Sequence[int | None]]
) -> str:
    """The map as text: for each context, the largest shown batch that fits."""
    sentences = []
    for column, length in enumerate(lengths):
        rooms = {batch: row[column] for batch, row in zip(batches, headroom, strict=True)}
        known = {batch: room for batch, room in rooms.items() if room is not None}
        fitting = [batch for batch, room in known.items() if room >= 0]
        most = f"up to {fitting[-1]}" if fitting else "none" if known else "cannot be trained"
        sentences.append(f"{length:,} tokens {most}")
    return f"Largest micro-batch that fits, of those shown: {', '.join(sentences)}."
