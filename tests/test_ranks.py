"""Ranks that hold less than the fullest rank, and the rank that saves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from estimator import Method, TrainingSetup, catalog, estimate
from estimator.answer.ranks import Rank, rank_0_writes, ranks
from estimator.contract.estimates import write_estimate
from estimator.parallel.computed import computed_width
from estimator.parallel.offload import node_bytes
from estimator.parallel.zero_partitions import kept_gradients
from estimator.values.specs import Model, Offload
from estimator.values.strategies import Strategy
from tests.rows import for_each

MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
GPT2 = catalog.model("openai-community/gpt2")
"""50,257 tokens, which 8 does not divide; all its other row counts are divisible by 8."""


def of(model: Model, strategy: Strategy, num_gpus: int = 8, **keys: object) -> tuple[Rank, ...]:
    setup = TrainingSetup(strategy=strategy, num_gpus=num_gpus, **keys)
    return ranks(estimate(model, None, setup))


def test_one_gpu_lists_no_ranks():
    assert ranks(estimate(MISTRAL, None, TrainingSetup())) == ()


def test_ranks_are_identical_if_rows_divide_evenly_and_none_saves():
    """Mistral's 32,000 words, 4,096, 1,024 and 14,336 rows are all multiples of 8."""
    for strategy in (Strategy.FSDP, Strategy.DDP, Strategy.ZERO3):
        assert of(MISTRAL, strategy, save_strategy="no") == ()


def test_rank_0_saves_and_holds_the_checkpoint_in_host_memory():
    first, others = of(MISTRAL, Strategy.DDP)
    assert (first.ranks, first.gpus, first.saves) == ("0", 1, True)
    assert (others.ranks, others.gpus, others.saves) == ("1-7", 7, False)
    assert first.peak_bytes == others.peak_bytes
    assert first.host_bytes >= others.host_bytes


@pytest.mark.parametrize(
    "keys",
    [
        {"objective": "dpo", "strategy": "ddp", "dtype": "float32", "gradient_checkpointing": True},
        {"objective": "kto", "strategy": "fsdp", "per_device_train_batch_size": 2},
        {"objective": "grpo", "strategy": "zero2", "max_completion_length": 8, "beta": 0.1}
        | {"num_generations": 2},
    ],
)
def test_the_fullest_rank_has_the_step_s_peak_in_whichever_pass(keys):
    answer = estimate(GPT2, None, TrainingSetup(num_gpus=2, max_length=64, **keys))
    assert ranks(answer)[0].peak_bytes == answer.peak.bytes


def test_the_last_rank_of_fsdp_has_fewer_rows_of_the_states():
    """By hand: 6,283 rows on seven ranks and 6,276 on the last, 768 wide, two float32 states: 7 · 768 · 8 bytes."""
    fullest, *_, last = of(GPT2, Strategy.FSDP, save_strategy="no")
    assert (fullest.ranks, last.ranks) == ("0-6", "7")
    assert fullest.peak_bytes - last.peak_bytes == 7 * 768 * 8


def test_every_hsdp_replica_has_a_smaller_last_rank():
    last = of(GPT2, Strategy.HSDP, 16, dp_replicate_size=2, save_strategy="no")[-1]
    assert (last.ranks, last.gpus) == ("7, 15", 2)


def test_one_rank_may_hold_a_remainder():
    """By hand: of 50,257 rows on 1,000 GPUs the first 985 hold 51 each, the next 22 and the others none."""
    assert "985" in [rank.ranks for rank in of(GPT2, Strategy.FSDP, 1000, save_strategy="no")]


def test_with_more_ranks_than_rows_some_hold_none():
    """GPT-2's norms have 768 rows: on 1,000 GPUs the last 232 hold none."""
    last = of(GPT2, Strategy.FSDP, 1000, save_strategy="no")[-1]
    assert last.ranks.endswith("999")
    assert sum(rank.gpus for rank in of(GPT2, Strategy.FSDP, 1000)) == 1000


@pytest.mark.parametrize("model", [MISTRAL, GPT2], ids=["mistral", "gpt2"])
@pytest.mark.parametrize(
    "keys",
    [
        {"strategy": Strategy.FSDP, "num_gpus": 3},
        {"strategy": Strategy.ZERO1, "num_gpus": 7},
        {"strategy": Strategy.ZERO2, "num_gpus": 7, "gradient_accumulation_steps": 2},
        {"strategy": Strategy.ZERO2, "num_gpus": 64},
        {"strategy": Strategy.HSDP, "num_gpus": 6, "dp_replicate_size": 2},
    ],
    ids=lambda keys: f"{keys['strategy']} {keys['num_gpus']}",
)
def test_the_estimate_is_of_the_fullest_rank(model, keys):
    answer = estimate(model, None, TrainingSetup(**keys))
    found = ranks(answer)
    assert sum(rank.gpus for rank in found) == answer.setup.mesh.num_gpus
    fullest = found[0]
    assert fullest.peak_bytes == answer.peak.bytes
    assert (fullest.need_low_bytes, fullest.need_high_bytes) == (
        answer.need_low_bytes,
        answer.need_high_bytes,
    )
    assert all(first.peak_bytes >= second.peak_bytes for first, second in pairwise(found))


def test_zero2_ranks_differ_by_the_tensors_their_bounds_cut():
    """The fullest holds ``gradients_in_partition``; the others at least their part, 2 bytes · N / 7."""
    setup = TrainingSetup(strategy=Strategy.ZERO2, num_gpus=7, gradient_accumulation_steps=2)
    found = of(GPT2, Strategy.ZERO2, 7, gradient_accumulation_steps=2)
    most = computed_width(setup.precision) * max(
        kept_gradients(GPT2, setup.adapters, setup.mesh.num_gpus)
    )
    assert 0 < found[0].peak_bytes - found[-1].peak_bytes < most - 2 * 124_439_808 // 7 + 1024


def test_the_contract_writes_one_object_per_kind_of_rank():
    written = write_estimate(
        estimate(GPT2, None, TrainingSetup(strategy=Strategy.FSDP, num_gpus=8))
    )
    entries = written["per_gpu"]
    assert [entry["ranks"] for entry in entries] == ["0", "1-6", "7"]
    assert entries[0]["peak_bytes"] == written["peak_bytes"]
    assert write_estimate(estimate(GPT2, None, TrainingSetup()))["per_gpu"] == []


EVERY_SHARING = [
    (strategy, number)
    for strategy in Strategy
    if strategy not in {Strategy.NONE, Strategy.DEVICE_MAP}
    for number in (2, 3, 7, 8)
    if strategy is not Strategy.HSDP or number == 8
]


@for_each(("strategy", "number"), EVERY_SHARING)
@for_each("model", [MISTRAL, GPT2])
@for_each("saves", ["no", "epoch"])
def test_identical_ranks_share_one_entry(model, strategy, number, saves):
    groups = 2 if strategy is Strategy.HSDP else 1
    found = of(model, strategy, number, dp_replicate_size=groups, save_strategy=saves)
    assert len({rank[2:] for rank in found}) == len(found) != 1
    assert sum(rank.gpus for rank in found) in {0, number}
    assert [rank.ranks for rank in found if rank.saves] in ([], ["0"])


@pytest.mark.parametrize(
    ("strategy", "keys", "writes"),
    [
        # transformers 5.23, Trainer.save_model: only process 0 gets past the first line of _save
        (Strategy.DDP, {}, True),
        (Strategy.ZERO1, {}, True),
        (Strategy.ZERO2, {}, True),
        # accelerate 1.15, get_state_dict raises ValueError, and DeepSpeed's own checkpoint is each process's part
        (Strategy.ZERO3, {}, False),
        (Strategy.ZERO3, {"zero3_save_16bit_model": True}, True),
        (Strategy.ZERO3, {"method": Method.LORA}, True),
        (Strategy.FSDP, {}, True),
        # save_model writes only where the type is FULL_STATE_DICT
        (Strategy.FSDP, {"fsdp_state_dict_type": "SHARDED_STATE_DICT"}, False),
        (Strategy.DDP, {"save_strategy": "no"}, False),
    ],
)
def test_rank_0_writes_the_model_if_trainer_does(strategy, keys, writes):
    setup = TrainingSetup(strategy=strategy, num_gpus=4, **keys)
    assert rank_0_writes(setup) is writes
    found = of(MISTRAL, strategy, 4, **keys)
    assert [rank.ranks for rank in found if rank.saves] == ["0"] * writes


def test_a_rank_that_does_not_write_copies_its_weights_beside_what_its_machine_offloads():
    # DeepSpeed's state_dict under stage 2: 2 bytes of each weight in every process, besides the optimizer's on the host
    keys = {"strategy": Strategy.ZERO2, "num_gpus": 4, "offload_optimizer": Offload.CPU}
    setup = TrainingSetup(**keys)
    others = [rank for rank in ranks(estimate(MISTRAL, None, setup)) if not rank.saves]
    held = node_bytes(MISTRAL, setup)[0]
    assert held > 12 * 7_241_732_096
    assert {rank.host_bytes for rank in others} == {held + 2 * 7_241_732_096}


def test_under_zero2_every_process_copies_weights_to_its_host_and_rank_0_writes():
    first, others = of(MISTRAL, Strategy.ZERO2, 2)
    assert (first.ranks, first.saves, others.saves) == ("0", True, False)
    assert first.host_bytes == others.host_bytes > 2 * 7_241_732_096 - 1
