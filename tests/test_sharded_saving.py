"""Saving from several ranks. Unless said otherwise, numbers are by hand for 8 ranks and AdamW."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from estimator import catalog, estimate
from estimator.answer.verdict import beyond_the_step
from estimator.contract.setups import parse
from estimator.parallel.combinations import refusal
from estimator.parallel.strategies import resident_memory
from estimator.run.checkpoints import checkpoint, gathers_to_save, save_moment
from estimator.run.sharded_saving import (
    fsdp_full,
    fsdp_sharded,
    write_seconds,
    zero3_divided,
    zero3_gathered,
    zero_replicated,
)
from estimator.step.timeline import structure
from estimator.values.methods import Method
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
    FULL_STATE_DICT,
    SHARDED_STATE_DICT,
    Component,
    Dtype,
    MixedPrecision,
    Optimizer,
    Phase,
)
from estimator.values.strategies import Strategy

N, HEAD = 8_000_000_000, 128_256 * 4096
WEIGHTS, STATES = 4 * N, 8 * N
MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
MIXTRAL = catalog.model("mistralai/Mixtral-8x7B-v0.1")
SMALL = catalog.model("HuggingFaceTB/SmolLM2-135M")
PARAMETERS, VOCABULARY, HIDDEN = 7_241_732_096, 32_000, 4096
ON_8 = TrainingSetup(num_gpus=8, strategy=Strategy.FSDP)


def saved(setup, model=MISTRAL):
    return checkpoint(model, setup)


def about(size):
    """Allows for states of small tensors: rounded by the allocator, each with a step counter of 512 bytes."""
    return pytest.approx(size, rel=5e-4)


def test_a_full_state_dict_gathers_one_tensor_on_the_gpu_and_all_on_rank_0():
    save = fsdp_full(WEIGHTS, 4 * HEAD, WEIGHTS, WEIGHTS, STATES, only_model=False)
    assert save.gpu_bytes == 4 * HEAD
    assert (save.rank0_host_bytes, save.other_host_bytes) == (STATES, 0)
    assert save.disk_bytes == 2 * WEIGHTS + STATES


def test_fsdp_saves_weights_that_accelerate_upcast_in_float32():
    # bfloat16 weights under mixed precision: float32 shards; on disk, weights twice and AdamW's two states
    save = saved(ON_8)
    assert save.gpu_bytes == 4 * VOCABULARY * HIDDEN
    assert save.rank0_host_bytes == about(8 * PARAMETERS)
    assert save.disk_bytes == about((4 + 4 + 8) * PARAMETERS)
    plain = saved(replace(ON_8, mixed_precision=MixedPrecision.NO))
    assert plain.disk_bytes == about((2 + 2 + 4) * PARAMETERS)
    only = saved(replace(ON_8, save_only_model=True))
    assert only.disk_bytes == 4 * PARAMETERS
    assert only.rank0_host_bytes == about(4 * PARAMETERS)


def test_sharded_state_dicts_are_copied_to_each_ranks_own_host():
    assert fsdp_sharded(WEIGHTS, STATES, 8).rank0_host_bytes == N
    save = saved(replace(ON_8, fsdp_state_dict_type=SHARDED_STATE_DICT))
    assert save.gpu_bytes == 0
    assert save.rank0_host_bytes == save.other_host_bytes == about(8 * PARAMETERS // 8)
    assert save.disk_bytes == about((4 + 8) * PARAMETERS)


def test_only_adapters_are_written_but_rank_0_receives_the_whole_base():
    lora = replace(ON_8, method=Method.LORA)
    save = saved(lora)
    assert save.disk_bytes == about(41_943_040 * 4 * (2 + 2))
    assert save.rank0_host_bytes == about(2 * PARAMETERS + 4 * 41_943_040)
    assert saved(replace(lora, fsdp_state_dict_type=SHARDED_STATE_DICT)).disk_bytes == about(
        41_943_040 * 4 * (1 + 2)
    )


# Bytes of the files that accelerate 1.15's save_fsdp_model and save_fsdp_optimizer and save_pretrained wrote of a
# fully_shard model on two processes (gloo, torch 2.13), and what a tied head of 4,001 x 256 takes; headers included.
LLAMA = {
    "model_type": "llama",
    "vocab_size": 4001,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
WRITTEN = {
    "full": ({}, 12_920_008 + 12_927_501 + 17_661_491),
    "full, adapters": (
        {"method": "lora", "lora_r": 8, "lora_target_modules": ["q_proj", "v_proj"]},
        58_392 + 4_159_790 + 122_903,
    ),
    "sharded": (
        {"fsdp_state_dict_type": "SHARDED_STATE_DICT"},
        6_493_021 + 6_490_973 + 8_886_417 + 8_928_719,
    ),
}


@pytest.mark.parametrize(("keys", "written"), WRITTEN.values(), ids=WRITTEN)
def test_file_sizes_match_files_really_written(keys, written):
    on_2 = {"num_gpus": 2, "strategy": "fsdp", "dtype": "float32", "mixed_precision": "no"}
    model, _, setup = parse({"model": LLAMA, **on_2, **keys})
    assert checkpoint(model, setup).disk_bytes == pytest.approx(written, rel=0.01)


def test_an_uneven_head_is_gathered_with_its_padding():
    # 49,152 rows on 5 ranks: 9,831 each, 49,155 gathered, of 576 columns in float32
    setup = replace(ON_8, num_gpus=5)
    assert saved(setup, SMALL).gpu_bytes == 49_155 * 576 * 4


def test_zero_1_and_2_clone_the_weights_to_every_ranks_host():
    save = zero_replicated(2 * N, 2 * N, 12 * N, 4 * N // 8)
    assert save.rank0_host_bytes == save.other_host_bytes == 2 * N
    assert save.disk_bytes == 2 * 2 * N + 12 * N
    real = saved(replace(ON_8, strategy=Strategy.ZERO2))
    assert real.disk_bytes == about(16 * PARAMETERS)
    adapters = saved(replace(ON_8, strategy=Strategy.ZERO2, method=Method.LORA))
    assert adapters.disk_bytes == about(41_943_040 * (2 + 2 + 12))
    assert adapters.other_host_bytes == about(2 * (PARAMETERS + 41_943_040))


def test_zero_3_gathers_adapters_always_and_weights_only_on_request():
    gathered = zero3_gathered(2 * N, 2 * HEAD, 12 * N, 4 * 10**9)
    assert gathered.gpu_bytes == 2 * HEAD
    assert gathered.rank0_host_bytes == 2 * N
    assert gathered.disk_bytes == 14 * N
    assert zero3_divided(12 * N, 4 * 10**9).disk_bytes == 12 * N
    zero3 = replace(ON_8, strategy=Strategy.ZERO3)
    assert saved(zero3).gpu_bytes == 0
    assert saved(zero3).disk_bytes == about(12 * PARAMETERS)
    assert saved(replace(zero3, save_only_model=True)) == saved(zero3)
    told = saved(replace(zero3, zero3_save_16bit_model=True))
    assert told.gpu_bytes == 2 * VOCABULARY * HIDDEN
    assert told.disk_bytes == about(14 * PARAMETERS)
    assert told.other_host_bytes == 4 * PARAMETERS // 8
    adapters = saved(replace(zero3, method=Method.LORA, save_only_model=True))
    assert (adapters.gpu_bytes, adapters.disk_bytes) == (2 * VOCABULARY * HIDDEN, 2 * 41_943_040)


def test_a_float32_zero_3_checkpoint_contains_its_weights():
    setup = replace(
        ON_8, strategy=Strategy.ZERO3, dtype=Dtype.FLOAT32, mixed_precision=MixedPrecision.NO
    )
    assert saved(setup).disk_bytes == about(12 * PARAMETERS)


def test_only_rank_0_saves_replicated_weights():
    ddp = saved(replace(ON_8, strategy=Strategy.DDP))
    alone = saved(TrainingSetup())
    assert ddp == alone
    assert ddp.other_host_bytes == 0


def test_gathered_experts_are_split_on_the_host():
    assert saved(ON_8, MIXTRAL).gpu_bytes < saved(TrainingSetup(), MIXTRAL).gpu_bytes
    moment = save_moment(MIXTRAL, ON_8, resident_memory(MIXTRAL, structure(ON_8)), 0)
    assert Component.TEMPORARIES not in moment.resident


def test_trainer_refuses_sharded_state_dicts_without_optimizer_states():
    setup = replace(ON_8, save_only_model=True, fsdp_state_dict_type=SHARDED_STATE_DICT)
    assert "take FULL_STATE_DICT" in (refusal(setup) or "")


def test_an_estimate_includes_its_strategys_disk_and_host_memory():
    answer = estimate(MISTRAL, None, replace(ON_8, num_train_epochs=3.0))
    assert answer.disk_bytes == about(16 * PARAMETERS)
    assert answer.run_disk_bytes == about(3 * 16 * PARAMETERS)
    assert answer.host_bytes == about(8 * PARAMETERS)
    never = estimate(MISTRAL, None, replace(ON_8, save_strategy="no"))
    assert (never.run_disk_bytes, never.host_bytes) == (0, about(2 * PARAMETERS))


@settings(max_examples=60)
@given(
    model=st.sampled_from([SMALL, MISTRAL, MIXTRAL]),
    setup=st.builds(
        TrainingSetup,
        num_gpus=st.sampled_from([2, 5, 8, 64]),
        strategy=st.sampled_from([Strategy.FSDP, Strategy.FSDP_GRAD_OP, Strategy.ZERO3]),
        method=st.sampled_from(Method),
        mixed_precision=st.sampled_from([MixedPrecision.NO, MixedPrecision.BF16]),
        dtype=st.sampled_from([Dtype.BFLOAT16, Dtype.FLOAT32]),
        optim=st.sampled_from([Optimizer.ADAMW_TORCH_FUSED, Optimizer.SGD]),
        max_length=st.sampled_from([1, 64, 1024]),
        gradient_checkpointing=st.booleans(),
        fsdp_state_dict_type=st.sampled_from([FULL_STATE_DICT, SHARDED_STATE_DICT]),
        zero3_save_16bit_model=st.booleans(),
        bnb_4bit_quant_storage=st.just("bfloat16"),
    ),
)
def test_saving_gathers_no_more_than_training(model, setup):
    # so saving never sets the peak; if it ever did, the need would count it and a sentence say how to avoid it
    assume(refusal(setup) is None and not (model is MIXTRAL and setup.adapters.uses_adapters))
    answer = estimate(model, None, setup)
    assert answer.phases[Phase.SAVE].bytes <= answer.peak.bytes
    assert beyond_the_step(answer.phases[Phase.SAVE], setup).startswith("Saving needs more")
    if not gathers_to_save(setup):
        assert answer.phases[Phase.SAVE].name == "saving a checkpoint"


@pytest.mark.parametrize("speed", [0, -1.0, float("nan")])
def test_a_disk_with_an_invalid_speed_is_refused(speed):
    with pytest.raises(ValueError, match="give the disk's speed"):
        write_seconds(1, speed)
