"""Changes that make a setup fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from html import escape
from typing import Any

from dashboard.estimate.computed_once import computed_once
from dashboard.words import one_line, units
from estimator import (
    MOST_GPUS,
    MOST_TOGETHER,
    Estimate,
    Gpu,
    Model,
    Phase,
    Remedy,
    RunTime,
    TrainingSetup,
    catalog,
    estimate,
    longest_context,
    overflow,
)
from estimator import remedies as fitting_changes


def applied(of: Estimate, keys: Mapping[str, Any]) -> Estimate:
    """The estimate after a remedy. A remedy may choose another GPU."""
    setup = {key: value for key, value in keys.items() if key != "gpu"}
    gpu = catalog.gpu(keys["gpu"]) if "gpu" in keys else of.gpu
    return estimate(of.model, gpu, replace(of.setup, **setup))


@computed_once(maxsize=512)
def proposed(model: Model, gpu: Gpu, setup: TrainingSetup) -> tuple[tuple[Remedy, str], ...]:
    """Every change that makes a setup fit, with its text. Cached for all visitors of the same setup."""
    of = estimate(model, gpu, setup)
    found = fitting_changes(of, catalog.gpus_like(gpu))
    return tuple((remedy, remedy_html(remedy, of, applied(of, remedy.keys))) for remedy in found)


def remedy_html(remedy: Remedy, before: Estimate, after: Estimate) -> str:
    """One change that makes it fit: its text, the memory it saves, and its cost in time, dollars and quality."""
    saves = f"saves {units.gib(remedy.saved_bytes)}, " if remedy.saved_bytes else ""
    needs = f"{saves}needs up to {units.gib(remedy.need_high_bytes)}; {added(before, after)}"
    return f"<b>{escape(remedy.title)}</b>: {needs}<br><small>{escape(remedy.price)}{one_line.elsewhere(after)}</small>"


MANY_TIMES_PERCENT = 200
"""At this percentage and above, a longer run is given as a multiple."""


def added(before: Estimate, after: Estimate) -> str:
    """A change's effect on the run's time, and the resulting time and cost, by the middle of the ranges."""
    if before.time is None or after.time is None:
        return "time unknown"
    ratio = middle_hours(after.time) / middle_hours(before.time)
    percent = round(100 * (ratio - 1))
    if percent == 0:
        change = "as long as before"
    elif percent >= MANY_TIMES_PERCENT:
        change = f"{ratio:.0f} times as long"
    else:
        change = f"{'+' if percent > 0 else '−'}{abs(percent)} % time"
    return f"{change}, {one_line.run(after)}"


def middle_hours(time: RunTime) -> float:
    """The middle of the run's hours, the geometric mean of its ends."""
    return time.total_hours.middle


def tried(estimate: Estimate) -> str:
    """Changes that were tried without success, and the shorter context that would fit."""
    assert estimate.gpu is not None
    said = f"Tried: all free changes with up to {MOST_TOGETHER} others, larger cards, and up to {MOST_GPUS:,} GPUs."
    longest = longest_context(estimate.model, estimate.gpu, estimate.setup)
    return f"{said} A context of {longest:,} tokens would fit." if longest else said


def remedies_head(estimate: Estimate, found: int) -> str:
    """Text above the remedies, including what cannot help."""
    assert estimate.gpu is not None
    setup = estimate.setup
    head = "What to change" if found else "Nothing tried makes it fit"
    load, step = (estimate.phases[phase].bytes for phase in (Phase.LOAD, Phase.OPTIMIZER_STEP))
    room = units.gib(overflow.room_bytes(estimate))
    if load > overflow.room_bytes(estimate):
        note = (
            f"Loading alone takes {units.gib(load)}, but only {room} is free for tensors: neither batch nor context "
            "helps."
        )
    elif step > overflow.room_bytes(estimate):
        note = (
            f"Weights, gradients and optimizer states alone take {units.gib(step)}, but only {room} is free for "
            "tensors: no smaller batch, shorter context or more accumulation makes that fit."
        )
    elif setup.batch.per_device_train_batch_size == 1:
        note = "The micro-batch is already 1; more accumulation saves nothing."
    else:
        note = "Accumulation alone saves nothing; it keeps the effective batch while the micro-batch shrinks."
    if not found:
        note += f" {tried(estimate)}"
    return f'<h2 class="hr-head">{head}</h2><p class="hr-text">{escape(note)}</p>'
