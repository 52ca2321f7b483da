"""Runs that were played on PyTorch's own allocator, beside ours.

Replaying all of them takes seconds, which no visitor should wait for. ``make docs`` writes what they come to into
``data/replayed.csv``; ``tests/test_proof.py`` fails while a row differs from what the code computes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from estimator.answer.needs import as_run
from estimator.contract.setups import parse
from estimator.sources import catalog
from estimator.step import allocations, blocks
from estimator.step.zero_requests import ranks_played
from estimator.values.facets.allocator import Allocator
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model

RESOLUTION = 2048
"""The least memory is found to this share of itself, as that of the played runs."""
FINEST = 2**20
"""And to no less than a MiB: half of what the allocator takes at once."""
NEVER_AHEAD = 0
"""Gathers by which FSDP1's CPU ran ahead where the rows were played: that card finishes everything at once."""


class Blocks(NamedTuple):
    """What an allocator makes of a run, in bytes."""

    allocated: int
    """``torch.cuda.max_memory_allocated``, with memory to spare."""
    reserved: int
    """``torch.cuda.max_memory_reserved``, with memory to spare."""
    least: int
    """The least memory on which the run goes through."""


COLUMNS = ("id", *(f"{name}_bytes" for name in Blocks._fields))


class ReplayedRun(NamedTuple):
    """One row of ``data/played.csv``, and the same run on our allocator."""

    row: catalog.PlayedRun
    played: Blocks
    ours: Blocks

    @property
    def written(self) -> tuple[Model, Gpu | None, TrainingSetup]:
        """The run as it was written down."""
        return parse(json.loads(self.row.setup))

    @property
    def errors(self) -> Mapping[str, float]:
        """Our bytes over PyTorch's, less one, by quantity."""
        pairs = zip(Blocks._fields, self.ours, self.played, strict=True)
        return {name: ours / played - 1 for name, ours, played in pairs}

    @property
    def worst(self) -> float:
        """The largest error of the three, without its sign."""
        return max(map(abs, self.errors.values()))


def least_memory(dies: Callable[[int], bool], low: int, high: int) -> int:
    """The least memory on which a run goes through, in bytes: it dies on ``low`` and not on ``high``."""
    while high - low > max(FINEST, high // RESOLUTION):
        middle = (low + high) // 2
        if dies(middle):
            low = middle
        else:
            high = middle
    return high


def replay(row: catalog.PlayedRun) -> ReplayedRun:
    """Plays a run on our allocator: the most of any rank.

    Raises ``ValueError`` for a setup that cannot be estimated.
    """
    model, gpu, setup = parse(json.loads(row.setup))
    model, setup = as_run(model, setup)
    hardware = allocations.hardware_of(gpu)
    logs = [
        allocations.allocations(model, hardware, setup, rank, on_host=False)[0]
        for rank in ranks_played(model, setup.adapters, setup.mesh)
    ]
    divisions = setup.allocator.roundup_power2_divisions
    found = [_blocks(blocks.rounded(log, divisions), setup.allocator) for log in logs]
    return ReplayedRun(row, _played(row), Blocks(*map(max, zip(*found, strict=True))))


def _blocks(log: blocks.Log, allocator: Allocator) -> Blocks:
    def played(room: int) -> blocks.Played:
        return blocks.play(log, room, blocks.settings_of(allocator), NEVER_AHEAD)

    spare = played(blocks.NO_LIMIT)
    least = least_memory(
        lambda room: played(room).died is not None, spare.allocated - 1, spare.reserved
    )
    return Blocks(spare.allocated, spare.reserved, least)


def _played(row: catalog.PlayedRun) -> Blocks:
    return Blocks(row.allocated_bytes, row.reserved_bytes, row.least_bytes)


def computed() -> Iterator[ReplayedRun]:
    """Every played run, replayed now."""
    return map(replay, catalog.played())


@lru_cache(maxsize=1)
def stored() -> Sequence[ReplayedRun]:
    """Every played run with what its replay came to when the table was written."""
    ours = {
        row["id"]: Blocks(*(int(row[name]) for name in COLUMNS[1:])) for row in catalog.replayed()
    }
    return tuple(ReplayedRun(row, _played(row), ours[row.id]) for row in catalog.played())


class Errors(NamedTuple):
    """Errors of many runs, as shares without their signs."""

    median: float
    p95: float
    worst: float


def spreads(replays: Sequence[ReplayedRun]) -> Mapping[str, Errors]:
    """How large the errors are, by quantity. Raises ``StatisticsError`` if there is no run."""
    found = {}
    for name in Blocks._fields:
        errors = sorted(abs(run.errors[name]) for run in replays)
        found[name] = Errors(median(errors), errors[len(errors) * 95 // 100], errors[-1])
    return MappingProxyType(found)
