"""Our allocator against PyTorch's own: data/played.csv, where real trainers ran on its CUDA build without a GPU."""

from __future__ import annotations

import json

from estimator.contract.setups import parse
from estimator.proof import replays
from estimator.sources.catalog import PlayedRun, played

ROWS = played()
CHEAPEST = 20
NOT_YET = (
    "num_gpus",  # streams and shards are not replayed
    "optim=apollo_adamw",  # every step renews projectors and limits updates
    # a card this small caps the loader's warm-up: modeling_utils.py, caching_allocator_warmup
    "qlora 1x1024 objective=dpo",
)
"""What a row's id tells of a run whose requests are not ours one by one."""


def test_a_run_needs_more_than_its_blocks_and_no_more_than_torch_reserves() -> None:
    assert all(row.allocated_bytes < row.least_bytes <= row.reserved_bytes for row in ROWS)


def test_every_played_setup_is_one_of_the_contract() -> None:
    for row in ROWS:
        parse(json.loads(row.setup))


def test_no_run_is_played_twice() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)


def cheapest() -> list[PlayedRun]:
    rows = [row for row in ROWS if not any(text in row.id for text in NOT_YET)]
    return sorted(rows, key=lambda row: row.allocated_bytes)[:CHEAPEST]


def test_our_allocator_needs_what_pytorchs_does() -> None:
    found = [replays.replay(row) for row in cheapest()]
    assert len(found) == CHEAPEST
    errors = replays.spreads(found)
    assert errors["allocated"].worst < 0.002, errors
    assert errors["reserved"].worst < 0.02, errors
    assert errors["least"].worst < 0.01, errors
    assert errors["least"].median < 0.001
