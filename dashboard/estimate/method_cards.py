"""A card for each method: its verdict, its need, and the smallest GPUs that hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from dashboard.address import links
from dashboard.estimate.computed_once import computed_once
from dashboard.words import markup, one_line, units
from estimator import (
    MOST_GPUS,
    Dtype,
    Estimate,
    Gpu,
    Method,
    Model,
    TrainingSetup,
    Verdict,
    catalog,
    default_targets,
    estimate,
    need,
    smallest_gpu,
    smallest_set,
    why_not_shared,
)


class SmallestGpus(NamedTuple):
    """The smallest GPUs that hold a setup."""

    gpu: Gpu
    setup: TrainingSetup
    """The setup trained on these GPUs."""
    headroom_bytes: int
    """Free bytes on each GPU at the high end of the need."""
    keys: Mapping[str, object]
    """Keys that a click sets to train on these GPUs; empty if one larger GPU is enough."""


def smallest_place(of: Estimate) -> SmallestGpus | str:
    """The smallest card of the same maker that holds the setup, or the fewest GPUs that hold it, and the free memory.

    If there are none, a sentence says why the setup cannot be sharded. The sentence is empty if it can be sharded
    but needs more than the maximum number of GPUs.
    """
    cards = catalog.gpus_like(of.gpu)
    if (alone := smallest_gpu(of.model, cards, of.setup)) is not None:
        return _place(of, alone, of.setup, {})
    together = smallest_set(of.model, of.gpu, cards, of.setup)
    if together is None:
        return why_not_shared(of.model, of.setup)
    is_own = of.gpu is not None and together.gpu.name == of.gpu.name
    another = {} if is_own else {"gpu": together.gpu.name}
    return _place(of, together.gpu, together.setup, {**together.keys, **another})


def _place(
    of: Estimate, gpu: Gpu, setup: TrainingSetup, keys: Mapping[str, object]
) -> SmallestGpus:
    return SmallestGpus(gpu, setup, gpu.memory_bytes - need(of.model, gpu, setup).high, keys)


def changed(of: Estimate, keys: Mapping[str, Any]) -> Estimate | None:
    """Estimate of the setup with some keys changed; None if the changed setup cannot be trained."""
    try:
        return estimate(of.model, of.gpu, replace(of.setup, **keys))
    except ValueError:
        return None


def methods(of: Estimate) -> Mapping[Method, Estimate]:
    """The same setup under each method that can train it, adjusted if PEFT or ZeRO-3 refuse it.

    PEFT refuses some layers, and dropout on stacked experts. ZeRO-3 shards packed weights only if their storage
    dtype is a float.
    """
    return _methods(of.model, of.gpu, of.setup)


@computed_once(maxsize=64)
def _methods(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Mapping[Method, Estimate]:
    """Cached because the figure and the cards ask for the same."""
    of = estimate(model, gpu, setup)
    targets = default_targets(of.model, of.setup.replace(method=Method.LORA).adapters)
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"bnb_4bit_quant_storage": str(Dtype.BFLOAT16)},
        {"lora_target_modules": targets},
        {"bnb_4bit_quant_storage": str(Dtype.BFLOAT16), "lora_target_modules": targets},
    )
    found = {}
    for method in Method:
        # a what-if applies to its own method only
        real = {} if method is of.setup.adapters.method else {"optim_state_dtype": None}
        others = (changed(of, {"method": method, **real, **way}) for way in ways)
        if (other := next(filter(None, others), None)) is not None:
            found[method] = other
    return MappingProxyType(found)


class MethodCard(NamedTuple):
    """A card: its method, its HTML, and the keys that a click sets."""

    method: Method
    html: str
    keys: Mapping[str, object]


def cards(of: Estimate) -> tuple[MethodCard, ...]:
    """A card for each method, which a click opens on the smallest GPUs that hold it."""
    return _cards(of.model, of.gpu, of.setup)


@computed_once(maxsize=512)
def _cards(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> tuple[MethodCard, ...]:
    found = []
    for method, other in methods(estimate(model, gpu, setup)).items():
        place = smallest_place(other)
        together = {} if isinstance(place, str) else place.keys
        keys = {**method_keys(other), **together}
        found.append(MethodCard(method, card_html(method, other, place), keys))
    return tuple(found)


def method_keys(of: Estimate) -> dict[str, object]:
    """The keys that a click on a method's card sets."""
    return {
        "method": of.setup.adapters.method,
        "optim_state_dtype": of.setup.optimisation.optim_state_dtype,
        "bnb_4bit_quant_storage": of.setup.adapters.bnb_4bit_quant_storage,
        "lora_target_modules": links.targets_as_chosen(of.model, of.setup),
    }


def card_html(method: Method, estimate: Estimate, smallest: SmallestGpus | str) -> str:
    """One method's card: its verdict on the chosen GPU, its need, and the smallest GPUs that hold it.

    ``smallest``: these GPUs, or a sentence on why the setup cannot be sharded.
    """
    need = f"needs up to {units.gib(estimate.need_high_bytes)}"
    if estimate.verdict is Verdict.FITS:
        need += f", {units.gib(estimate.headroom_bytes)} free"
    where = f"not on one GPU, nor on {MOST_GPUS} together"
    if isinstance(smallest, str):
        where = "not on one GPU, and it cannot be shared" if smallest else where
    else:
        number = smallest.setup.mesh.num_gpus
        cards = f"{number} × {smallest.gpu.name}" if number > 1 else smallest.gpu.name
        where = f"smallest: {cards}, {units.gib(smallest.headroom_bytes)} free"
        if smallest.keys:
            where = f"{'not on one GPU' if estimate.setup.mesh.num_gpus == 1 else 'smallest'}: {cards}, "
            where += smallest.setup.mesh.strategy.label
    return markup.card(method.label, estimate.verdict, need, where, *_run_line(estimate))


def _run_line(estimate: Estimate) -> list[str]:
    """Hours and dollars, or the reason why they are unknown; empty for a run that cannot start."""
    return [one_line.run(estimate) or _no_time(estimate)] if estimate.can_run else []


def _no_time(estimate: Estimate) -> str:
    return "hours unknown" if estimate.gpu is not None else "choose a GPU for hours"
