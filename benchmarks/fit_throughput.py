"""Compares estimated with published step times, and says how far the brackets are off by generation of cards.

    python benchmarks/fit_throughput.py            what would fit, the classes, the runs outside
    python benchmarks/fit_throughput.py --markdown the two tables, to paste

Compares every published run of data/throughput.csv with its bracket. What would fit: the factor by which a generation's
brackets would have to be shifted, and the power to which their widths would have to be raised, to be the narrowest that
cover enough of its runs; 1 and 1 where the constants fit. Leave one source out: a source is judged with brackets that
all other sources have so shifted and stretched. Prints; judges nothing.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # to be run from anywhere

from estimator.proof.accuracy import PublishedRun, published_runs
from estimator.proof.calibration import Calibration, calibrate
from estimator.values.range import Range

COVERED = 0.92
"""Share of a generation's runs that the fitted bracket covers (ours: nine in ten plus a margin for new sources)."""
ENOUGH = 12
"""Minimum number of runs of a generation for a fit (our choice)."""
FARTHEST, STEP = 40, 0.01
"""Shifts that are tried either way, and their distance, in logarithms."""


@dataclass(frozen=True, kw_only=True)
class Met:
    """A run and its bracket."""

    run: PublishedRun
    seconds: Range[float]

    @property
    def middle(self) -> float:
        """Seconds, as far from the one end as from the other by ratio."""
        return self.seconds.middle

    @property
    def off(self) -> float:
        """Logarithm of the measured over the middle seconds."""
        return math.log(self.run.step_seconds / self.middle)

    @property
    def half(self) -> float:
        """Logarithm of the slow end over the middle."""
        return math.log(self.seconds.high / self.middle)


class Fit(NamedTuple):
    """How brackets would have to change."""

    shift: float = 1.0
    stretch: float = 1.0


def met(run: PublishedRun) -> Met:
    """The run with the ends of its bracket."""
    return Met(run=run, seconds=run.estimated.step_seconds)


def fitted(of: Sequence[Met]) -> dict[str, Fit]:
    """The narrowest brackets that cover enough, by generation; ``""``: of all together, for those with few runs."""
    by: dict[str, list[Met]] = defaultdict(list)
    for one in of:
        by[one.run.gpu.architecture].append(one)
        by[""].append(one)
    return {name: _closest(runs) for name, runs in by.items() if len(runs) >= ENOUGH}


def _closest(runs: Sequence[Met]) -> Fit:
    found = []
    for step in range(-FARTHEST, FARTHEST + 1):
        reaches = sorted(abs(run.off - STEP * step) / run.half for run in runs)
        found.append((reaches[math.ceil(COVERED * len(runs)) - 1], STEP * step))
    stretch, shift = min(found)
    return Fit(math.exp(shift), stretch)


def ends_of(runs: Iterable[Met], fits: Mapping[str, Fit]) -> dict[str, Range[float]]:
    """Both ends of each run's bracket as shifted and stretched, by id."""
    found = {}
    for run in runs:
        fit = fits.get(run.run.gpu.architecture, fits[""])
        middle, reach = fit.shift * run.middle, math.exp(fit.stretch * run.half)
        found[run.run.id] = Range(middle / reach, middle * reach)
    return found


def table(found: Sequence[Calibration], *, markdown: bool) -> None:
    """Print one row per class."""
    head = ["class", "", "runs", "inside", "faster", "slower", "median width", "widest"]
    rows = [
        [
            *(row.kind, row.name, f"{row.runs}", f"{row.inside / row.runs:.1%}"),
            *(f"{row.faster}", f"{row.slower}", f"{row.width:.2f}", f"{row.widest:.2f}"),
        ]
        for row in found
    ]
    if markdown:
        lines = [head, ["---"] * len(head), *rows]
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    for line in [head, *rows]:
        print(f"{line[0]:18} {line[1]:24}" + "".join(f"{cell:>14}" for cell in line[2:]))


def main(arguments: Sequence[str]) -> None:
    """Fits the shares and prints the coverage."""
    markdown = "--markdown" in arguments
    every = [met(run) for run in published_runs()]
    if not markdown:
        for name, fit in fitted(every).items():
            print(
                f"{name or 'all':14} would fit if shifted by {fit.shift:.2f} and stretched by {fit.stretch:.2f}"
            )
        print()
    print("As estimated\n")
    table(calibrate(one.run for one in every), markdown=markdown)
    left: dict[str, Range[float]] = {}
    for source in sorted({one.run.origin for one in every}):
        others = fitted([one for one in every if one.run.origin != source])
        left |= ends_of((one for one in every if one.run.origin == source), others)
    print("\nEach source judged by what fits all others\n")
    table(calibrate((one.run for one in every), left), markdown=markdown)
    if markdown:
        return
    print()
    for one in every:
        if one.run.step_seconds not in one.seconds:
            ends = f"{one.seconds.low:.2f} to {one.seconds.high:.2f}"
            print(f"  {one.run.step_seconds:8.2f} s, not {ends:>18}   {one.run.id}")


if __name__ == "__main__":
    main(sys.argv[1:])
