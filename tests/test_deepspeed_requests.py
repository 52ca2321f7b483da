"""What DeepSpeed and DDP ask the allocator for, against small cases by hand and rows of data/played.csv."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator.families.modules import TINY_LLAMA
from estimator.proof import replays
from estimator.resident.optimizer import Trainable
from estimator.sources.catalog import played
from estimator.step.blocks import EMPTY, GIVE, MIB, TAKE, Log, Request, Settings, log_of, play
from estimator.step.ddp_requests import Sent, buckets, together
from estimator.step.zero_requests import groups, ranks_played, reached
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Offload
from estimator.values.strategies import Strategy


def _emptied(*between: Request) -> Log:
    large, larger = Request(TAKE, 1, 32 * MIB), Request(TAKE, 2, 48 * MIB)
    return log_of([[large, Request(GIVE, 1), *between, larger]], [(0, 1)])


@pytest.mark.parametrize("expandable", [False, True])
def test_an_emptied_cache_keeps_no_segment(expandable):
    assert play(_emptied(Request(EMPTY, 0)), settings=Settings(expandable)).reserved <= 60 * MIB
    assert play(_emptied()).reserved == 80 * MIB


def test_what_is_in_use_stays_when_the_cache_is_emptied():
    log = log_of([[Request(TAKE, 1, 32 * MIB), Request(EMPTY, 0)]], [(0, 2)])
    assert play(log).allocated == play(log).reserved == 64 * MIB


def test_a_bucket_is_closed_once_it_is_full_and_has_one_dtype():
    sent = [Sent(4, 10), Sent(2, 3), Sent(4, 1), Sent(4, 1), Sent(2, 30)]
    assert together(sent, [10, 2]) == [[10], [3, 30], [1, 1]]


def test_ddp_has_one_bucket_in_its_first_step_unless_it_looks_for_unused_parameters():
    trained = [Trainable((MIB,), 4, 1)] * 20
    first, later = buckets(trained, TrainingSetup(gradient_checkpointing=True))
    # 4 MiB fill the first of at most 1 MiB, seven times 4 MiB each other one of 25
    assert (first, later) == ([80 * MIB], [4 * MIB, 28 * MIB, 28 * MIB, 20 * MIB])
    assert buckets(trained, TrainingSetup()) == (
        [20 * MIB, 28 * MIB, 28 * MIB, 4 * MIB],
        None,
    )


def _zero2(**keys: object) -> TrainingSetup:
    return replace(TrainingSetup(), num_gpus=4, strategy=Strategy.ZERO2, **keys)


def test_every_gradient_has_an_owner_and_every_partition_the_same_size():
    for group in groups(TINY_LLAMA, _zero2().adapters, 4):
        owned = [0] * 4
        start = 0
        for index, count in enumerate(group.sizes):
            for rank, piece in group.slices(index, start):
                owned[rank] += piece
            start += count
        assert sum(owned) == sum(group.sizes)
        assert max(owned) <= group.part < sum(group.sizes) / 4 + 2


def test_backward_reaches_the_last_rank_first():
    setup = _zero2()
    layers = [reached(TINY_LLAMA, setup.adapters, 4, rank).first.layer for rank in range(4)]
    assert layers[3] == TINY_LLAMA.num_hidden_layers  # the head
    assert layers == sorted(layers)


def test_only_partitions_on_the_gpu_make_ranks_differ():
    adapters, mesh = _zero2().adapters, _zero2().mesh
    assert {0, 3} <= set(ranks_played(TINY_LLAMA, adapters, mesh))
    offloaded = replace(mesh, offload_optimizer=Offload.CPU)
    assert ranks_played(TINY_LLAMA, adapters, offloaded) == (0,)
    assert ranks_played(TINY_LLAMA, adapters, replace(mesh, strategy=Strategy.ZERO3)) == (0,)


@pytest.mark.parametrize(
    "strategy", ["strategy=ddp", "strategy=zero1", "strategy=zero2", "strategy=zero3"]
)
def test_several_ranks_need_what_they_need_on_pytorchs_allocator(strategy):
    rows = [row for row in played() if strategy in row.id and "full 1x1024" in row.id]
    assert rows
    for run in map(replays.replay, rows):
        assert abs(run.errors["allocated"]) < 0.001, run.errors
        assert abs(run.errors["reserved"]) < 0.002, run.errors
        assert abs(run.errors["least"]) < 0.01, run.errors
