"""What a card needs beyond the peak: context, NCCL's buffers, slack and paged states. By hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import Optimizer, TrainingSetup, catalog, estimate, smallest_gpu
from estimator.answer.needs import need
from estimator.contract.setups import parse
from estimator.grid.needs import needs, needs_on_each
from estimator.parallel import strategies
from estimator.parallel.strategies import at_rest
from estimator.resident.overhead import (
    NOTHING,
    THREADS_PER_MULTIPROCESSOR,
    context_bytes,
    exchange_bytes,
    need_bytes,
    shown_bytes,
    workspace_bytes,
)
from estimator.run import checkpoints, loading
from estimator.step.timeline import structure
from estimator.values.range import Range
from estimator.values.specs import Gpu
from estimator.values.strategies import Strategy

MIB = 2**20
MODEL = parse(
    {
        "model": {
            "model_type": "llama",
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "vocab_size": 1000,
        }
    }
)[0]


def test_need_is_the_peak_plus_context_and_at_most_3_percent_slack():
    # an unknown card's context, 100 to 750 MiB; 3 % of the peak, rounded down
    low, high = need_bytes(1_000_050, 0, context_bytes(None))
    assert (low, high) == (1_000_050 + 100 * MIB, 1_000_050 + 750 * MIB + 30_001)


def test_paged_states_and_nccl_buffers_raise_the_right_ends_of_the_need():
    low, high = need_bytes(10**6, 0, NOTHING)
    assert need_bytes(10**6, 7000, NOTHING) == Range(low, high + 7000)
    assert need_bytes(10**6, 0, NOTHING, Range(11, 13)) == Range(low + 11, high + 13)


def test_a_context_grows_with_the_threads_that_a_card_can_hold():
    """By hand: 108 x 2048, 40 x 1024, 132 x 2048 and 128 x 1536 threads of 1 KiB; 7/4 to 11/4 of it, and 200 MiB."""
    for name, stacks in {
        "A100-SXM4-80GB": 216,
        "T4": 40,
        "H100-SXM5-80GB": 264,
        "GeForce RTX 4090": 192,
    }.items():
        expected = Range(7 * stacks // 4 * MIB, (11 * stacks // 4 + 200) * MIB)
        assert context_bytes(catalog.gpu(name)) == expected
        assert context_bytes(catalog.gpu(name), 2) == 2 * expected
    assert context_bytes(catalog.gpu("A100-SXM4-80GB")) == Range(378 * MIB, 794 * MIB)


@pytest.mark.parametrize("name", ["Instinct MI300X", "Apple M4 Max (64 GB)", "Gaudi 3"])
def test_a_card_without_known_multiprocessors_may_have_any_context(name):
    assert context_bytes(catalog.gpu(name)) == context_bytes(None) == Range(100 * MIB, 750 * MIB)


def test_every_card_with_known_multiprocessors_has_a_known_number_of_threads():
    known = [gpu for gpu in catalog.gpus().values() if gpu.multiprocessors]
    assert known
    assert {gpu.compute_capability for gpu in known} <= set(THREADS_PER_MULTIPROCESSOR)


@pytest.mark.parametrize("strategy", ["none", "ddp", "zero2", "zero3", "fsdp", "fsdp_grad_op"])
def test_what_lies_on_a_card_between_steps_is_the_same_with_any_kernel(strategy):
    # partitions, a checkpoint's gathers and what is loaded are of weights, which no kernel changes
    keys = {"gradient_checkpointing": True, "use_liger_kernel": True, "torch_compile": True}
    gpus = 1 if strategy == "none" else 2
    for method in ("full", "lora"):
        of = structure(TrainingSetup(method=method, strategy=strategy, num_gpus=gpus, **keys))
        rests = at_rest(of)
        assert rests != of
        assert strategies._resident(MODEL, of) == strategies._resident(MODEL, rests)
        assert checkpoints._checkpoint(MODEL, of, False) == checkpoints._checkpoint(
            MODEL, rests, False
        )
        assert loading._highest(MODEL, of) == loading._highest(MODEL, rests)


def test_each_card_is_judged_by_its_own_context():
    """Cards with equal workspaces differ in what they need by their contexts alone, in every way of asking."""
    keys = TrainingSetup(max_length=64)
    h200, h20 = catalog.gpu("H200-SXM-141GB"), catalog.gpu("H20-96GB")
    ends = {}
    for gpu in (h200, h20):
        of = estimate(MODEL, gpu, keys)
        ends[gpu.name] = of.need_low_bytes, of.need_high_bytes
        assert of.context_bytes == context_bytes(gpu)
        rough = need(MODEL, gpu, keys)
        in_arrays = needs(MODEL, gpu, keys, per_device_train_batch_size=[1])
        assert Range(in_arrays.low_bytes.item(), in_arrays.high_bytes.item()) == rough
    a100 = catalog.gpu("A100-SXM4-80GB")  # whose workspace is another, too
    on_each = needs_on_each(MODEL, (h200, a100, h20), keys, {"per_device_train_batch_size": [1]})
    for gpu, found in zip((h200, a100, h20), on_each, strict=True):
        assert Range(found.low_bytes.item(), found.high_bytes.item()) == need(MODEL, gpu, keys)
    # (132 - 78) x 2 MiB of stacks; kernels that run on more multiprocessors take temporaries of a few MiB more
    stacks = 7 * 54 * 2 * MIB // 4
    assert ends[h200.name][0] - ends[h20.name][0] == pytest.approx(stacks, abs=8 * MIB)
    # what fits a card with few multiprocessors does not fit one with as much memory and more of them
    few = replace(h20, memory_bytes=ends[h20.name][1])
    many = replace(h200, memory_bytes=few.memory_bytes)
    assert smallest_gpu(MODEL, (many, few), keys) == few


PAGED = [optimizer for optimizer in Optimizer if optimizer.startswith("paged")]


@pytest.mark.parametrize("optim", PAGED)
@pytest.mark.parametrize("gpus", [1, 2])
def test_paged_optimizer_states_count_only_in_the_worst_case(optim, gpus):
    keys = {"strategy": Strategy.DDP, "num_gpus": 2} if gpus == 2 else {}
    setup = TrainingSetup(optim=optim, max_length=64, **keys)
    of = estimate(MODEL, None, setup)
    # AdamW has two states, Lion one, AdEMAMix three, of 4 bytes, or of 1 byte except for the embedding's
    states = {"adamw": 2, "lion": 1, "ademamix": 3}[optim.split("_")[1]]
    trained, embedding = of.trainable_parameters, 1000 * 512
    size = trained + 3 * embedding if "8bit" in optim else 4 * trained
    assert of.paged_bytes == pytest.approx(states * size, rel=0.01)
    buffers = exchange_bytes(setup.mesh)
    least = of.needs.replay.least
    assert of.need_low_bytes == least + 100 * MIB + buffers.low
    assert of.need_high_bytes == least + 750 * MIB + buffers.high + of.paged_bytes
    peak = of.decisive.bytes
    assert need(MODEL, None, setup) == Range(
        peak + 100 * MIB + buffers.low,
        peak + 750 * MIB + buffers.high + 3 * peak // 100 + of.paged_bytes,
    )


@pytest.mark.parametrize(
    ("gpus", "high"), [(2, 544), (3, 688), (4, 688), (5, 1600), (8, 1600), (64, 1600)]
)
def test_a_communicator_takes_more_for_more_gpus(gpus, high):
    setup = TrainingSetup(strategy=Strategy.DDP, num_gpus=gpus)
    assert exchange_bytes(setup.mesh) == Range(256 * MIB, high * MIB)


def test_hsdp_has_one_communicator_for_shards_and_one_for_replicas():
    setup = TrainingSetup(strategy=Strategy.HSDP, num_gpus=8, dp_replicate_size=2)
    assert exchange_bytes(setup.mesh) == Range(2 * 256 * MIB, (688 + 544) * MIB)


def test_each_of_two_handles_has_a_workspace_which_is_larger_on_hopper():
    hopper = Gpu(name="card", memory_bytes=2**36, compute_capability="9.0")
    assert workspace_bytes(None) == 2 * (8 * MIB + 128 * 1024)
    assert workspace_bytes(hopper) == 2 * 32 * MIB


@pytest.mark.parametrize(("gpus", "shares"), [(1, (1, 8, 33)), (2, (5, 26, 55))])
def test_nvidia_smi_shows_the_peak_and_cached_blocks(gpus, shares):
    assert shown_bytes(10**6, 0, gpus, None) == tuple(10**4 * (100 + share) for share in shares)


def test_nvidia_smi_value_is_between_the_need_and_the_card_s_memory():
    card = Gpu(name="card", memory_bytes=2**30)
    assert shown_bytes(2**30 - 1000, 2**30 - 500, 1, card) == (2**30, 2**30, 2**30)
    assert shown_bytes(1000, 2**29, 1, card) == (2**29, 2**29, 2**29)
