"""What PEFT adds beyond plain LoRA: fully trained module copies, DoRA, and an LLM.int8 base.

Numbers are by hand; tests/test_reference.py compares steps with traced ones ("PEFT").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator import (
    Component,
    Dtype,
    Method,
    MixedPrecision,
    Model,
    Phase,
    TrainingSetup,
    estimate,
)
from estimator.contract.setups import parse, read_setup
from estimator.families.adapters import adapter_parameters, trainable_parameters
from estimator.families.model_tree import total_parameters
from estimator.families.modules import TINY_LLAMA
from estimator.parallel.placements import adapter_bytes, trainable_tensors
from estimator.resident.optimizer import Trainable
from estimator.values.results import Estimate

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
V, H = 8192, 512
EMBEDDING = V * H
PURE = {"mixed_precision": "no"}
CHECKPOINTED = {"gradient_checkpointing": True}


def told(model: dict[str, Any], keys: dict[str, Any]) -> Estimate:
    return estimate(*parse({"model": model} | keys))


# --- modules_to_save ------------------------------------------------------------------------------


def lora(**keys: Any) -> TrainingSetup:
    return TrainingSetup(method=Method.LORA, **keys)


def test_a_copied_module_adds_its_parameters_and_the_original_stays():
    plain, copied = lora(), lora(modules_to_save=("embed_tokens",))
    added = 10 * 8  # TINY_LLAMA's vocabulary × its width
    assert (
        adapter_parameters(TINY_LLAMA, copied.adapters)
        == adapter_parameters(TINY_LLAMA, plain.adapters) + added
    )
    assert trainable_parameters(TINY_LLAMA, copied.adapters) == adapter_parameters(
        TINY_LLAMA, copied.adapters
    )
    model = told(LLAMA, {}).model
    assert adapter_bytes(model, replace(copied, dtype=Dtype.BFLOAT16)) == (
        adapter_bytes(model, plain) + 2 * EMBEDDING
    )


def test_copied_modules_keep_the_base_dtype_while_adapters_become_float32():
    # peft 0.21, tuners_utils.py, cast_adapter_dtype: BaseTunerLayer alone
    model = told(LLAMA, {}).model
    tensors = trainable_tensors(model, lora(modules_to_save=("embed_tokens", "lm_head")))
    assert tensors[:2] == [
        Trainable((V, H), 2, 1, is_embedding=True),
        Trainable((V, H), 2, 1, is_linear=True),
    ]
    assert {tensor.width for tensor in tensors[2:]} == {4}


def test_a_copied_projection_has_no_adapter():
    setup = lora(lora_r=1, modules_to_save=("k_proj",))
    # linears of a TINY_LLAMA layer: q 8→8, v 8→4, o 8→8, gate and up 8→16, down 16→8; k 8→4 is copied
    adapters = 2 * ((8 + 8) * 2 + (8 + 4) + 3 * (8 + 16))
    assert adapter_parameters(TINY_LLAMA, setup.adapters) == adapters + 2 * 8 * 4


def test_a_tied_pair_is_copied_twice():
    tied = replace(TINY_LLAMA, tie_word_embeddings=True)
    both = lora(modules_to_save=("embed_tokens", "lm_head"))
    assert (
        adapter_parameters(tied, both.adapters)
        == adapter_parameters(tied, lora().adapters) + 2 * 10 * 8
    )
    assert total_parameters(tied) == total_parameters(TINY_LLAMA) - 10 * 8


def test_full_fine_tuning_copies_no_modules():
    whole = TrainingSetup(modules_to_save=("lm_head",), mixed_precision=MixedPrecision.NO)
    model: Model = TINY_LLAMA
    assert trainable_parameters(model, whole.adapters) == total_parameters(model)


# --- DoRA -----------------------------------------------------------------------------------------


def test_dora_adds_one_number_per_output():
    plain, dora = lora(lora_r=2), lora(lora_r=2, use_dora=True)
    outputs = 2 * (8 + 4 + 4 + 8 + 16 + 16 + 8)  # two layers of TINY_LLAMA
    added = adapter_parameters(TINY_LLAMA, dora.adapters) - adapter_parameters(
        TINY_LLAMA, plain.adapters
    )
    assert added == outputs


def test_dora_saves_a_copy_of_each_adapted_weight_only_with_dropout():
    # F.linear(x, weight) saves a weight cast to float32; reusing the base's result saves nothing
    keys = {"method": "lora", "max_length": 1, "lora_r": 1, "use_dora": True} | PURE
    layer = 2 * H * H + 2 * H * H // 2 + 3 * H * 1536
    kept = {
        dropout: sum(
            held.bytes
            for held in told(LLAMA, keys | {"lora_dropout": dropout}).timeline.kept_by_a_layer()
        )
        for dropout in (0.0, 0.1)
    }
    assert kept[0.1] - kept[0.0] == pytest.approx(4 * layer, rel=0.01)


def test_dora_magnitudes_on_a_packed_base_stay_float32():
    # trl 1.16, trainer/sft_trainer.py: `if param.requires_grad and "lora_magnitude_vector" not in name`
    setup = TrainingSetup(method=Method.QLORA, use_dora=True, autocast_adapter_dtype=False)
    widths = {len(tensor.shape): tensor.width for tensor in trainable_tensors(TINY_LLAMA, setup)}
    assert widths == {2: 2, 1: 4}


def test_a_checkpoint_does_not_save_what_backward_never_reads():
    """The product B·A is saved by a graph that is freed in forward; the replay only recomputes it."""
    keys = {"method": "lora", "max_length": 1, "lora_r": 1, "use_dora": True} | CHECKPOINTED
    of = told(LLAMA, keys | {"lora_dropout": 0.0})
    forward, backward = (of.phases[phase].bytes for phase in (Phase.FORWARD, Phase.BACKWARD))
    widest = 4 * 1536 * H
    assert backward - forward < 3 * widest


# --- float16 --------------------------------------------------------------------------------------

FP16 = {"mixed_precision": "fp16"}


def test_training_16_bit_weights_under_fp16_autocast_is_refused():
    # torch 2.13: "Attempting to unscale FP16 gradients."; no kernel for bfloat16 (pytorch issue 127176)
    for dtype in ("float16", "bfloat16"):
        for keys in ({}, {"method": "lora", "autocast_adapter_dtype": False}):
            said = " ".join(read_setup({"model": LLAMA, "dtype": dtype} | FP16 | keys).problems)
            assert f"refuses to unscale {dtype} gradients" in said
    for dtype in ("float16", "bfloat16"):
        assert not read_setup({"model": LLAMA, "dtype": dtype, "method": "lora"} | FP16).problems


# --- LLM.int8 -------------------------------------------------------------------------------------

INT8 = {"method": "lora", "load_in_8bit": True}


def test_an_8_bit_linear_takes_a_byte_per_element_and_a_scale_per_output():
    shapes = [(512, 512), (256, 512), (256, 512), (512, 512)] + [(1536, 512)] * 2 + [(512, 1536)]
    dense = told(LLAMA, {"method": "lora"}).peak.resident[Component.WEIGHTS]
    packed = told(LLAMA, INT8).peak.resident[Component.WEIGHTS]
    # in each of 4 layers, 2 bytes per element become 1, plus 4 bytes per output
    assert dense - packed == 4 * sum(rows * columns - 4 * rows for rows, columns in shapes)


def test_only_reentrant_checkpoints_free_the_inputs_of_8_bit_layers():
    """``ctx.tensors`` are not saved tensors. q, k and v share an input, so do gate and up; o and down do not."""
    keys = INT8 | CHECKPOINTED | PURE | {"max_length": 1024}
    kept = {
        reentrant: sum(
            held.bytes
            for held in told(LLAMA, keys | {"use_reentrant": reentrant}).timeline.kept_by_a_layer()
        )
        for reentrant in (False, True)
    }
    in_bfloat16 = 2 * 1024 * (H + H + H + 1536)
    assert kept[False] - kept[True] == in_bfloat16
    assert kept[True] == 2 * 1024 * H  # only the layer's own input


def test_methods_other_than_lora_say_they_ignore_load_in_8bit():
    for method in ("full", "qlora"):
        of = told(LLAMA, {"method": method, "load_in_8bit": True})
        assert any("load_in_8bit applies to method lora" in said for said in of.assumptions)
        assert of.peak.bytes == told(LLAMA, {"method": method}).peak.bytes
