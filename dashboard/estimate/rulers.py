"""Two rulers under the verdict: what holds at each context and at each micro-batch, the gentlest change first.

Each has a flag at the slider's present step. ``slider_rows.js`` moves the slider with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from dashboard.estimate.verdict_panel import kind
from dashboard.words import slider_limits
from estimator import Estimate, Rung


class Ruler(NamedTuple):
    """A ruler: its name, its logarithmic axis, and the unit of what it measures."""

    name: str
    low: float
    high: float
    unit: str


RULERS: Mapping[str, Ruler] = {
    "max_length": Ruler("Context", 512, 2**20, "tokens"),
    "per_device_train_batch_size": Ruler("Micro-batch", 0.5, 512, "examples"),
}
"""The rulers by the slider's key. Where they end is our choice; a band that ends at one example has a width, too."""


def place(value: float, on: Ruler) -> float:
    """Where a value stands on a ruler, in percent of its length.

    >>> place(1, RULERS["per_device_train_batch_size"]), place(2**30, RULERS["max_length"])
    (10.0, 100.0)
    """
    share = math.log(max(value, on.low) / on.low) / math.log(on.high / on.low)
    return round(100 * min(share, 1.0), 2)


def kept(rungs: Sequence[Rung]) -> list[Rung]:
    """The setup as it is, and each change that reaches at least a tenth further than those before it."""
    found = list(rungs[:1])
    for rung in rungs[1:]:
        if rung.limit > found[-1].limit * slider_limits.MUCH:
            found.append(rung)
    return found


def name(rung: Rung) -> str:
    """A change in a few words: ``as it is``, ``micro-batch 1``, ``Liger and checkpointing``, ``QLoRA``."""
    if rung.name:
        return rung.name.replace("Micro-batch", "micro-batch")
    return slider_limits.changes(rung.titles) if rung.titles else "as it is"


def ruler_html(key: str, rungs: Sequence[Rung], of: Estimate, base: str, is_done: bool) -> str:
    """A ruler with a band for each change, from what was reached before to what it reaches.

    A click on a band applies its change (``proposals``). ``base``: all other inputs, as in
    ``slider_rows.bases``. ``is_done``: whether all changes have been tried.
    """
    on = RULERS[key]
    now = int(of.setup.value(key))
    bands = "".join(_bands(key, kept(rungs), on))
    made_for = of.model.max_position_embeddings if key == "max_length" else 0
    mark = f'<i class="hr-made" style="left:{place(made_for, on)}%"></i>' * (made_for > on.low)
    reached = place(max((rung.limit for rung in kept(rungs)), default=0), on)
    untold = (
        f'<span class="hr-untold" aria-hidden="true" style="left:{reached}%"><span></span></span>'
    )
    flag = f'<div class="hr-flag" aria-hidden="true" style="left:{place(now, on)}%"><span>{now:,}</span></div>'
    beyond = "no change tried reaches further" if is_done else "trying further changes"
    return (
        f'<div class="hr-ruler" data-slider="{key}" data-of="{base}" data-kind="{kind(of)}" '
        f'data-ends="{on.low} {on.high}" role="group" aria-label="{on.name}: what fits, in {on.unit}">'
        f'<b>{on.name}</b><div class="hr-track" title="{beyond}">{bands}{untold}{mark}{flag}</div></div>'
    )


def about(limit: int) -> str:
    """A limit that is known to a sixteenth, rounded down to two figures.

    >>> about(96_598), about(5_642), about(124_706), about(23)
    ('96k', '5,600', '120k', '23')
    """
    step = 10 ** max(0, len(str(limit)) - 2)
    rounded = limit // step * step
    return f"{rounded // 1000}k" if rounded >= 10_000 else f"{rounded:,}"


def _bands(key: str, rungs: Sequence[Rung], on: Ruler) -> list[str]:
    found, begin = [], 0.0
    for at, rung in enumerate(rungs):
        end = place(rung.limit, on) if rung.limit else 0.0
        if end <= begin:
            continue
        limit = about(rung.limit) if rung.keys else f"{rung.limit:,}"
        said = f'<span class="hr-said">{name(rung)} <small>{limit}</small></span>'
        style = f'style="left:{begin}%;width:{end - begin:.2f}%"'
        more = f"{_whole(rung)}: up to {'about ' * bool(rung.keys)}{limit} {on.unit}"
        if rung.keys:
            found.append(
                f'<button type="button" class="hr-band hr-band-{min(at, 5)}" {style} title="{escape(more)}" '
                f'data-proposal="{key} {at}" aria-label="Apply {escape(more)}">{said}</button>'
            )
        else:
            found.append(
                f'<span class="hr-band hr-band-0" {style} title="{escape(more)}">{said}</span>'
            )
        begin = end
    return found


def _whole(rung: Rung) -> str:
    """A change with all that comes with it: ``QLoRA with FlashAttention 2, micro-batch 1``."""
    with_ = f" with {slider_limits.changes(rung.titles)}" if rung.name and rung.titles else ""
    batch = rung.keys.get("per_device_train_batch_size")
    at = f", micro-batch {batch:,}" if batch and not rung.name.startswith("Micro-batch") else ""
    return f"{name(rung)}{with_}{at}"


def proposals(rungs: Sequence[Rung]) -> dict[str, Mapping[str, object]]:
    """The keys that a click on each band sets, by the band's number."""
    return {str(at): rung.keys for at, rung in enumerate(kept(rungs)) if rung.keys}
