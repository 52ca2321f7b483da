"""Loading: the final weights and the temporary copies. Numbers by hand from the models' shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import Component, Method, Phase, TrainingSetup, catalog, estimate
from estimator.families.model_tree import modules_with_counts
from estimator.parallel.placements import weight_bytes
from estimator.run.loading import (
    load_host_bytes,
    load_moment,
    merging_bytes,
    packing_bytes,
    upcasting_bytes,
)
from estimator.run.saving import taken_apart_bytes
from estimator.values.facets.precision import Precision

MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
MIXTRAL = catalog.model("mistralai/Mixtral-8x7B-v0.1")
H, F, V = 4096, 14336, 32000
QLORA = TrainingSetup(method=Method.QLORA)


def test_loading_plain_weights_takes_only_the_weights():
    full = TrainingSetup()
    assert load_moment(MISTRAL, full, 0).bytes == weight_bytes(MISTRAL, full)
    lora = estimate(MISTRAL, None, replace(full, method=Method.LORA))
    assert lora.phases[Phase.LOAD].resident[Component.ADAPTERS] == 4 * lora.trainable_parameters


def test_4_bit_packing_holds_the_largest_linear_in_16_bits_and_its_scales_twice():
    count, modules = H * F, tuple(modules_with_counts(MISTRAL))
    assert packing_bytes(modules, QLORA.adapters, Precision()) == 2 * count + 2 * 4 * count // 64
    once = replace(QLORA.adapters, bnb_4bit_use_double_quant=False)
    assert packing_bytes(modules, once, Precision()) == 2 * count


def test_packing_into_8_bits_goes_through_the_host_and_holds_two_16_bit_copies():
    eight = TrainingSetup(method=Method.LORA, load_in_8bit=True)
    modules = tuple(modules_with_counts(MISTRAL))
    assert packing_bytes(modules, eight.adapters, eight.precision) == 2 * 2 * H * F
    assert load_host_bytes(MISTRAL, eight) == 2 * V * H


def test_upcasting_ends_with_the_head_in_both_dtypes():
    # embedding and head of V x H and 65 norms of H go from 2 to 4 bytes; the head's 2-byte copy still exists at the end
    kbit = replace(QLORA, prepare_model_for_kbit_training=True)
    grown = 2 * (2 * V * H + 65 * H)
    upcasts = upcasting_bytes(MISTRAL, modules_with_counts(MISTRAL), kbit.adapters, kbit.precision)
    assert upcasts == grown + 2 * V * H
    assert load_moment(MISTRAL, kbit, 0).name == "upcasts"
    assert load_moment(MISTRAL, kbit, 0).bytes == weight_bytes(MISTRAL, QLORA) + grown + 2 * V * H


def test_loading_a_mixture_matches_the_real_height():
    # traced: from_pretrained(device_map={"": "cuda:0"}) of transformers 5.23 on a device that counts allocations, a
    # Mixtral of 3 layers and 4 experts of 256 x 704 in bfloat16: 18,073,088 bytes at the peak, 15,189,632 at the end
    tiny = replace(
        MIXTRAL,
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=704,
        moe_intermediate_size=704,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        num_experts=4,
    )
    assert load_moment(tiny, TrainingSetup(), 0).bytes == pytest.approx(18_073_088, rel=1e-4)
    assert weight_bytes(tiny, TrainingSetup()) == pytest.approx(15_189_632, rel=1e-4)
    # save_pretrained held another 8,650,752 bytes to save it
    assert taken_apart_bytes(tiny, TrainingSetup()) == 8_650_752


def test_gate_and_up_weights_exist_twice_while_they_are_merged():
    merged = [
        merging_bytes(model, tuple(modules_with_counts(model)), Precision())
        for model in (MIXTRAL, MISTRAL)
    ]
    assert merged == [8 * 2 * F * H * 2, 0]


def test_host_holds_all_weights_or_one_tensor_of_a_4_bit_base():
    assert load_host_bytes(MISTRAL, TrainingSetup()) == weight_bytes(MISTRAL, TrainingSetup())
    assert load_host_bytes(MISTRAL, QLORA) == 2 * V * H


@pytest.mark.parametrize(
    ("model", "setup", "name"),
    [
        (MISTRAL, replace(QLORA, lora_r=1), "packing the largest linear"),
        (MISTRAL, replace(QLORA, prepare_model_for_kbit_training=True), "upcasts"),
        (MIXTRAL, TrainingSetup(method=Method.LORA, lora_r=1), "merging a layer's experts"),
    ],
)
def test_adapters_are_added_after_packing_merging_and_upcasting(model, setup, name):
    # PEFT is called with the loaded model: no adapter exists before
    moment = load_moment(model, setup, 0)
    assert moment.name == name
    assert Component.ADAPTERS not in moment.resident
