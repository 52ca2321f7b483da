"""Comparisons that one click generates from a setup: methods, GPUs, contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dashboard.compare import entry
from estimator import LARGEST, Estimate, Method, Verdict, catalog, contract, estimate, rank_gpus

CARDS = 5
"""Number of GPUs or contexts that a preset compares."""


def three_methods(of: Estimate) -> list[contract.Scenario]:
    """The same setup with full fine-tuning, LoRA and QLoRA, if the model supports them."""
    return list(_varied(of, [(method.label, {"method": method}) for method in Method]))


def five_gpus(of: Estimate) -> list[contract.Scenario]:
    """The same setup on its own card and the cheapest cards that hold it, by size.

    If few cards hold it, the largest cards are added.
    """
    ranking = rank_gpus(of.model, of.setup, catalog.gpus_like(of.gpu))
    fitting = [one for one in ranking.estimates if one.verdict is Verdict.FITS and one.cost]
    cheapest = sorted(fitting, key=lambda one: entry.dollars(one) or 0.0)
    largest = sorted(ranking.estimates, key=lambda one: -(one.gpu.memory_bytes if one.gpu else 0))
    cards = [of.gpu, *(one.gpu for one in [*cheapest, *largest])]
    chosen = [gpu for gpu in dict.fromkeys(cards) if gpu is not None][:CARDS]
    chosen.sort(key=lambda gpu: gpu.memory_bytes)
    own = of.setup.replace(usd_per_gpu_hour=None, mfu=None, pace=None)
    return [contract.scenario_of(gpu.name, of.model, gpu, own) for gpu in chosen]


def five_contexts(of: Estimate) -> list[contract.Scenario]:
    """The same setup at its context, half of it, and doublings up to the model's positions.

    If these are fewer than five, a quarter and an eighth are added.
    """
    most = of.model.position_limit or LARGEST["max_length"]
    own = of.setup.batch.max_length
    lengths = [
        one
        for one in (own // 2, own, own * 2, own * 4, own * 8, own // 4, own // 8)
        if 1 <= one <= most
    ]
    chosen = sorted(lengths[:CARDS])
    return list(_varied(of, [(f"{one:,} tokens", {"max_length": one}) for one in chosen]))


def _varied(
    of: Estimate, changes: Sequence[tuple[str, Mapping[str, Any]]]
) -> Iterator[contract.Scenario]:
    for name, keys in changes:
        also: tuple[Mapping[str, Any], ...] = ({}, {"lora_dropout": 0.0})
        for more in also:  # PEFT refuses LoRA dropout on stacked experts
            try:
                setup = replace(of.setup, **keys, **more)
                estimate(of.model, of.gpu, setup)
            except ValueError:
                continue
            yield contract.scenario_of(name, of.model, of.gpu, setup)
            break


PRESETS: Mapping[str, Callable[[Estimate], list[contract.Scenario]]] = {
    "Full, LoRA, QLoRA": three_methods,
    "Five GPUs": five_gpus,
    "Five contexts": five_contexts,
}
"""The presets, by button label."""
