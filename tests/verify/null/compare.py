"""Compares data/played.csv with the same runs on our allocator, the worst first.

usage: python -m tests.verify.null.compare [TEXT …]     only the rows whose id has one of these texts
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from estimator.contract.setups import parse
from estimator.objectives.registry import as_trained
from estimator.sources.catalog import PlayedRun, played
from estimator.step import allocations, blocks
from tests.verify.null.played import least_memory

QUANTITIES = ("allocated", "reserved", "least")


class Compared(NamedTuple):
    """Our bytes over the real ones, less one."""

    row: PlayedRun
    allocated: float
    reserved: float
    least: float

    @property
    def worst(self) -> float:
        """The largest error of the three."""
        return max(abs(it) for it in self[1:])


def compared(row: PlayedRun) -> Compared:
    """A run on our allocator against the row; ``ValueError`` if it cannot be estimated."""
    model, gpu, setup = parse(json.loads(row.setup))
    model, setup = as_trained(model, setup)
    log = allocations.allocations(model, allocations.hardware_of(gpu), setup, allocations.MOVED)
    spare = blocks.play(log)
    least = least_memory(
        lambda room: blocks.play(log, room).died is not None, spare.allocated - 1, spare.reserved
    )
    return Compared(
        row,
        spare.allocated / row.allocated_bytes - 1,
        spare.reserved / row.reserved_bytes - 1,
        least / row.least_bytes - 1,
    )


def main(wanted: Iterable[str]) -> None:
    """Print every row, and the errors of all."""
    found = [compared(row) for row in played() if not wanted or any(it in row.id for it in wanted)]
    for it in sorted(found, key=lambda it: -it.worst):
        errors = " ".join(f"{error:+8.2%}" for error in it[1:])
        print(f"{errors}  {it.row.allocated_bytes / 2**30:6.2f} GiB  {it.row.id}")
    for quantity in QUANTITIES:
        errors = sorted(abs(getattr(it, quantity)) for it in found)
        print(
            f"{quantity}: median {median(errors):.2%}, p95 {errors[len(errors) * 95 // 100]:.2%}, "
            f"worst {errors[-1]:.2%} of {len(errors)} runs"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
