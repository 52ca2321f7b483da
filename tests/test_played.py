"""Our allocator against PyTorch's own: data/played.csv, where real trainers ran on its CUDA build without a GPU."""

from __future__ import annotations

import json

from estimator.contract.setups import parse
from estimator.sources.catalog import played

ROWS = played()


def test_a_run_needs_more_than_its_blocks_and_no_more_than_torch_reserves() -> None:
    assert all(row.allocated_bytes < row.least_bytes <= row.reserved_bytes for row in ROWS)


def test_every_played_setup_is_one_of_the_contract() -> None:
    for row in ROWS:
        parse(json.loads(row.setup))


def test_no_run_is_played_twice() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)
