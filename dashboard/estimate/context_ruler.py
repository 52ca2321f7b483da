"""A ruler of contexts: the longest that fits as the setup is, and after each further change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dashboard import theme
from dashboard.figures.memory_bars import Figure
from dashboard.words import slider_limits
from estimator import ContextRung, Estimate, Verdict

SHORTEST, LONGEST = 512, 2**20
"""Ends of the ruler, in tokens. Our choice."""
TICKS = {1 << power: f"{1 << power - 10}k" for power in range(10, 20, 2)} | {LONGEST: "1M"}
ROW = 38
"""Height of a row in pixels."""


def shown(rungs: Sequence[ContextRung]) -> list[ContextRung]:
    """The setup as it is, and each change that reaches at least a tenth further than those above it."""
    kept = [rungs[0]]
    for rung in rungs[1:]:
        if rung.longest_context > kept[-1].longest_context * slider_limits.MUCH:
            kept.append(rung)
    return kept


def ruler(rungs: Sequence[ContextRung], of: Estimate, *, dark: bool = False) -> Figure:
    """A row per change: a bar from the context that was reached before to the one it reaches.

    The present context is a line, and so is the context that the model was made for. A bar's ``customdata`` is its
    row; a click applies its keys.
    """
    look = theme.DARK if dark else theme.LIGHT
    ends = [min(max(it.longest_context, SHORTEST), LONGEST) for it in rungs]
    begins = [SHORTEST, *ends[:-1]]
    rows = list(range(len(rungs)))
    lines, names = _marks(of, look)
    fits = theme.VERDICTS[Verdict.FITS].colour
    bars = {
        "type": "bar",
        "orientation": "h",
        "width": 0.62,
        "hovertext": [_hover(it) for it in rungs],
        "hoverinfo": "text",
        "customdata": rows,
        "y": rows,
    }
    return {
        "data": [
            {
                **bars,
                "base": [SHORTEST] * len(rows),
                "x": [begin - SHORTEST for begin in begins],
                "marker": {"color": "rgba(127,138,148,0.22)"},
            },
            {
                **bars,
                "base": begins,
                "x": [end - begin for begin, end in zip(begins, ends, strict=True)],
                "marker": {"color": [fits, *("#56B4E9" for _ in rows[1:])]},
            },
            {
                "type": "scatter",
                "mode": "text",
                "x": ends,
                "y": rows,
                "text": [f" {_limit(it.longest_context)}" for it in rungs],
                "textposition": "middle right",
                "textfont": {"size": 14, "color": look.ink},
                "cliponaxis": False,
                "hoverinfo": "skip",
            },
        ],
        "layout": {
            "barmode": "overlay",
            "height": 94 + ROW * len(rows),
            "margin": {"l": 128, "r": 62, "t": 58, "b": 36},
            "showlegend": False,
            "dragmode": False,
            "hovermode": "closest",
            "clickmode": "event+select",
            "xaxis": {
                "type": "log",
                "range": [math.log10(SHORTEST / 1.02), math.log10(LONGEST)],
                "fixedrange": True,
                "tickvals": list(TICKS),
                "ticktext": list(TICKS.values()),
                "tickangle": 0,
                "gridcolor": theme.GRID,
                "zeroline": False,
                "tickfont": {"size": 13, "color": look.ink},
            },
            "yaxis": {
                "range": [len(rows) - 0.5, -0.5],
                "fixedrange": True,
                "tickvals": rows,
                "ticktext": [_wrapped(name(it)) for it in rungs],
                "ticklabelstandoff": 6,
                "tickfont": {"size": 14, "color": look.ink},
                "showgrid": False,
                "zeroline": False,
            },
            "shapes": lines,
            "annotations": names,
        },
    }


def name(rung: ContextRung) -> str:
    """A change in a few words: ``As it is``, ``Micro-batch 1``, ``Liger and checkpointing``, ``QLoRA``."""
    if rung.name or not rung.titles:
        return rung.name or "As it is"
    said = slider_limits.changes(rung.titles)
    return said[:1].upper() + said[1:]


def _wrapped(text: str) -> str:
    return text.replace(" and ", "<br>and ").replace(", ", ",<br>")


def _limit(length: int) -> str:
    return "none fits" if length == 0 else f"{length:,}"


def _hover(rung: ContextRung) -> str:
    with_ = f" with {slider_limits.changes(rung.titles)}" if rung.name and rung.titles else ""
    batch = rung.keys.get("per_device_train_batch_size")
    at = f", micro-batch {batch:,}" if batch and not rung.name.startswith("Micro-batch") else ""
    reached = f"up to {rung.longest_context:,} tokens" if rung.longest_context else "no length fits"
    return f"{name(rung)}{with_}{at}: {reached}"


def _marks(of: Estimate, look: theme.Look) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines and names of the present context and of the one that the model was made for."""
    lines, names = [], []
    now, made_for = of.setup.max_length, of.model.max_position_embeddings
    marked = ((now, f"now {now:,}", "solid"), (made_for, f"made for {made_for:,}", "dot"))
    for level, (length, text, dash) in enumerate(marked):
        if not SHORTEST <= length <= LONGEST:
            continue
        line = {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": length,
            "x1": length,
            "y0": 0,
            "y1": 1,
            "layer": "below" if level else "above",
            "line": {"color": look.ink, "width": 2, "dash": dash},
        }
        words = {
            "x": math.log10(length),
            "xref": "x",
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "yshift": 20 * level,
            "showarrow": False,
            "text": f"<b>{text}</b>",
            "font": {"size": 14, "color": look.ink},
        }
        lines.append(line)
        names.append(words)
    return lines, names


RULER_HTML = (
    '<h2 class="hr-head">How long a context</h2><p class="hr-text">The longest context that fits as the setup is, and '
    "with each change that reaches further, the gentlest first. All keep the effective batch, unless more GPUs do not "
    "divide it. Click a bar to apply its changes.</p>"
)
"""Heading and caption of the ruler."""


def ruler_alt(rungs: Sequence[ContextRung]) -> str:
    """The ruler as text."""
    return f"Longest context that fits: {'; '.join(_hover(it) for it in rungs)}."
