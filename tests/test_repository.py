"""A pasted config.json is handled like a Hub model, and nothing in it can do harm."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimator import TrainingSetup, catalog, estimate
from estimator.families.hf_config import model_from_config
from estimator.families.model_tree import total_parameters
from estimator.sources.repository import Trouble, from_config, from_text
from tests.test_hf_config import LLAMA

QWEN_VL: dict[
    str, Any
] = {  # Qwen/Qwen2.5-VL-7B-Instruct as saved before transformers 5: text keys beside the tower's
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128000,
    "tie_word_embeddings": False,
    "vision_config": {"depth": 32, "hidden_size": 1280},
}


def test_a_pasted_config_is_a_model_without_a_name():
    found = from_text(json.dumps(LLAMA))
    assert found.model == replace(model_from_config(LLAMA), stored_width=2)
    assert found.sentences == ()
    assert found.about.hub_id == ""
    assert found.stored_bytes == 2 * 6_738_415_616
    assert json.loads(found.model.config) == LLAMA


@pytest.mark.parametrize(
    "text", ["\ufeff" + json.dumps(LLAMA), json.dumps(LLAMA).encode("utf-8-sig")]
)
def test_a_byte_order_mark_is_accepted(text):
    assert from_text(text).model is not None


def test_float32_weights_take_four_bytes():
    for key in ("dtype", "torch_dtype"):
        assert from_config({**LLAMA, key: "float32"}).stored_bytes == 4 * 6_738_415_616


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "The config.json is empty; write the object of a config.json there."),
        ("{}", "the config has no model_type; give a complete config.json from the Hub, "),
        ("[]", "The config.json must be the object of a config.json, not a list."),
        ("{'a': 1}", "The config.json is not valid JSON (Expecting property name enclosed in "),
        (" <html>", "The config.json is a web page, not JSON; open the file on the Hub and copy "),
        (b"<html>", "The config.json is a web page, not JSON; open the file on the Hub and copy "),
        (b"\xff", "The config.json is not UTF-8 at byte 1; save it as UTF-8."),
        ("x" * 1_000_001, "The config.json is longer than 1000000 bytes; shorten it."),
        ('{"a": 1, "a": 2}', "'a' appears twice in one object; give it once."),
        ('{"a":' * 65 + "1" + "}" * 65, "The config.json is nested too deeply; "),
    ],
)
def test_text_that_is_not_a_config_is_refused(text, problem):
    found = from_text(text)
    assert (found.model, found.trouble) == (None, Trouble.UNREADABLE)
    assert found.problem.startswith(problem)


def test_nesting_of_64_levels_is_read():
    deep = '{"a":' * 63 + "1" + "}" * 63
    assert from_text(json.dumps(LLAMA)[:-1] + f', "x": {deep}}}').model is not None


def test_a_pasted_encoder_config_is_refused():
    assert from_config({"model_type": "bert"}).problem == (
        "This config is an encoder (bert); only decoders, which write text token by token, are estimated. "
        "Choose one of those."
    )


# --- the text part ------------------------------------------------------------------------------


def test_text_keys_beside_a_vision_tower_are_the_text_part():
    """The text part is Qwen2.5-7B, whose parameter count the Hub publishes; towers are left out."""
    found = from_config(QWEN_VL)
    assert found.parameters == total_parameters(catalog.model("Qwen/Qwen2.5-7B"))
    assert found.notes == (
        "Only the text part (qwen2) is estimated; left out: the vision tower and what joins it to the text.",
    )


def test_text_part_under_its_own_key_is_the_same_model():
    text = {key: value for key, value in QWEN_VL.items() if key != "vision_config"}
    nested = {
        "model_type": "qwen2_5_vl",
        "text_config": {**text, "model_type": "qwen2_5_vl_text"},
        "vision_config": QWEN_VL["vision_config"],
    }
    assert from_config(nested).model == from_config(QWEN_VL).model


def test_an_audio_encoder_is_named_as_left_out():
    config = {"model_type": "voxtral", "text_config": LLAMA, "audio_config": {"d": 1}}
    assert from_config(config).left_out == "the audio encoder and what joins it to the text"


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers"])
def test_only_a_nested_config_may_omit_sizes(key):
    less = {name: value for name, value in LLAMA.items() if name != key}
    assert from_config(less).problem.startswith(f"the llama config has no {key}; ")
    assert from_config({"model_type": "llava", "text_config": less}).model is not None


def test_notes_appear_among_the_estimates_assumptions():
    found = from_config(QWEN_VL)
    assert found.model is not None
    said = estimate(found.model, None, TrainingSetup(max_length=32)).assumptions
    assert said[-len(found.notes) :] == found.notes


# --- quantised ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantization", "note"),
    [
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            "The weights are stored as bitsandbytes 4-bit.",
        ),
        ({"quant_method": "fp8"}, "The weights are stored as FP8."),
        ({"quant_method": "exl2"}, "The weights are stored as 'exl2'."),
    ],
)
def test_quantised_storage_gets_a_note(quantization, note):
    found = from_config({**LLAMA, "quantization_config": quantization})
    assert found.notes == (note,)
    assert (found.stored_bytes is None) == ("exl2" in note)


# --- untrusted input ----------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        *LLAMA,
        "architectures",
        "auto_map",
        "dtype",
        "is_encoder_decoder",
        "layer_types",
        "quantization_config",
        "rope_parameters",
        "text_config",
        "vision_config",
    ]
)
QUANTIZATION = st.dictionaries(
    st.sampled_from(
        [
            "bits",
            "config_groups",
            "format",
            "group_size",
            "ignore",
            "load_in_4bit",
            "weight_block_size",
        ]
    ),
    VALUES,
).flatmap(
    lambda rest: st.sampled_from(
        ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors", "mxfp4"]
    ).map(lambda method: {**rest, "quant_method": method})
)


@settings(
    suppress_health_check=[HealthCheck.too_slow]
)  # how fast values are drawn depends on the machine's load
@given(changed=st.dictionaries(KEYS, VALUES, max_size=4), quantization=st.none() | QUANTIZATION)
def test_no_config_raises(changed, quantization):
    config = {**LLAMA, "quantization_config": quantization, **changed}
    found = from_config(config)
    assert (found.model is None) == bool(found.problem) == (found.trouble is not None)
    for sentence in found.sentences:
        assert sentence.endswith(".")
        assert len(sentence) < 1200


@given(st.text() | st.binary())
def test_no_text_raises(text):
    assert from_text(text).problem
