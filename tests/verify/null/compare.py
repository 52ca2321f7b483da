"""Compares data/played.csv with the same runs on our allocator, the worst first.

usage: python -m tests.verify.null.compare [TEXT …]     only the rows whose id has one of these texts
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from estimator.proof import replays
from estimator.sources.catalog import played


def main(wanted: Iterable[str]) -> None:
    """Print every row, and the errors of all."""
    rows = [row for row in played() if not wanted or any(text in row.id for text in wanted)]
    found = sorted(map(replays.replay, rows), key=lambda run: -run.worst)
    for run in found:
        errors = " ".join(f"{error:+8.2%}" for error in run.errors.values())
        print(f"{errors}  {run.played.allocated / 2**30:6.2f} GiB  {run.row.id}")
    for quantity, errors in replays.spreads(found).items():
        shares = ", ".join(f"{name} {share:.2%}" for name, share in errors._asdict().items())
        print(f"{quantity}: {shares} of {len(found)} runs")


if __name__ == "__main__":
    main(sys.argv[1:])
