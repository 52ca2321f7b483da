"""Saving: checkpoints on disk, copies on the GPU and the host. Numbers by hand from the models' shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import Component, Method, Optimizer, Phase, TrainingSetup, catalog, estimate
from estimator.parallel.strategies import resident_memory
from estimator.run.checkpoints import save_moment
from estimator.run.saving import (
    FILE_BYTES,
    checkpoint_bytes,
    checkpoints_at_once,
    in_16_bits,
    merge_moment,
    merged_bytes,
    merging_module_bytes,
    save_host_bytes,
    taken_apart_bytes,
)
from estimator.step.timeline import structure
from estimator.values.specs import Dtype

MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
MIXTRAL = catalog.model("mistralai/Mixtral-8x7B-v0.1")
N, H, F = 7_241_732_096, 4096, 14336  # the Hub's count of Mistral 7B
FULL = TrainingSetup(optim=Optimizer.ADAMW_TORCH)
LORA, QLORA = replace(FULL, method=Method.LORA), replace(FULL, method=Method.QLORA)


def resident(model, setup):
    return resident_memory(model, structure(setup))


def test_a_full_checkpoint_is_weights_and_two_states_in_their_dtype():
    assert checkpoint_bytes(resident(MISTRAL, FULL), FULL) == 2 * N + 2 * 2 * N
    only = replace(FULL, save_only_model=True)
    assert checkpoint_bytes(resident(MISTRAL, only), only) == 2 * N


def test_an_adapter_checkpoint_excludes_the_base():
    # r = 16 on seven linears of 32 layers: 16 · (4 · 2h + 2 · (h + kv) ... ) = 41,943,040 in float32, and two states
    assert checkpoint_bytes(resident(MISTRAL, LORA), LORA) == 41_943_040 * 4 * 3
    assert estimate(MISTRAL, None, QLORA).disk_bytes == 41_943_040 * 4 * 3


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        ({"save_strategy": "no"}, 0),
        ({"num_train_epochs": 3.0}, 3),
        ({"num_train_epochs": 2.5}, 3),
        ({"num_train_epochs": 3.0, "save_total_limit": 1}, 2),
        ({"num_train_epochs": 3.0, "save_total_limit": 5}, 3),
        ({"save_strategy": "steps"}, 20),  # 10,000 steps, one checkpoint every 500
        ({"save_strategy": "steps", "num_train_epochs": 1.5}, 30),
        ({"save_strategy": "steps", "num_train_examples": 10_001}, 21),  # plus one at the end
        ({"save_strategy": "best"}, 0),  # no evaluation
        ({"save_strategy": "best", "eval_strategy": "epoch", "num_train_epochs": 2.0}, 2),
    ],
)
def test_checkpoints_at_once_counts_what_is_on_disk_together(keys, count):
    assert checkpoints_at_once(replace(FULL, **keys)) == count


def test_a_runs_disk_need_is_its_checkpoints():
    answer = estimate(MISTRAL, None, replace(FULL, num_train_epochs=3.0, save_total_limit=1))
    assert answer.run_disk_bytes == 2 * answer.disk_bytes


def test_saving_a_dense_model_holds_no_gradients_and_no_copies():
    moment = estimate(MISTRAL, None, FULL).phases[Phase.SAVE]
    assert set(moment.resident) == {
        Component.WEIGHTS,
        Component.OPTIMIZER_STATES,
        Component.WORKSPACE,
    }


def test_saving_a_mixture_of_experts_copies_every_gate_and_up_projection():
    # measured on tiny Mixtral, OLMoE, Qwen2-MoE and Qwen3-MoE with transformers 5.23: the storages made by
    # revert_weight_conversion add up to all gate_up_proj
    copied = 32 * 8 * 2 * F * H * 2
    assert taken_apart_bytes(MIXTRAL, FULL) == copied
    moment = save_moment(MIXTRAL, FULL, resident(MIXTRAL, FULL), 0)
    assert moment.resident[Component.TEMPORARIES] == copied
    adapters = replace(LORA, lora_target_modules=("q_proj", "v_proj"))
    beside = save_moment(MIXTRAL, adapters, resident(MIXTRAL, adapters), 0)
    assert Component.TEMPORARIES not in beside.resident, "adapters are saved alone"


def test_saving_never_needs_more_than_a_step():
    # only a part of the weights is copied, and during the step each weight had a gradient
    setup = TrainingSetup(optim=Optimizer.SGD, gradient_checkpointing=True, max_length=128)
    answer = estimate(MIXTRAL, None, setup)
    assert answer.phases[Phase.SAVE].bytes < answer.phases[Phase.OPTIMIZER_STEP].bytes


def test_merging_a_mixture_of_experts_may_need_more_than_training_adapters():
    adapters = replace(LORA, lora_target_modules=("q_proj", "v_proj"), gradient_checkpointing=True)
    merging = merge_moment(MIXTRAL, adapters, resident(MIXTRAL, adapters), 0).bytes
    assert merging > estimate(MIXTRAL, None, adapters).peak.bytes


def test_the_host_holds_at_most_one_file_of_weights():
    assert save_host_bytes(MISTRAL, FULL, resident(MISTRAL, FULL)) == 2 * N
    assert save_host_bytes(MIXTRAL, FULL, resident(MIXTRAL, FULL)) == FILE_BYTES


def test_merging_holds_the_product_and_its_scaled_copy():
    assert merging_module_bytes(MISTRAL, LORA) == 2 * 4 * H * F
    narrow = replace(LORA, autocast_adapter_dtype=False)
    assert merging_module_bytes(MISTRAL, narrow) == 2 * 2 * H * F


def test_merging_into_4_bits_holds_base_product_sum_and_a_copy_of_the_sum():
    count = H * F
    packed = count // 2 + count // 64 + 4 * count // (64 * 256) + 512 + 1024 + 512
    scales = 2 * 4 * count // 64
    assert merging_module_bytes(MISTRAL, QLORA) == (2 + 4 + 4 + 4) * count + scales + packed


def test_merging_into_8_bits_dequantises_to_float32():
    eight = replace(LORA, load_in_8bit=True)
    assert merging_module_bytes(MISTRAL, eight) == (4 + 4 + 4 + 2 + 1) * H * F
    packed = resident(MISTRAL, eight)
    assert merged_bytes(MISTRAL, eight.adapters, eight.precision, packed) == packed.weights


def test_merging_dora_holds_the_base_and_the_sum_before_and_after_scaling():
    """Counted storage by storage in peft 0.21.2 on the meta device: 16, 8 and 16 bytes per element."""
    dora, count = replace(LORA, use_dora=True), H * F
    assert merging_module_bytes(MISTRAL, dora) == (4 + 2 + 4 + 4 + 2) * count
    narrow = replace(dora, autocast_adapter_dtype=False)
    assert merging_module_bytes(MISTRAL, narrow) == (2 + 2 + 2 + 2) * count
    wide = replace(dora, dtype=Dtype.FLOAT32)
    assert merging_module_bytes(MISTRAL, wide) == (4 + 4 + 4 + 4) * count


def test_merging_dora_into_a_quantised_base_dequantises_it_twice_more():
    """By hand, from ``merge`` and ``merge_safe``: the caller's dequantised weight and DoRA's own."""
    four = replace(QLORA, use_dora=True)
    assert merging_module_bytes(MISTRAL, four) == (4 + 2 + 4 + 4 + 2 + 2 + 2) * H * F
    eight = replace(LORA, use_dora=True, load_in_8bit=True)
    assert merging_module_bytes(MISTRAL, eight) == (4 + 4 + 4 + 4 + 4 + 4) * H * F


def test_merged_weights_are_as_large_as_the_base():
    assert merged_bytes(MISTRAL, LORA.adapters, LORA.precision, resident(MISTRAL, LORA)) == 2 * N
    four = resident(MISTRAL, QLORA)
    assert merged_bytes(MISTRAL, QLORA.adapters, QLORA.precision, four) == four.weights
    whole = in_16_bits(replace(QLORA, dtype=Dtype.FLOAT32))
    assert merged_bytes(MISTRAL, whole.adapters, whole.precision, resident(MISTRAL, whole)) == 2 * N
    assert merge_moment(MISTRAL, whole, resident(MISTRAL, whole), 0).bytes > 2 * N
