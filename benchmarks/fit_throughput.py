"""Compares estimated with published step times, and fits the shares in estimator/time/rates.py.

    python benchmarks/fit_throughput.py            the fit, the classes, the runs outside
    python benchmarks/fit_throughput.py --markdown the two tables, to paste

Compares every published run of data/throughput.csv with its bracket. For each run: the share of the best measured
rate that would put it exactly on the fast or on the slow end. The constants are the closest two shares between which
enough of a generation's runs lie. Leave one source out: a source is judged with the shares that all other sources give.
Prints; judges nothing.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # to be run from anywhere

from estimator.proof.accuracy import PublishedRun, published_runs
from estimator.proof.calibration import Calibration, calibrate
from estimator.time import rates

COVERED = 0.93
"""Share of a generation's runs that the fitted bracket covers (ours: nine in ten plus a margin for new sources)."""
ENOUGH = 12
"""Minimum number of runs of a generation for a fit (our choice)."""
LEAST, MOST = 0.1, 2.0
"""Bounds of the search for shares."""
HALVINGS = 12


@dataclass(frozen=True, kw_only=True)
class Met:
    """A run, and the shares of the best rate at which the bracket's ends equal its measured time."""

    run: PublishedRun
    fast: float
    slow: float


@contextmanager
def shares(fast: Mapping[str, float], slow: Mapping[str, float]) -> Iterator[None]:
    """Temporarily replaces the shares of the best rate, by generation."""
    with (
        mock.patch.object(rates, "FAST_SHARE", fast),
        mock.patch.object(rates, "SLOW_SHARE", slow),
    ):
        yield


def judged(run: PublishedRun) -> Met:
    """The shares at which this run's ends equal its published seconds."""
    generation = run.gpu.architecture

    def share_of(end: Callable[[PublishedRun], float]) -> float:
        low, high = LEAST, MOST
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            with shares({generation: middle}, {generation: middle}):
                longer = end(run) > run.step_seconds
            low, high = (middle, high) if longer else (low, middle)
        return high

    return Met(
        run=run,
        fast=share_of(lambda it: it.estimated.step_seconds_low),
        slow=share_of(lambda it: it.estimated.step_seconds_high),
    )


def fitted(
    of: Sequence[Met],
) -> tuple[dict[str, float], dict[str, float]]:
    """Fast and slow shares by generation, for generations with enough runs."""
    by: dict[str, list[Met]] = defaultdict(list)
    for it in of:
        by[it.run.gpu.architecture].append(it)
    closest = {name: _closest(runs) for name, runs in by.items() if len(runs) >= ENOUGH}
    return (
        {name: fast for name, (fast, _) in closest.items()},
        {name: slow for name, (_, slow) in closest.items()},
    )


def _closest(runs: Sequence[Met]) -> tuple[float, float]:
    """The narrowest pair of shares, by ratio, that covers ``COVERED`` of the runs."""
    needed = math.ceil(COVERED * len(runs))
    found = []
    for fast in sorted({it.fast for it in runs}):
        slows = sorted((it.slow for it in runs if it.fast <= fast), reverse=True)
        if len(slows) >= needed:
            found.append((fast, slows[needed - 1]))
    return min(found, key=lambda ends: ends[0] / ends[1])


def table(found: Sequence[Calibration], *, markdown: bool) -> None:
    """Print one row per class."""
    head = ["class", "", "runs", "inside", "faster", "slower", "median width", "widest"]
    rows = [
        [
            *(it.kind, it.name, f"{it.runs}", f"{it.inside / it.runs:.1%}"),
            *(f"{it.faster}", f"{it.slower}", f"{it.width:.2f}", f"{it.widest:.2f}"),
        ]
        for it in found
    ]
    if markdown:
        lines = [head, ["---"] * len(head), *rows]
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    for line in [head, *rows]:
        print(f"{line[0]:18} {line[1]:24}" + "".join(f"{cell:>14}" for cell in line[2:]))


def ends_of(runs: Iterable[Met]) -> dict[str, tuple[float, float]]:
    """Both ends of each run's bracket, under the shares of the moment, by id."""
    return {
        it.run.id: (it.run.estimated.step_seconds_low, it.run.estimated.step_seconds_high)
        for it in runs
    }


def main(arguments: Sequence[str]) -> None:
    """Fits the shares and prints the coverage."""
    markdown = "--markdown" in arguments
    every = [judged(run) for run in published_runs()]
    fast, slow = fitted(every)
    if not markdown:
        for name in fast:
            used = (
                rates.FAST_SHARE.get(name, rates.FAST_SHARE_ELSEWHERE),
                rates.SLOW_SHARE.get(name, rates.SLOW_SHARE_ELSEWHERE),
            )
            print(
                f"{name:14} fast share {fast[name]:.3f} (used {used[0]})   "
                f"slow share {slow[name]:.3f} (used {used[1]})"
            )
        print()
    print("As fitted\n")
    table(calibrate(it.run for it in every), markdown=markdown)
    left: dict[str, tuple[float, float]] = {}
    for source in sorted({it.run.origin for it in every}):
        others = fitted([it for it in every if it.run.origin != source])
        with shares(*others):
            left |= ends_of(it for it in every if it.run.origin == source)
    print("\nEach source judged by the shares of all others\n")
    table(calibrate((it.run for it in every), left), markdown=markdown)
    if markdown:
        return
    print()
    for it in every:
        time, run = it.run.estimated, it.run
        if not run.inside:
            ends = f"{time.step_seconds_low:.2f} to {time.step_seconds_high:.2f}"
            print(f"  {run.step_seconds:8.2f} s, not {ends:>18}   {run.id}")


if __name__ == "__main__":
    main(sys.argv[1:])
