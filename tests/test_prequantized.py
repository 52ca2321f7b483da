"""Quantised checkpoints: the estimated run is what transformers makes of them, or it is refused.

tests/verify/test_prequantized_real.py checks each format against transformers 5.23's own code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import Method, TrainingSetup, catalog, estimate
from estimator.answer.needs import least_need, need
from estimator.contract.estimates import write_estimate
from estimator.resident.stored import checkpoint_bytes
from estimator.run.loading import load_moment
from estimator.run.prequantized import (
    DORA_ON_AWQ,
    DORA_ON_GPTQ,
    FULL_ON_QUANTISED,
    LORA_ON_INT32,
    NO_TRAINING,
    PACKED_OTHERWISE,
    SECOND_QUANTISATION,
    UNKNOWN_FORMAT,
    as_loaded,
)
from estimator.sources.repository import from_config
from estimator.values.refusals import Refusal, RefusedError
from estimator.values.specs import Model
from tests.test_hf_config import LLAMA

LORA = TrainingSetup(method=Method.LORA, max_length=64)
QLORA = TrainingSetup(method=Method.QLORA, max_length=64, bnb_4bit_use_double_quant=False)
EIGHT_BIT = replace(LORA, load_in_8bit=True)
FULL = TrainingSetup(max_length=64)
BNB_4BIT = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
BNB_8BIT = {"quant_method": "bitsandbytes", "load_in_8bit": True}
GPTQ, AWQ = ({"quant_method": name, "bits": 4, "group_size": 128} for name in ("gptq", "awq"))
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "strategy": "group"}}},
}
FLOATS = ({"quant_method": "fp8"}, {"quant_method": "mxfp4"}, COMPRESSED)


def stored(quantization: dict[str, Any] | None) -> Model:
    """A small Llama stored with this quantisation config."""
    small = {**LLAMA, "num_hidden_layers": 2, "vocab_size": 512}
    found = from_config({**small, "quantization_config": quantization}).model
    assert found is not None
    return found


def why_not(quantization: dict[str, Any], setup: TrainingSetup) -> Refusal | None:
    """The refusal record, or None if the setup is estimated."""
    try:
        estimate(stored(quantization), None, setup)
    except RefusedError as refused:
        return refused.refusal
    return None


@pytest.mark.parametrize(
    ("quantization", "setup", "refusal"),
    [
        *((config, FULL, FULL_ON_QUANTISED) for config in (GPTQ, AWQ, BNB_4BIT, BNB_8BIT)),
        *((config, QLORA, SECOND_QUANTISATION) for config in (GPTQ, AWQ, *FLOATS)),
        *((config, EIGHT_BIT, SECOND_QUANTISATION) for config in (GPTQ, AWQ, *FLOATS)),
        *((config, LORA, LORA_ON_INT32) for config in (GPTQ, AWQ)),
        (GPTQ, replace(LORA, use_dora=True), DORA_ON_GPTQ),
        (AWQ, replace(LORA, use_dora=True), DORA_ON_AWQ),
        ({"quant_method": "fbgemm_fp8"}, FULL, FULL_ON_QUANTISED),
        ({"quant_method": "fbgemm_fp8"}, LORA, NO_TRAINING),
        ({"quant_method": "exl2"}, LORA, UNKNOWN_FORMAT),
        ({**BNB_4BIT, "llm_int8_skip_modules": ["model.layers.1.mlp"]}, LORA, PACKED_OTHERWISE),
    ],
)
def test_untrainable_formats_are_refused_with_their_cause(quantization, setup, refusal):
    assert why_not(quantization, setup) is refusal


@pytest.mark.parametrize("setup", [LORA, QLORA, EIGHT_BIT])
def test_bitsandbytes_weights_stay_quantised_whatever_is_requested(setup):
    four, eight = stored(BNB_4BIT), stored(BNB_8BIT)
    for model, asked in ((four, QLORA), (eight, EIGHT_BIT)):
        found = estimate(model, None, setup)
        plain = estimate(replace(model, quantization=None), None, asked)
        assert found.peak == plain.peak
        assert found.trainable_parameters == plain.trainable_parameters
        assert need(model, None, setup).low <= found.need_low_bytes
        assert any("stay quantised: the run is" in said for said in found.assumptions)


def test_double_quantisation_comes_from_the_checkpoint():
    twice = stored({**BNB_4BIT, "bnb_4bit_use_double_quant": True})
    assert as_loaded(twice, QLORA).adapters.bnb_4bit_use_double_quant
    assert not as_loaded(stored(BNB_4BIT), QLORA).adapters.bnb_4bit_use_double_quant
    assert need(twice, None, QLORA).high < need(stored(BNB_4BIT), None, QLORA).high


def test_a_quantised_checkpoint_loads_without_quantising_again():
    model, run = stored(BNB_4BIT), QLORA
    again = load_moment(replace(model, quantization=None), run, 0)
    assert again.name == "packing the largest linear"
    assert load_moment(model, run, 0).name == "weights in place"
    assert load_moment(model, run, 0).bytes < again.bytes


@pytest.mark.parametrize("quantization", FLOATS)
@pytest.mark.parametrize("setup", [FULL, LORA])
def test_dequantised_weights_cost_as_much_as_the_original(quantization, setup):
    found = estimate(stored(quantization), None, setup)
    plain = estimate(stored(None), None, setup)
    assert found.peak == plain.peak
    said = [
        sentence
        for sentence in found.assumptions
        if "(dequantize=True), so they are bfloat16" in sentence
    ]
    assert len(said) == 1


@given(
    quantization=st.sampled_from([GPTQ, AWQ, BNB_4BIT, BNB_8BIT, *FLOATS]),
    setup=st.sampled_from([FULL, LORA, QLORA, EIGHT_BIT]),
)
def test_no_quantised_checkpoint_is_silently_estimated_at_16_bits(quantization, setup):
    """It is refused, or the assumptions name its format; every entry point agrees."""
    model = stored(quantization)
    why = why_not(quantization, setup)
    if why is None:
        found = estimate(model, None, setup)
        assert any(model.quantization.name in said for said in found.assumptions)
        assert least_need(model, None, setup) <= found.need_low_bytes
        return
    for entry in (estimate, need, least_need):
        with pytest.raises(RefusedError, match=model.quantization.name):
            entry(model, None, setup)


@pytest.mark.parametrize(
    ("hub_id", "total_size"),
    [
        # model.safetensors.index.json of the repository, metadata.total_size
        ("openai/gpt-oss-20b", 13_761_264_768),
    ],
)
def test_catalogued_checkpoints_have_their_file_sizes(hub_id, total_size):
    model = catalog.model(hub_id)
    assert checkpoint_bytes(model) == total_size
    setup = replace(LORA, lora_dropout=0.0, lora_target_modules=("q_proj",))
    assert write_estimate(estimate(model, None, setup))["stored_bytes"] == total_size
    with pytest.raises(RefusedError, match="does not quantise again with bitsandbytes"):
        estimate(model, None, replace(setup, method=Method.QLORA))


def test_stored_bytes_are_null_if_the_dtype_is_unknown():
    found = estimate(catalog.model("openai-community/gpt2"), None, FULL)
    assert write_estimate(found)["stored_bytes"] is None
