"""A ``config.json`` becomes the right ``Model``; an invalid one gets a sentence that names the key.

Expected values are from transformers 5.23 (models/*/configuration_*.py) or the Hub's configs.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from estimator import estimate
from estimator.contract.setups import parse
from estimator.families.hf_config import ignored_keys, model_from_config
from estimator.families.model_tree import total_parameters

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
FALCON: dict[str, Any] = {
    "model_type": "falcon",
    "vocab_size": 65024,
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
}
OPT: dict[str, Any] = {
    **{key: value for key, value in LLAMA.items() if key != "intermediate_size"},
    "model_type": "opt",
    "ffn_dim": 16384,
    "max_position_embeddings": 2048,
}


def family(model_type: str, **keys: object) -> dict[str, Any]:
    return {**LLAMA, "model_type": model_type, **keys}


def test_llama_2_7b():
    model = model_from_config(LLAMA, "meta-llama/Llama-2-7b-hf")
    assert total_parameters(model) == 6_738_415_616
    assert model.hub_id == "meta-llama/Llama-2-7b-hf"
    assert (model.num_key_value_heads, model.head_dim) == (32, 128)
    assert not model.tie_word_embeddings


def test_gpt2_is_read_by_its_key_names():
    model = model_from_config(GPT2)
    assert total_parameters(model) == 124_439_808
    assert (model.learned_positions, model.intermediate_size) == (1024, 3072)
    assert (model.embd_pdrop, model.attn_pdrop, model.resid_pdrop) == (0.1, 0.1, 0.1)
    assert model.hidden_act == "gelu_new"
    assert model.tie_word_embeddings


@pytest.mark.parametrize(("multi_query", "heads"), [({}, 1), ({"multi_query": False}, 12)])
def test_gpt_bigcode_has_one_key_value_head_by_default(multi_query, heads):
    model = model_from_config({**GPT2, "model_type": "gpt_bigcode", **multi_query})
    assert model.num_key_value_heads == heads


@pytest.mark.parametrize(
    ("keys", "heads", "parallel"),
    [
        ({}, 1, True),
        ({"multi_query": False, "parallel_attn": False}, 71, False),
        (
            {
                "new_decoder_architecture": True,
                "num_attention_heads": 64,
                "hidden_size": 4096,
                "num_kv_heads": 8,
            },
            8,
            True,
        ),
        ({"num_kv_heads": 71}, 1, True),
    ],
)
def test_falcon_heads(keys, heads, *, parallel):
    model = model_from_config({**FALCON, **keys})
    assert model.num_key_value_heads == heads
    assert model.parallel_residual is parallel


def test_falcon_with_alibi_has_no_rotary_layers():
    assert all(model_from_config({**FALCON, "alibi": True}).no_rope_layers)


def test_mpt_is_read_by_its_key_names():
    config = {
        "model_type": "mpt",
        "vocab_size": 50432,
        "d_model": 4096,
        "n_heads": 32,
        "n_layers": 32,
        "max_seq_len": 2048,
        "attn_config": {"attn_pdrop": 0.2},
    }
    model = model_from_config(config)
    assert total_parameters(model) == 6_649_286_656  # the Hub's count of mosaicml/mpt-7b
    assert (model.attn_pdrop, model.max_position_embeddings) == (0.2, 2048)


def test_bloom_is_read_by_its_key_names():
    config = {"model_type": "bloom", "vocab_size": 250880, "n_embed": 1024, "n_layer": 24,
              "num_attention_heads": 16}  # fmt: skip
    assert total_parameters(model_from_config(config)) == 559_214_592  # bigscience/bloom-560m


def test_opt_350m_projects_its_embedding():
    model = model_from_config({**OPT, "word_embed_proj_dim": 512, "do_layer_norm_before": False})
    assert (model.word_embed_proj_dim, model.learned_positions) == (512, 2050)
    assert not model.do_layer_norm_before
    assert model_from_config({**OPT, "word_embed_proj_dim": 4096}).word_embed_proj_dim == 0


def test_explicit_head_dim_is_read():
    assert model_from_config(family("mistral", head_dim=64)).head_dim == 64
    assert model_from_config(family("gemma", num_key_value_heads=16)).head_dim == 256
    assert model_from_config(family("qwen3", head_dim=None)).head_dim == 128
    assert model_from_config(family("gpt_neox", head_dim=7)).head_dim == 128


@pytest.mark.parametrize(
    ("model_type", "tied"),
    [("llama", False), ("gemma2", True), ("cohere", True), ("qwen2", False), ("smollm3", True)],
)
def test_tied_head_defaults_by_family(model_type, *, tied):
    keys = {"num_key_value_heads": 8}
    assert model_from_config(family(model_type, **keys)).tie_word_embeddings is tied
    other = family(model_type, **keys, tie_word_embeddings=not tied)
    assert model_from_config(other).tie_word_embeddings is not tied


@pytest.mark.parametrize(
    ("model_type", "keys", "window", "windowed"),
    [
        ("llama", {"sliding_window": 4096}, 0, 0),
        ("mistral", {}, 4096, 32),
        ("mistral", {"sliding_window": None}, 0, 0),
        ("phi3", {"sliding_window": 2047}, 2047, 32),
        ("qwen2", {"sliding_window": 4096}, 0, 0),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True}, 4096, 4),
        (
            "qwen2",
            {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0},
            64,
            32,
        ),
        ("gemma2", {}, 4096, 16),
        ("gemma3_text", {"sliding_window": 512}, 512, 27),
        ("gemma3_text", {"sliding_window_pattern": 2}, 4096, 16),
        ("cohere2", {}, 4096, 24),
        ("olmo3", {}, 4096, 24),
        ("exaone4", {"sliding_window": None}, 0, 0),
        ("exaone4", {"sliding_window_pattern": "LLLG"}, 4096, 24),
        ("starcoder2", {}, 0, 0),
        ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}, 0, 0),
        ("qwen3_moe", {**EXPERTS, "use_sliding_window": True}, 4096, 32),
        ("qwen2_moe", {**EXPERTS, "use_sliding_window": True}, 4096, 14),
        ("smollm3", {"sliding_window": 64}, 0, 0),
        ("smollm3", {"sliding_window": 64, "use_sliding_window": True}, 64, 8),
        (
            "qwen3",
            {"layer_types": ["sliding_attention"] * 32, "use_sliding_window": True},
            4096,
            32,
        ),
    ],
)
def test_windows(model_type, keys, window, windowed):
    model = model_from_config(family(model_type, **{"num_key_value_heads": 8, **keys}))
    assert model.sliding_window == window
    kinds = model.layer_types or (("sliding_attention",) * 32 if window else ())
    assert kinds.count("sliding_attention") == windowed


def test_smollm3_lists_the_layers_with_rotary_embeddings():
    listed = [1, 1, 1, 0] * 8
    model = model_from_config(family("smollm3", num_key_value_heads=4, no_rope_layers=listed))
    assert model.no_rope_layers == (False, False, False, True) * 8
    assert model == model_from_config(family("smollm3", num_key_value_heads=4))


def test_cohere2_applies_rotary_only_in_windowed_layers():
    assert model_from_config(family("cohere2")).no_rope_layers == (False, False, False, True) * 8


def test_gemma3_wrapper_is_read_as_its_text_part():
    """google/gemma-3-4b-it takes heads, vocabulary and head_dim from the class."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024}  # fmt: skip
    model = model_from_config({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert model.model_type == "gemma3_text"
    assert total_parameters(model) == 4_300_079_472 - 419_816_304  # without the vision tower


def test_softcaps_of_gemma2_can_be_turned_off():
    on = model_from_config(family("gemma2", num_key_value_heads=8))
    off = model_from_config(family("gemma2", num_key_value_heads=8, attn_logit_softcapping=None))
    assert (on.attn_logit_softcapping, on.final_logit_softcapping) == (True, True)
    assert (off.attn_logit_softcapping, off.final_logit_softcapping) == (False, True)


def test_biases_follow_the_family():
    qwen = model_from_config(family("qwen2", num_key_value_heads=8))
    assert (qwen.attention_bias, qwen.attention_output_bias, qwen.mlp_bias) == (True, False, False)
    seed = model_from_config(family("seed_oss", num_key_value_heads=8))
    assert (seed.attention_bias, seed.attention_output_bias) == (True, False)
    assert model_from_config(family("phi")).lm_head_bias


def test_partial_rotary_is_read_in_old_and_new_spelling():
    new = family("phi", rope_parameters={"partial_rotary_factor": 0.4})
    assert model_from_config(new).partial_rotary_factor == 0.4
    assert model_from_config(family("phi", partial_rotary_factor=0.4)).partial_rotary_factor == 0.4
    assert model_from_config(family("gpt_neox", rotary_pct=1.0)).partial_rotary_factor == 1.0
    assert model_from_config(family("stablelm")).partial_rotary_factor == 0.25
    # glm4v/modeling_glm4v.py:458, and configuration_glm4.py:77 and configuration_glm4v_moe.py:118
    glm = family("glm4")
    text = {key: value for key, value in glm.items() if key != "model_type"}
    for config in (
        {"model_type": "glm4v", "text_config": text},
        {"model_type": "glm4v", "text_config": {**text, "model_type": "glm4v_text"}},
        {**text, "model_type": "glm4v_text"},
    ):
        assert model_from_config(config).partial_rotary_factor == 1.0
    named = {"model_type": "glm4v", "text_config": {**text, "partial_rotary_factor": 0.5}}
    assert model_from_config(named).partial_rotary_factor == 0.5
    assert model_from_config(glm).partial_rotary_factor == 0.5


def test_experts_are_read_by_each_family_s_key_names():
    mixtral = model_from_config(family("mixtral", num_local_experts=8, num_experts_per_tok=2))
    assert (mixtral.num_experts, mixtral.num_experts_per_tok) == (8, 2)
    assert mixtral.moe_intermediate_size == LLAMA["intermediate_size"]
    assert mixtral.norm_topk_prob
    qwen = model_from_config(family("qwen2_moe", num_key_value_heads=16, **EXPERTS))
    assert (qwen.num_experts, qwen.moe_intermediate_size) == (60, 1408)
    assert qwen.shared_expert_intermediate_size == 5632
    assert not qwen.norm_topk_prob
    assert model_from_config({**LLAMA, **EXPERTS}).num_experts == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "4096"),
        ("hidden_size", 4096.0),
        ("hidden_size", float("nan")),
        ("hidden_size", 0),
        ("hidden_size", -4096),
        ("hidden_size", True),
        ("hidden_size", 10**30),
        ("hidden_size", [4096]),
        ("hidden_size", {"a": {"b": []}}),
        ("num_hidden_layers", 10**6),
        ("num_hidden_layers", float("inf")),
        ("num_attention_heads", 10**6),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", "8"),
        ("head_dim", -1),
        ("vocab_size", "x" * 1000),
        ("tie_word_embeddings", "yes"),
        ("attention_bias", 1),
        ("attention_dropout", float("nan")),
        ("attention_dropout", 1.5),
        ("attention_dropout", "0.1"),
        ("hidden_act", 3),
        ("hidden_act", ["silu"]),
        ("max_position_embeddings", "4k"),
    ],
)
def test_invalid_value_is_refused_naming_the_key(key, value):
    with pytest.raises(
        ValueError, match=rf"^{key} must be .* not .*; correct it in the config\.$"
    ) as bad:
        model_from_config({**LLAMA, key: value})
    assert len(str(bad.value)) < 200
    assert not re.search(r"\b(True|False|None|nan|inf)\b", str(bad.value)), "Python's, not JSON's"


def test_refused_values_are_quoted_as_json():
    lfm2 = family("lfm2", num_key_value_heads=8, layer_types=["conv"] * 32, conv_bias=True)
    with pytest.raises(
        ValueError, match=r"^conv_bias true is not modelled for lfm2; set it to false"
    ):
        model_from_config(lfm2)
    bounds = {"altup_correct_scale": False}
    with pytest.raises(ValueError, match=r"altup_correct_scale false .*; set it to true in"):
        model_from_config(family("gemma3n_text", num_key_value_heads=8, **bounds))
    with pytest.raises(ValueError, match=r"hidden_size must be .*, not \[4096, null\]; correct"):
        model_from_config({**LLAMA, "hidden_size": [4096, None]})


@pytest.mark.parametrize("model_type", ["mamba2", "gemma3", "bert", "LLAMA", ""])
def test_unknown_architecture_is_refused_by_name(model_type):
    with pytest.raises(ValueError, match=f"architecture '{model_type}' is not modelled"):
        model_from_config(family(model_type))


@pytest.mark.parametrize("config", [None, [], "llama", 3])
def test_non_object_is_refused(config):
    with pytest.raises(ValueError, match="a config must be an object"):
        model_from_config(config)


KEYS = {
    "use_cache": True,
    "initializer_range": 0.02,
    "rope_theta": 500_000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "pretraining_tp": 1,
    "eos_token_id": [1, 2],
    "torch_dtype": "bfloat16",
    "output_hidden_states": False,
    "is_causal": True,
    "_name_or_path": "x",
}
"""As configs on the Hub have them."""


def test_known_keys_are_not_reported():
    for config in (LLAMA, GPT2, OPT, family("gemma2", num_key_value_heads=8)):
        assert ignored_keys({**config, **KEYS}) == ()
    assert ignored_keys({**LLAMA, "shiny_new_attention": None}) == (), "null says nothing"


def test_unknown_key_is_reported():
    said = ignored_keys({**LLAMA, **KEYS, "shiny_new_attention": 4, "two words": 1})
    assert said == (
        "The config's key shiny_new_attention is not known here and was ignored.",
        "The config's key 'two words' is not known here and was ignored.",
    )


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {**LLAMA, "output_hidden_states": True},
            "output_hidden_states is true, which keeps every",
        ),
        ({**LLAMA, "is_causal": False}, "is_causal is false, which asks for attention that is not"),
        ({**OPT, "layerdrop": 0.1}, "layerdrop is 0.1, which skips layers at random"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention is true, which adds layers"),
        ({**LLAMA, "clip_qkv": 8.0}, "key clip_qkv is not known here and was ignored"),
    ],
)
def test_relevant_unmodelled_key_is_reported(config, sentence):
    (said,) = ignored_keys(config)
    assert said.startswith(f"The config's {sentence}")


def test_ignored_keys_are_listed_in_the_assumptions():
    model, gpu, setup = parse({"model": {**LLAMA, "shiny": 1}})
    said = "The config's key shiny is not known here and was ignored."
    assert said in estimate(model, gpu, setup).assumptions
    many, gpu, setup = parse({"model": {**LLAMA, **{f"k{n}": n for n in range(30)}}})
    assert many.notes[-1] == "22 more of its keys are not known here."


def test_both_names_of_a_key_are_read():
    by_file = family("internlm3", num_key_value_heads=8)
    both = [{"bias": True, "qkv_bias": True}, {"mlp_bias": True, "attention_bias": True}]
    first, second = (model_from_config({**by_file, **keys}) for keys in both)
    assert first == second
    assert first.mlp_bias
    assert first.attention_bias


def test_bidirectional_gemma_3_has_half_the_window_on_each_side():
    # Gemma3TextConfig.__post_init__: 4096 // 2 + 1
    keys = {"num_key_value_heads": 8, "sliding_window": 4096}
    assert model_from_config(family("gemma3_text", **keys)).sliding_window == 4096
    both = model_from_config(family("gemma3_text", **keys, use_bidirectional_attention=True))
    assert both.use_bidirectional_attention
    assert both.sliding_window == 2049
