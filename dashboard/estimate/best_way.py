"""The gentlest method that fits on each card, its limits and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dashboard.estimate import remedies
from dashboard.words import slider_limits, terms, units
from estimator import BestWay, Estimate, Method

NOTE = (
    "The first of full fine-tuning, LoRA and QLoRA that fits this setup, with the fewest changes that cost no quality, "
    "and the largest micro-batch of the same effective batch; offload only if nothing else fits. Context and batch are "
    "with all such changes. Select a row to switch to it."
)
GENTLER = tuple(Method)
"""Ordered from the method that trains most of the model to the one that trains least."""


def row(way: BestWay) -> dict[str, object]:
    """One kind and number of GPUs as a table row, with plain numbers for sorting."""
    answer, reach = way.answer, way.reach
    known = answer is not None and answer.can_run
    time = answer.time if answer is not None and known else None
    cost = answer.cost if answer is not None and known else None
    price = cost.price if cost else None
    return {
        "GPUs": way.num_gpus,
        "GPU": terms.card(way.gpu),
        "Method": answer.setup.adapters.method.label if answer else None,
        "With": slider_limits.changes(way.titles) if way.titles else None,
        "Context, up to": reach.longest_context if reach else None,
        "Batch, up to": reach.largest_micro_batch if reach else None,
        "Hours, up to": round(time.total_hours.high, 2) if time else None,
        "Dollars, up to": round(cost.cost_usd.high, 2) if cost else None,
        "Dollars per GPU-hour": cost.usd_per_gpu_hour if cost else None,
        "Provider": price.provider if price else None,
    }


def keys(way: BestWay) -> dict[str, object]:
    """Keys that a click on a row sets."""
    return {"gpu": way.gpu.name, **way.keys}


def _with(titles: Sequence[str]) -> str:
    return f" with {slider_limits.changes(titles)}" if titles else ""


def could_also(
    of: Estimate,
    way: BestWay | None,
    spare: Mapping[str, bool | int] | None = None,
) -> list[tuple[str, str, dict[str, object]]]:
    """Suggestions for a setup that fits: a title, the reason, and the keys to set."""
    found: list[tuple[str, str, dict[str, object]]] = []
    if way is not None and way.answer is not None and _is_gentler(way.answer, of):
        title = f"{way.answer.setup.adapters.method.noun}{_with(way.titles)}"
        found.append(
            (title, f"needs up to {units.gib(way.answer.need_high_bytes)}", dict(way.keys))
        )
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
    return GENTLER.index(one.setup.adapters.method) < GENTLER.index(other.setup.adapters.method)
