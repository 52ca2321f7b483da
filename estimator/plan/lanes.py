"""Which GPUs of a pool each job of a schedule holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter

from estimator.plan.teams import SLACK, Timetable


def lanes(
    found: Timetable, pools: Mapping[str, int], slot_hours: float
) -> dict[str, tuple[int, ...]]:
    """By job, the GPUs of its pool, numbered from 0: neighbours where they are free, else the first free ones.

    A job holds its GPUs until the end of the slot that it ends in, as in ``schedule``; so enough are always free.

    Source: derived; greedy colouring of intervals in the order of their starts.
    """
    free_from = {pool: [0.0] * count for pool, count in pools.items()}
    held: dict[str, tuple[int, ...]] = {}
    for run in sorted(found.assignments, key=attrgetter("start_hours")):
        lane, count = free_from[run.option.pool], run.option.num_gpus
        free = [number for number, end in enumerate(lane) if end <= run.start_hours + SLACK]
        blocks = (free[at : at + count] for at in range(len(free) - count + 1))
        gpus = next((block for block in blocks if block[-1] - block[0] == count - 1), free[:count])
        until = math.ceil(run.end_hours / slot_hours - SLACK) * slot_hours
        for number in gpus:
            lane[number] = until
        held[run.job.name] = tuple(gpus)
    return held
