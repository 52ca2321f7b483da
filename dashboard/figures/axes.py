"""Axes that several figures share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dashboard import theme

MARGIN = 1.25
"""Factor by which a logarithmic axis extends beyond its outermost value."""
FEW_DECADES = 2_000
"""Maximum ratio of an axis's ends at which three ticks per decade have room. Our choice."""


def logarithmic(
    title: str, values: Iterable[float | None], look: theme.Look, *, unit: str = ""
) -> dict[str, Any]:
    """A Plotly axis that shows all ``values`` (positive; None is skipped), with round ticks after ``unit``."""
    shown = [value for value in values if value] or [1.0, 10.0]
    low, high = min(shown) / MARGIN, max(shown) * MARGIN
    at = ticks(low, high)
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "fixedrange": True,
        "title": {"text": title, "font": {"size": 14, "color": look.ink}},
        "tickvals": at,
        "ticktext": [f"{unit}{one:,.10g}" for one in at],
        "tickfont": {"size": 13, "color": look.ink},
        "gridcolor": theme.GRID,
        "zeroline": False,
    }


def ticks(low: float, high: float) -> list[float]:
    """Round numbers within a logarithmic axis: 1, 2 and 5 times each power of ten, or only 1 times.

    >>> ticks(0.15, 12)
    [0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
    >>> ticks(0.5, 20_000)
    [1.0, 10.0, 100.0, 1000.0, 10000.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    leading = (1, 2, 5) if high / low < FEW_DECADES else (1,)
    found = [float(f"{digit}e{power}") for power in powers for digit in leading]
    return [one for one in found if low <= one <= high]
