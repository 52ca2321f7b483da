"""Saving: checkpoints on the disk, copies on the GPU and on the host. Numbers by hand from the models' shapes."""

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


def test_a_full_checkpoint_is_the_weights_and_two_states_in_their_dtype():
    assert checkpoint_bytes(resident(MISTRAL, FULL), FULL) == 2 * N + 2 * 2 * N
    only = replace(FULL, save_only_model=True)
    assert checkpoint_bytes(resident(MISTRAL, only), only) == 2 * N


def test_a_checkpoint_of_adapters_holds_no_base():
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
        ({"save_strategy": "steps"}, 20),  # 10,000 steps, one in 500
        ({"save_strategy": "steps", "num_train_epochs": 1.5}, 30),
        ({"save_strategy": "steps", "num_train_examples": 10_001}, 21),  # and one at the end
        ({"save_strategy": "best"}, 0),  # nothing is evaluated
        ({"save_strategy": "best", "eval_strategy": "epoch", "num_train_epochs": 2.0}, 2),
    ],
)
def test_how_many_checkpoints_lie_there_together(keys, count):
    assert checkpoints_at_once(replace(FULL, **keys)) == count


def test_the_disk_of_a_run_is_that_of_its_checkpoints():
    answer = estimate(MISTRAL, None, replace(FULL, num_train_epochs=3.0, save_total_limit=1))
    assert answer.run_disk_bytes == 2 * answer.disk_bytes


def test_saving_takes_no_gradients_and_nothing_on_top_of_a_dense_model():
    moment = estimate(MISTRAL, None, FULL).phases[Phase.SAVE]
    assert set(moment.resident) == {
        Component.WEIGHTS,
        Component.OPTIMIZER_STATES,
        Component.WORKSPACE,
    }


def test_saving_a_mixture_copies_every_layers_gates_and_ups():
    # measured on tiny Mixtral, OLMoE, Qwen2-MoE and Qwen3-MoE with transformers 5.23: the storages that
    # revert_weight_conversion makes sum to those of all gate_up_proj
    copied = 32 * 8 * 2 * F * H * 2
    assert taken_apart_bytes(MIXTRAL, FULL) == copied
    moment = save_moment(MIXTRAL, FULL, resident(MIXTRAL, FULL), 0)
    assert moment.resident[Component.TEMPORARIES] == copied
    adapters = replace(LORA, lora_target_modules=("q_proj", "v_proj"))
    beside = save_moment(MIXTRAL, adapters, resident(MIXTRAL, adapters), 0)
    assert Component.TEMPORARIES not in beside.resident, "adapters are saved alone"


def test_saving_never_needs_more_than_a_step():
    # what is copied is a part of the weights, and each weight has had its gradient
    setup = TrainingSetup(optim=Optimizer.SGD, gradient_checkpointing=True, max_length=128)
    answer = estimate(MIXTRAL, None, setup)
    assert answer.phases[Phase.SAVE].bytes < answer.phases[Phase.OPTIMIZER_STEP].bytes


def test_merging_a_mixture_may_need_more_than_training_its_adapters():
    adapters = replace(LORA, lora_target_modules=("q_proj", "v_proj"), gradient_checkpointing=True)
    merging = merge_moment(MIXTRAL, adapters, resident(MIXTRAL, adapters), 0).bytes
    assert merging > estimate(MIXTRAL, None, adapters).peak.bytes


def test_the_host_holds_one_file_of_weights_at_most():
    assert save_host_bytes(MISTRAL, FULL, resident(MISTRAL, FULL)) == 2 * N
    assert save_host_bytes(MIXTRAL, FULL, resident(MIXTRAL, FULL)) == FILE_BYTES


def test_merging_holds_the_product_and_its_scaled_copy():
    assert merging_module_bytes(MISTRAL, LORA) == 2 * 4 * H * F
    narrow = replace(LORA, autocast_adapter_dtype=False)
    assert merging_module_bytes(MISTRAL, narrow) == 2 * 2 * H * F


def test_merging_over_4_bits_holds_the_base_unpacked_the_product_their_sum_and_the_sum_again():
    count = H * F
    packed = count // 2 + count // 64 + 4 * count // (64 * 256) + 512 + 1024 + 512
    scales = 2 * 4 * count // 64
    assert merging_module_bytes(MISTRAL, QLORA) == (2 + 4 + 4 + 4) * count + scales + packed


def test_merging_over_8_bits_unpacks_to_float32():
    eight = replace(LORA, load_in_8bit=True)
    assert merging_module_bytes(MISTRAL, eight) == (4 + 4 + 4 + 2 + 1) * H * F
    packed = resident(MISTRAL, eight)
    assert merged_bytes(MISTRAL, eight, packed) == packed.weights


def test_merging_dora_holds_a_copy_of_the_base_and_the_sum_before_and_after_its_scaling():
    """Counted storage by storage in peft 0.21.2 on the meta device: 16, 8 and 16 bytes an element."""
    dora, count = replace(LORA, use_dora=True), H * F
    assert merging_module_bytes(MISTRAL, dora) == (4 + 2 + 4 + 4 + 2) * count
    narrow = replace(dora, autocast_adapter_dtype=False)
    assert merging_module_bytes(MISTRAL, narrow) == (2 + 2 + 2 + 2) * count
    wide = replace(dora, dtype=Dtype.FLOAT32)
    assert merging_module_bytes(MISTRAL, wide) == (4 + 4 + 4 + 4) * count


def test_merging_dora_over_a_packed_base_unpacks_it_twice_more():
    """By hand, from ``merge`` and ``merge_safe``: the caller's unpacked weight and one of DoRA's own."""
    four = replace(QLORA, use_dora=True)
    assert merging_module_bytes(MISTRAL, four) == (4 + 2 + 4 + 4 + 2 + 2 + 2) * H * F
    eight = replace(LORA, use_dora=True, load_in_8bit=True)
    assert merging_module_bytes(MISTRAL, eight) == (4 + 4 + 4 + 4 + 4 + 4) * H * F


def test_merged_weights_are_as_large_as_the_base_they_were_merged_into():
    assert merged_bytes(MISTRAL, LORA, resident(MISTRAL, LORA)) == 2 * N
    four = resident(MISTRAL, QLORA)
    assert merged_bytes(MISTRAL, QLORA, four) == four.weights
    whole = in_16_bits(replace(QLORA, dtype=Dtype.FLOAT32))
    assert merged_bytes(MISTRAL, whole, resident(MISTRAL, whole)) == 2 * N
    assert merge_moment(MISTRAL, whole, resident(MISTRAL, whole), 0).bytes > 2 * N
