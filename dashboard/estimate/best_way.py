"""The gentlest method that fits on each card, its limits and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from dashboard import theme
from dashboard.estimate import remedies
from dashboard.figures.memory_bars import Figure
from dashboard.words import slider_limits, terms, units
from estimator import BestWay, Component, Estimate, Method, Reach

NOTE = (
    "The first of full fine-tuning, LoRA and QLoRA that fits this setup, with the fewest changes that cost no quality, "
    "and the largest micro-batch of the same effective batch; offload only if nothing else fits. Context and batch are "
    "with all such changes. Select a row to switch to it."
)
GENTLER = tuple(Method)
"""Ordered from the method that trains most of the model to the one that trains least."""


def row(it: BestWay) -> dict[str, object]:
    """One kind and number of GPUs as a table row, with plain numbers for sorting."""
    answer, reach = it.answer, it.reach
    known = answer is not None and answer.can_run
    time = answer.time if answer is not None and known else None
    cost = answer.cost if answer is not None and known else None
    price = cost.price if cost else None
    return {
        "GPUs": it.num_gpus,
        "GPU": terms.card(it.gpu),
        "Method": terms.METHODS[answer.setup.method] if answer else None,
        "With": slider_limits.changes(it.titles) if it.titles else None,
        "Context, up to": reach.longest_context if reach else None,
        "Batch, up to": reach.largest_micro_batch if reach else None,
        "Hours, up to": round(time.total_hours_high, 2) if time else None,
        "Dollars, up to": round(cost.cost_usd_high, 2) if cost else None,
        "Dollars per GPU-hour": cost.usd_per_gpu_hour if cost else None,
        "Provider": price.provider if price else None,
    }


def keys(it: BestWay) -> dict[str, object]:
    """Keys that a click on a row sets."""
    return {"gpu": it.gpu.name, **it.keys}


def head_html(ways: Sequence[BestWay], of: Estimate) -> str:
    """What is possible at best on the chosen card, in a few sentences."""
    assert of.gpu is not None
    sentences = [f"<li>{escape(sentence(it))}</li>" for it in ways]
    return f'<ul class="hr-text">{"".join(sentences)}</ul>'


def sentence(it: BestWay) -> str:
    """The best way on these GPUs: ``1 × L4: QLoRA. At micro-batch 1 up to 5,120 tokens, at 1,024 tokens …``."""
    name = f"{it.num_gpus} × {terms.card(it.gpu)}"
    if it.answer is None or it.reach is None:
        return f"{name}: no method fits."
    setup, reach = it.answer.setup, it.reach
    way = f"{terms.METHODS[setup.method]}{_with(it.titles)}"
    return (
        f"{name}: {way}. At micro-batch {setup.per_device_train_batch_size} up to {reach.longest_context:,} tokens, "
        f"at {setup.max_length:,} tokens up to micro-batch {reach.largest_micro_batch:,}{_with(reach.titles)}."
    )


def _with(titles: Sequence[str]) -> str:
    return f" with {slider_limits.changes(titles)}" if titles else ""


def figure(ways: Sequence[BestWay], *, dark: bool = False) -> Figure:
    """Bars: the longest context on 1, 2, 4 and 8 of the card."""
    look = theme.DARK if dark else theme.LIGHT
    lengths = [it.reach.longest_context if it.reach else 0 for it in ways]
    end = max(lengths, default=1) * 1.45 or 1
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": "Longest context",
                "y": list(range(len(ways))),
                "x": lengths,
                "width": 0.62,
                "marker": {"color": theme.COMPONENTS[Component.ACTIVATIONS].colour},
                "text": [_bar_text(it) for it in ways],
                "textposition": "outside",
                "cliponaxis": False,
                "textfont": {"size": 14, "color": look.ink},
                "hoverinfo": "skip",
            }
        ],
        "layout": {
            "height": 60 + 38 * len(ways),
            "margin": {"l": 122, "r": 12, "t": 6, "b": 40},
            "showlegend": False,
            "dragmode": False,
            "xaxis": {
                "range": [0, end],
                "fixedrange": True,
                "title": {
                    "text": "Longest context, tokens",
                    "font": {"size": 13, "color": look.ink},
                },
                "tickformat": ",d",
                "nticks": 5,
                "gridcolor": theme.GRID,
                "zeroline": False,
                "tickfont": {"size": 13, "color": look.ink},
            },
            "yaxis": {
                "range": [len(ways) - 0.45, -0.55],
                "fixedrange": True,
                "tickvals": list(range(len(ways))),
                "ticktext": [f"{it.num_gpus} GPU{'s' * (it.num_gpus > 1)}" for it in ways],
                "tickfont": {"size": 15, "color": look.ink},
                "showgrid": False,
                "zeroline": False,
            },
        },
    }


def _bar_text(it: BestWay) -> str:
    if it.answer is None or it.reach is None:
        return "no method fits"
    return f"{it.reach.longest_context:,}, {terms.METHODS[it.answer.setup.method]}"


def alt(ways: Sequence[BestWay]) -> str:
    """The figure as text."""
    return "Longest context in tokens: " + "; ".join(
        f"{it.num_gpus} × {it.gpu.name}: {_bar_text(it)}" for it in ways
    )


def could_also(
    of: Estimate,
    way: BestWay | None,
    reach: Reach,
    spare: Mapping[str, bool | int] | None = None,
) -> list[tuple[str, str, dict[str, object]]]:
    """Suggestions for a setup that fits: a title, the reason, and the keys to set."""
    found: list[tuple[str, str, dict[str, object]]] = []
    if way is not None and way.answer is not None and _is_gentler(way.answer, of):
        title = f"{terms.METHOD_NOUNS[way.answer.setup.method]}{_with(way.titles)}"
        found.append(
            (title, f"needs up to {units.gib(way.answer.need_high_bytes)}", dict(way.keys))
        )
    if reach.titles:
        title = (
            f"Up to {reach.longest_context:,} tokens, or micro-batch {reach.largest_micro_batch:,}"
        )
        found.append((title, f"the same result{_with(reach.titles)}", dict(reach.keys)))
    if spare:
        after = remedies.applied(of, spare)
        distance = spare.get("checkpoint_every_n_layers", 1)
        title = f"A checkpoint in every {distance} layers" if distance > 1 else "No checkpointing"
        found.append((title, _spares(of, after), dict(spare)))
    return found


def _spares(before: Estimate, after: Estimate) -> str:
    return (
        f"the same result with less computed again; needs up to {units.gib(after.need_high_bytes)}, "
        f"{remedies.added(before, after)}"
    )


def _is_gentler(one: Estimate, other: Estimate) -> bool:
    return GENTLER.index(one.setup.method) < GENTLER.index(other.setup.method)
