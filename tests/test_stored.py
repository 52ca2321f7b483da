"""Bytes of quantised checkpoints: by hand for one matrix, and against published files."""

from __future__ import annotations

import re
from typing import Any

import pytest

from estimator import catalog
from estimator.families.model_tree import total_parameters
from estimator.families.modules import TINY_LLAMA
from estimator.families.packed import quantized_bytes
from estimator.resident.stored import matrix_elements, stored_bytes, stored_elements
from estimator.sources.quantization_config import quantization_of
from estimator.values.quantization import Quantization, StorageRule

LLAMA_2_7B = catalog.model("meta-llama/Llama-2-7b-hf")
LLAMA_3_8B = catalog.model("meta-llama/Llama-3.1-8B")
QWEN_3_8B = catalog.model("Qwen/Qwen3-8B")


def read(**given: Any) -> Quantization:
    quantization = quantization_of({"quantization_config": given})
    assert quantization is not None
    return quantization


GPTQ = read(quant_method="gptq", bits=4, group_size=128)
AWQ = read(quant_method="awq", bits=4, group_size=128, version="gemm")
FP8 = read(quant_method="fp8", weight_block_size=[128, 128])
NF4 = read(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_use_double_quant=True)
COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": ["lm_head"]}


def compressed(format: str, **weights: Any) -> Quantization:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return read(**{**COMPRESSED, "format": format, "config_groups": groups})


# --- one matrix, by hand ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        # 256 inputs, 128 outputs: 32768 weights, two groups of 128 inputs
        (GPTQ, {4: 32768 // 8 + 2 * 128 // 8 + 256, 2: 2 * 128}),
        (
            read(quant_method="gptq", bits=8, group_size=-1),
            {4: 32768 // 4 + 128 // 4 + 256, 2: 128},
        ),
        (read(quant_method="gptq", bits=3), {4: 32768 * 3 // 32 + 2 * 128 * 3 // 32 + 256, 2: 256}),
        (AWQ, {4: 32768 // 8 + 2 * 128 // 8, 2: 2 * 128}),
        (NF4, {1: 32768 // 2 + 512, 4: 2 + 256 + 16}),
        (read(quant_method="bitsandbytes", load_in_4bit=True), {1: 32768 // 2, 4: 512 + 16}),
        (read(quant_method="bitsandbytes", load_in_8bit=True), {1: 32768, 4: 128}),
        (FP8, {1: 32768, 4: 2}),
        (read(quant_method="fp8", weight_block_size=None), {1: 32768, 4: 1}),
        (read(quant_method="fbgemm_fp8"), {1: 32768, 4: 128}),
        (read(quant_method="mxfp4"), {1: 32768 // 2 + 32768 // 32}),
        (
            compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
            {1: 32768, 2: 128},
        ),
        (
            compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
            {1: 32768, 2: 128},
        ),
        (
            compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=128),
            {4: 32768 // 8, 2: 2 * 128, 8: 2},
        ),
        (
            compressed(
                "pack-quantized", num_bits=4, strategy="group", group_size=128, symmetric=False
            ),
            {4: 32768 // 8 + 16 * 2, 2: 2 * 128, 8: 2},
        ),
    ],
)
def test_a_128_by_256_matrix_by_hand(quantization, expected):
    assert dict(matrix_elements(quantization, 128, 256)) == expected


def test_nf4_takes_as_many_bytes_in_a_file_as_in_memory():
    """`weights.quantized_bytes` of a matrix, less the allocator's rounding to 512 bytes and the offset."""
    held = sum(size * count for size, count in matrix_elements(NF4, 4096, 4096).items())
    loaded = quantized_bytes(4096 * 4096, double_quant=True)
    assert 0 <= loaded - held < 6 * 512


# --- whole files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "quantization", "gigabytes"),
    [
        # sizes from the model cards: TheBloke/Llama-2-7B-GPTQ (main: 4 bits, groups of 128), -AWQ, in GB of 10^9 bytes
        (LLAMA_2_7B, GPTQ, 3.90),
        (LLAMA_2_7B, AWQ, 3.89),
    ],
)
def test_file_sizes_match_the_model_cards(model, quantization, gigabytes):
    assert stored_bytes(model, quantization) / 10**9 == pytest.approx(gigabytes, abs=0.01)


def test_fp8_scales_of_qwen3_8b_match_the_hub():
    """Hub total of Qwen/Qwen3-8B-FP8: 8191159296, the scales counted as parameters (llmfit 1.1.17)."""
    assert sum(stored_elements(QWEN_3_8B, FP8).values()) == 8_191_159_296


def test_row_scales_of_llama_3_1_8b_match_the_hub():
    """Hub total of RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic: 8031637504."""
    fp8 = compressed("float-quantized", num_bits=8, type="float", strategy="channel")
    assert sum(stored_elements(LLAMA_3_8B, fp8).values()) == 8_031_637_504


def test_nf4_bytes_of_llama_3_1_8b_match_the_hub():
    """Hub total of unsloth/Llama-3.1-8B-Instruct-bnb-4bit: 8248929342, each byte counted twice.

    We do not count the JSON of its 224 quant states, 150 to 200 bytes each.
    """
    stored = stored_elements(LLAMA_3_8B, NF4)
    states = 8_248_929_342 - (sum(stored.values()) + stored[1])
    assert 150 <= states / 2 / (32 * 7) <= 200


def test_plain_weights_take_two_or_four_bytes():
    total = total_parameters(TINY_LLAMA)
    assert stored_bytes(TINY_LLAMA, None) == 2 * total
    assert stored_bytes(TINY_LLAMA, None, 4) == 4 * total


# --- unquantised modules ------------------------------------------------------------------------


def saved(*skipped: str) -> int:
    """How many fewer 8-bit elements the tiny model has if these modules stay in 16 bits."""
    one_byte = read(quant_method="fbgemm_fp8", modules_to_not_convert=list(skipped))
    counted = stored_elements(TINY_LLAMA, read(quant_method="fbgemm_fp8"))
    return counted[1] - stored_elements(TINY_LLAMA, one_byte)[1]


@pytest.mark.parametrize(
    ("skipped", "expected"),
    [
        (["lm_head"], 0),
        (["q_proj"], 2 * 64),
        (["self_attn.q_proj", "model.layers.1.self_attn.q_proj"], 2 * 64),
        (["model.layers.1.self_attn.q_proj"], 64),
        (["model.language_model.layers.1.mlp"], 3 * 8 * 16),
        (["transformer.h.0"], 2 * 64 + 2 * 32 + 3 * 8 * 16),
        (
            ["proj", "model.layers.11.mlp", "(a+)+$", ".*"],
            0,
        ),  # not part of any name; must never run as a pattern
    ],
)
def test_modules_excluded_by_the_config_stay_unquantised(skipped, expected):
    assert saved(*skipped) == expected


def test_the_head_is_quantised_only_if_the_config_says_so():
    plain, whole = read(quant_method="gptq"), read(quant_method="gptq", lm_head=True)
    assert stored_bytes(LLAMA_2_7B, plain) - stored_bytes(LLAMA_2_7B, whole) > 1.4 * 4096 * 32000


def test_mxfp4_quantises_only_experts():
    assert stored_bytes(TINY_LLAMA, read(quant_method="mxfp4")) == stored_bytes(TINY_LLAMA, None)


# --- reading the config -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"quant_method": "gptq", "bits": 8}, "GPTQ 8-bit"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "AWQ 4-bit"),
        ({"load_in_4bit": True}, "bitsandbytes 4-bit"),
        ({"quant_method": "fp8"}, "FP8"),
        ({"quant_method": "exl2", "bits": 4.5}, "'exl2'"),
        (COMPRESSED, "compressed-tensors"),
    ],
)
def test_each_format_has_a_name(given, name):
    assert read(**given).name == name


@pytest.mark.parametrize(
    "given", [{}, {"quant_method": "bitsandbytes", "load_in_4bit": False}, None]
)
def test_a_config_without_quantisation_gives_none(given):
    assert quantization_of({"quantization_config": given}) is None


def test_quantization_is_read_from_a_nested_text_config():
    inner = {"quantization_config": {"quant_method": "awq"}}
    found = quantization_of({"text_config": inner})
    assert found.storage is StorageRule.AWQ


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([4], "quantization_config must be an object, not a list."),
        ({"bits": 4}, "quant_method must be a name such as gptq, not null."),
        ({"quant_method": "gptq", "bits": 0}, "bits must be a whole number from 1 to 8, not 0."),
        (
            {"quant_method": "awq", "group_size": "all"},
            "group_size must be a whole number from 1 to 1000000, not 'all'.",
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 0]},
            "weight_block_size must be two whole numbers such as [128, 128], not a list.",
        ),
    ],
)
def test_impossible_values_are_named(given, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        quantization_of({"quantization_config": given})


def test_an_unknown_format_is_not_guessed():
    with pytest.raises(ValueError, match="how 'exl2' stores a matrix is unknown here"):
        matrix_elements(read(quant_method="exl2"), 8, 8)
