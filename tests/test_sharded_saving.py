"""Saving over several ranks. Numbers by hand: 8 billion parameters in float32 shards, AdamW, 8 ranks."""

from __future__ import annotations

import pytest

from estimator.sharded_saving import (
    fsdp_full,
    fsdp_sharded,
    write_seconds,
    zero3,
    zero_replicated,
)

N, HEAD = 8_000_000_000, 128_256 * 4096
WEIGHTS, STATES = 4 * N, 8 * N


def test_a_full_state_dict_gathers_one_tensor_on_the_gpu_and_all_on_rank_0s_host():
    save = fsdp_full(WEIGHTS, 4 * HEAD, STATES, 8)
    assert save.gpu_bytes == 4 * HEAD
    assert (save.rank0_host_bytes, save.other_host_bytes) == (STATES, 0)
    assert save.disk_bytes == 2 * WEIGHTS + STATES


def test_one_rank_alone_gathers_everything_on_its_gpu():
    assert fsdp_full(WEIGHTS, 4 * HEAD, STATES, 1).gpu_bytes == STATES


def test_sharded_state_dicts_take_almost_nothing_beside_the_disk():
    save = fsdp_sharded(WEIGHTS, STATES)
    assert save.gpu_bytes == 0
    assert save.rank0_host_bytes == 10_000_000
    assert save.disk_bytes == WEIGHTS + STATES


def test_zero_1_and_2_clone_the_weights_on_every_ranks_host():
    save = zero_replicated(2 * N, 12 * N, 8)
    assert save.rank0_host_bytes == save.other_host_bytes == 2 * N
    assert save.disk_bytes == 2 * 2 * N + 12 * N


def test_zero_3_gathers_only_where_it_is_told_to():
    gathered = zero3(2 * N, 2 * HEAD, 12 * N, 8, gathers_16bit=True)
    assert gathered.gpu_bytes == 2 * HEAD
    assert gathered.rank0_host_bytes == 2 * N
    assert gathered.disk_bytes == 14 * N
    sharded = zero3(2 * N, 2 * HEAD, 12 * N, 8, gathers_16bit=False)
    assert sharded.gpu_bytes == 0
    assert sharded.disk_bytes == 12 * N


@pytest.mark.parametrize("speed", [0, -1.0, float("nan")])
def test_a_disk_without_speed_is_refused(speed):
    with pytest.raises(ValueError, match="give the disk's speed"):
        write_seconds(1, speed)
