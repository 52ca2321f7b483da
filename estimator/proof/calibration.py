"""How many published runs lie inside their bracket of seconds, by class: nine in ten of each should."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import log
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from estimator.proof.accuracy import PublishedRun, published_in_fp8, published_runs
from estimator.values.range import Range

SHORT, LONG = 2048, 4096
"""Tokens of a micro-batch up to which it is short, and from which it is long."""


def _tokens(run: PublishedRun) -> str:
    tokens = run.setup.batch.tokens
    if tokens < SHORT:
        return f"under {SHORT:,}"
    return f"{SHORT:,} to {LONG - 1:,}" if tokens < LONG else f"{LONG:,} and more"


def _gpus(run: PublishedRun) -> str:
    if run.setup.mesh.num_gpus == 1:
        return "one"
    return "several machines" if run.crosses else "one machine"


CLASSES: Mapping[str, Callable[[PublishedRun], str]] = MappingProxyType(
    {
        "all": lambda run: "",
        "method": lambda run: run.setup.adapters.method.value,
        "GPUs": _gpus,
        "tokens": _tokens,
        "strategy": lambda run: run.setup.mesh.strategy.value,
        "generation": lambda run: run.gpu.architecture,
        "source": lambda run: run.origin,
    }
)
"""What the runs are sorted by: the name of each kind of class, and the class of a run."""


class Calibration(NamedTuple):
    """Published runs of one class, and their brackets."""

    kind: str
    """One of ``CLASSES``."""
    name: str
    runs: int
    inside: int
    faster: int
    """Runs faster than their fast end."""
    slower: int
    width: float
    """Median of the slow end over the fast end."""
    widest: float
    positions: tuple[float, ...]
    """Where each run's time lies in its bracket on a logarithmic scale, ascending: 0 is the fast end, 1 the slow."""


def calibrate(
    runs: Iterable[PublishedRun], ends: Mapping[str, Range[float]] | None = None
) -> tuple[Calibration, ...]:
    """The runs compared with their brackets, by class, in the order of ``CLASSES`` and by name.

    ``ends``: other brackets than the estimated ones, in seconds, by the run's id.
    """
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for run in runs:
        low, high = run.estimated.step_seconds if ends is None else ends[run.id]
        for kind, of in CLASSES.items():
            found.setdefault((kind, of(run)), []).append((run.step_seconds, low, high))
    order = list(CLASSES)
    return tuple(
        _calibration(*key, found[key])
        for key in sorted(found, key=lambda key: (order.index(key[0]), key[1]))
    )


def _calibration(kind: str, name: str, of: list[tuple[float, float, float]]) -> Calibration:
    widths = [high / low for _, low, high in of]
    faster = sum(seconds < low for seconds, low, _ in of)
    slower = sum(seconds > high for seconds, _, high in of)
    inside = len(of) - faster - slower
    positions = sorted(log(seconds / low) / log(high / low) for seconds, low, high in of)
    return Calibration(
        kind, name, len(of), inside, faster, slower, median(widths), max(widths), tuple(positions)
    )


@lru_cache(maxsize=1)
def calibration() -> tuple[Calibration, ...]:
    """All published runs compared with their brackets, by class."""
    return calibrate(published_runs())


@lru_cache(maxsize=1)
def calibration_in_fp8() -> Calibration:
    """The published runs in FP8 compared with their brackets."""
    return calibrate(published_in_fp8())[0]
