"""Classes of published runs, of each of which nine in ten should lie inside the bracket of seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from estimator.proof.accuracy import PublishedRun

SHORT, LONG = 2048, 4096
"""Tokens of a micro-batch up to which it is short, and from which it is long."""


def _tokens(run: PublishedRun) -> str:
    tokens = run.setup.tokens
    if tokens < SHORT:
        return f"under {SHORT:,}"
    return f"{SHORT:,} to {LONG - 1:,}" if tokens < LONG else f"{LONG:,} and more"


def _gpus(run: PublishedRun) -> str:
    if run.setup.num_gpus == 1:
        return "one"
    return "several machines" if run.crosses else "one machine"


CLASSES: Mapping[str, Callable[[PublishedRun], str]] = MappingProxyType(
    {
        "all": lambda run: "",
        "method": lambda run: run.setup.method.value,
        "GPUs": _gpus,
        "tokens": _tokens,
        "strategy": lambda run: run.setup.strategy.value,
        "generation": lambda run: run.gpu.architecture,
        "source": lambda run: run.origin,
    }
)
"""What the runs are sorted by: the name of each kind of class, and the class of a run."""
