"""What is specific to a family: its experts, its attention, its refusals.

test_reference.py compares their steps with traced ones in bytes; tests/verify compares their modules with the real
classes.
"""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest

from estimator import AttnImplementation, TrainingSetup, catalog, estimate
from estimator.families import layers
from estimator.families.adapters import adapter_parameters, is_adapted, is_quantized
from estimator.families.custom import resized
from estimator.families.family import Family
from estimator.families.hf_config import model_from_config
from estimator.families.layer_kinds import KEEPING, REUSING
from estimator.families.liger import kernels
from estimator.families.model_tree import (
    active_parameters,
    gate_up_stacks,
    layer_groups,
    layer_modules,
    modules_with_counts,
    outer_modules,
    sharing_of_keys,
    total_parameters,
)
from estimator.families.modules import Bare, Linear, weight_shapes
from estimator.families.registry import BEYOND, FAMILIES, MODELLED, NotModelledError
from estimator.parallel.placements import module_bytes
from estimator.resident.stored import stored_bytes
from estimator.sources.quantization_config import quantization_of
from estimator.time.flops import attended_pairs, matrices, scan_products
from estimator.values.methods import Method
from estimator.values.specs import (
    Component,
    Dtype,
    MixedPrecision,
    Model,
    ModelClass,
    Phase,
)
from estimator.values.strategies import Strategy

GPT_OSS = catalog.model("openai/gpt-oss-20b")
LORA = TrainingSetup(method=Method.LORA, lora_dropout=0.0)

ROOT = Path(__file__).resolve().parent.parent


# --- what is refused ------------------------------------------------------------------------------

WITHOUT_A_TABLE = {
    "bamba": "state-space layers",
    "jamba": "state-space layers",
    "kimi_linear": "linear attention",
    "mamba2": "state-space layers",
    "mllama_text_model": "attend to the image",
    "olmo_hybrid": "linear attention",
    "zamba2": "state-space layers",
}


@pytest.mark.parametrize(("model_type", "reason"), WITHOUT_A_TABLE.items())
def test_an_unsupported_hybrid_is_refused_with_its_name_and_reason(model_type, reason):
    sizes = {"vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    whole = {"model_type": model_type, **sizes}
    inside = {"model_type": "some_wrapper", "text_config": whole}
    for config in (whole, inside):
        with pytest.raises(NotModelledError, match=f"'{model_type}' is not modelled: .*{reason}"):
            model_from_config(config)


def test_no_family_is_both_modelled_and_refused():
    assert not BEYOND.keys() & MODELLED


# --- the record -----------------------------------------------------------------------------------


def test_measured_steps_count_only_for_families_with_the_same_norms_positions_and_masks():
    names = [field.name for field in fields(Family)]
    facts = names[names.index("norm") : names.index("liger")]
    for family in (family for family in FAMILIES.values() if family.like):
        other = FAMILIES[family.like]
        assert {name: getattr(family, name) for name in facts} == {
            name: getattr(other, name) for name in facts
        }, family.model_type


def test_the_order_of_a_layer_names_all_its_modules():
    with pytest.raises(AssertionError, match="is not the order of self_attn, mlp, input_layernorm"):
        layers.decoder_layer(
            layers.ATTENTION, layers.GATED_MLP, order="self_attn mlp input_layernorm"
        )


# --- GPT-OSS --------------------------------------------------------------------------------------


def test_gpt_oss_has_the_parameters_of_its_model_card():
    # gpt-oss model card, arXiv:2508.10925, table 1: 20.91 B in all; 3.61 B active, without the embedding
    embedding = GPT_OSS.vocab_size * GPT_OSS.hidden_size
    assert round(total_parameters(GPT_OSS) / 10**9, 2) == 20.91
    assert round((active_parameters(GPT_OSS) - embedding) / 10**9, 2) == 3.61


def test_gpt_oss_files_in_mxfp4_are_as_large_as_their_index_says():
    # openai/gpt-oss-20b, model.safetensors.index.json, metadata.total_size
    mxfp4 = quantization_of({"quantization_config": {"quant_method": "mxfp4"}})
    assert stored_bytes(GPT_OSS, mxfp4) == 13_761_264_768


def test_all_linear_excludes_the_experts_of_gpt_oss():
    # PEFT lists no former linears for them: 24 layers, r 16, four projections of 2880 to 4096, 512, 512 and back
    per_layer = 16 * (2 * (2880 + 4096) + 2 * (2880 + 512))
    assert adapter_parameters(GPT_OSS, LORA.adapters) == 24 * per_layer


def test_attention_sinks_need_eager_attention():
    said = " ".join(estimate(GPT_OSS, None, LORA).assumptions)
    assert "transformers runs gpt_oss with eager attention" in said
    flash = replace(LORA, attn_implementation=AttnImplementation.FLASH_ATTENTION_2)
    with pytest.raises(ValueError, match="does not support the attention sinks of gpt_oss, so"):
        estimate(GPT_OSS, None, flash)


# --- DeepSeek, Kimi, GLM-4.5 ----------------------------------------------------------------------

V3 = catalog.model("deepseek-ai/DeepSeek-V3")


def test_deepseek_v3_has_the_parameters_of_its_report():
    # DeepSeek-V3 technical report, arXiv:2412.19437: 671 B in all, 37 B active, counting one of embedding and head
    embedding = V3.vocab_size * V3.hidden_size
    assert round(total_parameters(V3) / 10**9) == 671
    assert round((active_parameters(V3) - embedding) / 10**9) == 37


def test_the_first_layers_of_deepseek_v3_are_dense():
    assert layer_groups(V3) == ((0, 3), (3, 58))
    dense = {module.name for module in layer_modules(V3, 2)}
    sparse = {module.name for module in layer_modules(V3, 3)}
    assert "mlp.gate_proj" in dense - sparse
    assert {"mlp.gate", "mlp.experts.down_proj", "mlp.shared_experts.up_proj"} <= sparse - dense


def test_mlp_target_names_adapt_only_the_experts_of_deepseek_v3():
    # PEFT maps the name down_proj to the expert stack, so that shared experts and dense layers get no adapter
    named = replace(LORA, lora_target_modules=("gate_proj", "up_proj", "down_proj"))
    adapted = {
        module.name for module, _ in modules_with_counts(V3) if is_adapted(module, named.adapters)
    }
    assert adapted == {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}


def test_loading_merges_only_the_experts_of_sparse_layers():
    # 58 of 61 layers, 256 experts, gate and up of 2048 x 7168 each
    assert gate_up_stacks(V3) == [(256, 2 * 2048, 7168)] * 58


def test_kimi_k2_is_read_as_deepseek_v3():
    kimi = catalog.model("moonshotai/Kimi-K2-Instruct")
    assert kimi.model_type == "deepseek_v3"
    assert kimi.num_experts == 384


# --- Granite 4.0 ----------------------------------------------------------------------------------

MICRO = {
    "model_type": "granitemoehybrid",
    "vocab_size": 100,
    "hidden_size": 8,
    "shared_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "layer_types": ["attention", "attention"],
    "num_local_experts": 0,
    "position_embedding_type": "rope",
}


def test_attention_only_granite_4_has_one_mlp_of_the_shared_width():
    model = model_from_config(MICRO)
    # two norms, four projections of 8 x 8, an MLP of 3 x 8 x 16; embedding, head and last norm
    assert total_parameters(model) == 2 * (2 * 8 + 4 * 64 + 3 * 8 * 16) + 2 * 100 * 8 + 8


HYBRID = MICRO | {
    "layer_types": ["mamba", "attention"],
    "position_embedding_type": "nope",
    "mamba_n_heads": 4,
    "mamba_d_state": 6,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 4,
}


def test_granite_4_has_mixers_in_layers_without_attention():
    model = model_from_config(HYBRID)
    every = 2 * 8 + 3 * 8 * 16  # two norms and the MLP
    channels = 16 + 2 * 2 * 6  # twice the hidden size; B and C of two groups of 6
    mixer = 8 * (16 + channels + 4) + 16 * 8  # in to gate, channels and one step a head; out
    mixer += (
        channels * 4 + channels + 3 * 4 + 16
    )  # filters of 4 with biases; A, D, a bias a step; the norm
    assert total_parameters(model) == 2 * every + mixer + 4 * 64 + 2 * 100 * 8 + 8
    assert attended_pairs(model, 4, skips=True) == 10  # one layer of two has attention
    assert all(model.no_rope_layers)


def test_granite_4_has_experts_beside_its_mlp():
    keys = {"num_local_experts": 3, "num_experts_per_tok": 2, "intermediate_size": 5}
    more = total_parameters(model_from_config(HYBRID | keys)) - total_parameters(
        model_from_config(HYBRID)
    )
    assert more == 2 * (
        3 * 8 + 3 * 3 * 8 * 5
    )  # in both layers a router and three matrices per expert


def test_assumptions_say_that_state_spaces_run_in_pytorch():
    sentence = "The state-space layers are counted as PyTorch runs them"
    assert sentence in " ".join(estimate(model_from_config(HYBRID), None, LORA).assumptions)
    assert sentence not in " ".join(estimate(model_from_config(MICRO), None, LORA).assumptions)


def test_the_scan_grows_by_whole_chunks():
    # 65 tokens are padded to 128: two chunks, as for 128 tokens
    model = model_from_config(HYBRID | {"mamba_chunk_size": 64})
    setups = [TrainingSetup(max_length=length) for length in (64, 65, 128, 129)]
    one, just_two, two, just_three = (estimate(model, None, setup).peak.bytes for setup in setups)
    assert just_two - one > two - just_two
    assert just_three - two > two - just_two


def test_the_products_of_a_scan_are_counted_by_whole_chunks():
    # 5 tokens are two chunks of 4; a row of a head: 4 tokens of its chunk times state 6 and width 4, and twice 6 x 4
    assert scan_products(model_from_config(HYBRID), 5) == 4 * 8 * (4 * (6 + 4) + 2 * 6 * 4)
    assert scan_products(model_from_config(MICRO), 5) == 0


# --- Falcon-H1 and Nemotron-H ---------------------------------------------------------------------

FALCON_H1 = {
    "model_type": "falcon_h1",
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "mamba_d_ssm": 12,
    "mamba_n_heads": 4,
    "mamba_d_state": 6,
}
NEMOTRON_H = {
    "model_type": "nemotron_h",
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "hybrid_override_pattern": "M-*E",
    "mamba_num_heads": 4,
    "mamba_head_dim": 3,
    "n_groups": 2,
    "ssm_state_size": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 5,
    "moe_shared_expert_intermediate_size": 7,
}


def test_falcon_h1_has_a_mixer_and_attention_in_every_layer():
    model = model_from_config(FALCON_H1)
    channels = 12 + 2 * 6
    mixer = 8 * (12 + channels + 4) + 12 * 8 + channels * 4 + channels + 3 * 4  # no gated norm
    attention = 2 * 64 + 2 * 32  # q and o of 8 x 8, k and v of 8 x 4
    layer = mixer + attention + 3 * 8 * 16 + 2 * 8
    assert total_parameters(model) == 2 * layer + 2 * 100 * 8 + 8
    assert attended_pairs(model, 4, skips=True) == 20


def test_nemotron_h_has_one_mixer_per_layer():
    model = model_from_config(NEMOTRON_H)
    channels = 12 + 2 * 2 * 6
    mixer = 8 * (12 + channels + 4) + 12 * 8 + channels * 4 + channels + 3 * 4 + 12
    experts = (
        4 * 8 + 4 * 2 * 8 * 5 + 2 * 8 * 7
    )  # a router, four experts and the shared one of two matrices
    layers = mixer + 2 * 8 * 16 + 2 * 64 + 2 * 32 + experts
    assert model.num_hidden_layers == 4  # one letter per layer
    assert total_parameters(model) == layers + 4 * 8 + 2 * 100 * 8 + 8
    assert attended_pairs(model, 4, skips=True) == 10
    assert gate_up_stacks(model) == [(4, 5, 8)]
    # `_tied_weights_keys = {}`: modeling_nemotron_h.py:1158, whatever the config says
    assert model_from_config(NEMOTRON_H | {"tie_word_embeddings": True}) == model
    with pytest.raises(ValueError, match="whose class never ties its head"):
        resized(model, {"tie_word_embeddings": True})


@pytest.mark.parametrize("config", [FALCON_H1, NEMOTRON_H])
def test_peft_refuses_an_adapter_behind_the_scan(config):
    model = model_from_config(config)
    with pytest.raises(ValueError, match=r"out_proj of .*, where PEFT refuses an adapter"):
        estimate(model, None, LORA)
    assert estimate(model, None, replace(LORA, lora_target_modules=("in_proj",)))


# --- Ministral 3 ----------------------------------------------------------------------------------


def test_ministral_3_is_read_from_the_text_part_of_its_wrapper():
    text = {"model_type": "ministral3", "vocab_size": 100, "hidden_size": 8, "head_dim": 4}
    text |= {"intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = model_from_config(
        {"model_type": "mistral3", "text_config": text | {"num_key_value_heads": 1}}
    )
    assert model.model_type == "ministral3"
    # as Mistral: two norms, q and o of 8 x 8, k and v of 8 x 4, an MLP of 3 x 8 x 16; embedding, head and last norm
    assert total_parameters(model) == 2 * (2 * 8 + 2 * 64 + 2 * 32 + 3 * 8 * 16) + 2 * 100 * 8 + 8


# --- Llama 4 --------------------------------------------------------------------------------------

SCOUT = catalog.model("meta-llama/Llama-4-Scout-17B-16E")
MAVERICK = catalog.model("meta-llama/Llama-4-Maverick-17B-128E-Instruct")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.mark.parametrize("model", [SCOUT, MAVERICK])
def test_llama_4_has_17_billion_active_parameters(model):
    # by the models' names: one of 16 or 128 experts a token, and the shared one
    assert round(active_parameters(model) / 10**9) == 17


def test_maverick_has_experts_in_every_second_layer():
    assert layer_groups(SCOUT) == ((0, 36), (3, 12))  # with and without a norm of queries and keys
    assert layer_groups(MAVERICK) == ((0, 24), (1, 24))
    dense = {module.name for module in layer_modules(MAVERICK, 0)}
    sparse = {module.name for module in layer_modules(MAVERICK, 1)}
    assert "feed_forward.gate_proj" in dense - sparse
    assert "feed_forward.shared_expert.gate_proj" in sparse - dense


def test_llama_4_multiplies_every_token_by_every_expert():
    # four projections, router, shared expert, and 16 times three matrices of 5120 x 8192
    h, f, experts = 5120, 8192, 16
    layer = 2 * h * h + 2 * h * 1024 + h * experts + 3 * h * f * (1 + experts)
    assert matrices(SCOUT, TrainingSetup().adapters).layers == 48 * layer


def test_a_chunk_attends_only_to_itself():
    # 36 layers of one full chunk of 8192 and one of 8, 12 layers of 8200 tokens, each causal
    chunked = 8192 * 8193 // 2 + 8 * 9 // 2
    whole = 8200 * 8201 // 2
    assert attended_pairs(SCOUT, 8200, skips=True) == 36 * chunked + 12 * whole


def test_all_linear_includes_the_router_of_llama_4_which_peft_cannot_train():
    # peft 0.21.2 run on the real class: AttributeError: 'tuple' object has no attribute 'dtype'
    with pytest.raises(
        ValueError,
        match=r"the router of llama4_text, .*; set exclude_modules to router, or name others",
    ):
        estimate(SCOUT, None, LORA)
    named = replace(LORA, lora_target_modules=ATTENTION)
    # r 16, 48 layers, q and o of 5120 x 5120, k and v of 5120 x 1024
    assert adapter_parameters(SCOUT, named.adapters) == 48 * 16 * (
        2 * (5120 + 5120) + 2 * (5120 + 1024)
    )


def test_mlp_target_names_match_the_shared_expert_but_not_the_stack():
    named = replace(LORA, lora_target_modules=("down_proj",))
    adapted = {
        module.name
        for module, _ in modules_with_counts(MAVERICK)
        if is_adapted(module, named.adapters)
    }
    assert adapted == {"feed_forward.down_proj", "feed_forward.shared_expert.down_proj"}


TEXT_OF_SCOUT = {
    "model_type": "llama4_text",
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 16,
    "intermediate_size_mlp": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
}


def test_llama_4_wrapper_is_read_with_its_class_defaults():
    # Llama4TextConfig: every fourth layer has no positions, the others attend in chunks of 8192
    model = model_from_config({"model_type": "llama4", "text_config": TEXT_OF_SCOUT})
    assert model.sliding_window == 8192
    assert model.layer_types == ("sliding_attention",) * 3 + ("full_attention",)
    assert model.no_rope_layers == (False, False, False, True)
    assert (model.intermediate_size, model.moe_intermediate_size) == (32, 16)


# --- GLM-4.7 Flash, ERNIE 4.5 ---------------------------------------------------------------------


def test_glm_4_7_flash_has_about_3_billion_active_parameters():
    # "30B-A3B", by its card; counted without the embedding
    flash = catalog.model("zai-org/GLM-4.7-Flash")
    embedding = flash.vocab_size * flash.hidden_size
    assert (active_parameters(flash) - embedding) / 10**9 == pytest.approx(3.6, abs=0.05)


def test_the_router_of_ernie_stays_in_float32():
    ernie = catalog.model("baidu/ERNIE-4.5-21B-A3B-PT")
    router = next(module for module in layer_modules(ernie, 1) if module.name == "mlp.gate")
    assert module_bytes(router, TrainingSetup(dtype=Dtype.BFLOAT16)) == 4 * 2560 * 64


ERNIE = {
    "model_type": "ernie4_5_moe",
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "moe_intermediate_size": 4,
    "moe_num_experts": 4,
    "moe_k": 2,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("keys", "sparse"),
    # modeling_ernie4_5_moe.py: (layer + 1) % interval == 0 and start <= layer <= end
    [
        ({}, {1, 2, 3}),
        ({"moe_layer_start_index": 0}, {0, 1, 2, 3}),
        ({"moe_layer_interval": 2, "moe_layer_end_index": 2}, {1}),
    ],
)
def test_ernie_has_experts_in_the_layers_its_config_names(keys, sparse):
    model = model_from_config(ERNIE | keys)
    having = {i for i in range(4) if any(m.name == "mlp.gate" for m in layer_modules(model, i))}
    assert having == sparse


# --- OLMo -----------------------------------------------------------------------------------------


def test_the_last_linear_of_an_olmo_with_a_tied_head_is_not_packed():
    # transformers 5.23, quantizers/base.py, get_keys_to_not_convert: the last of named_parameters, which is here
    # model.layers.15.mlp.down_proj.weight, since no norm has a weight and the head is the embedding
    olmo = catalog.model("allenai/OLMo-1B-hf")
    qlora = TrainingSetup(method=Method.QLORA)
    whole = [
        (module.name, count)
        for module, count in modules_with_counts(olmo)
        if isinstance(module, Linear) and not is_quantized(module, qlora.adapters)
    ]
    assert whole == [("mlp.down_proj", 1)]


# --- LFM2 -----------------------------------------------------------------------------------------

LFM2 = {
    "model_type": "lfm2",
    "vocab_size": 100,
    "hidden_size": 8,
    "block_ff_dim": 24,
    "block_multiple_of": 10,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "full_attn_idxs": [1],
}


def test_lfm2_has_convolutions_in_layers_without_attention():
    model = model_from_config(LFM2)
    # two thirds of 24 is 16, the next multiple of 10 is 20; two norms and an MLP of 3 x 8 x 20 in every layer
    every = 2 * 8 + 3 * 8 * 20
    convolution = 8 * 3 + 8 * 24 + 8 * 8  # filters of three, in_proj, out_proj
    attention = 2 * 64 + 2 * 32 + 2 * 4  # q and o of 8 x 8, k and v of 8 x 4, two norms of a head
    assert total_parameters(model) == 3 * every + 2 * convolution + attention + 100 * 8 + 8
    assert attended_pairs(model, 4, skips=True) == 10  # one layer of three has attention
    longer = model_from_config(LFM2 | {"conv_L_cache": 5})
    assert total_parameters(longer) == total_parameters(model) + 2 * 8 * 2


def test_all_linear_excludes_the_filters_of_lfm2():
    adapted = {
        module.name
        for module, _ in modules_with_counts(model_from_config(LFM2))
        if isinstance(module, Linear | Bare) and is_adapted(module, LORA.adapters)
    }
    assert {"conv.in_proj", "conv.out_proj", "self_attn.out_proj", "feed_forward.w2"} <= adapted
    assert "conv.conv" not in adapted


# --- DeepSeek with Liger --------------------------------------------------------------------------


# --- Gemma 4 --------------------------------------------------------------------------------------

E2B = catalog.model("google/gemma-4-E2B-it")
GEMMA_31B = catalog.model("google/gemma-4-31B-it")
GEMMA_26B = catalog.model("google/gemma-4-26B-A4B-it")


def names(model: Model, index: int) -> set[str]:
    return {module.name for module in layer_modules(model, index)}


def test_gemma_4_layers_without_a_window_have_wider_heads():
    # 31B: heads of 256 and 16 for keys in layer 0, of 512 and 4 in layer 5, whose values are its keys
    first, sixth = layer_modules(GEMMA_31B, 0), layer_modules(GEMMA_31B, 5)
    widths = [
        {module.name: module.out_features for module in layer if isinstance(module, Linear)}
        for layer in (first, sixth)
    ]
    assert widths[0]["self_attn.q_proj"] == 32 * 256
    assert widths[1]["self_attn.q_proj"] == 32 * 512
    assert [width["self_attn.k_proj"] for width in widths] == [16 * 256, 4 * 512]
    assert "self_attn.v_proj" in widths[0]
    assert "self_attn.v_proj" not in widths[1]


def test_the_last_layers_reuse_earlier_keys_and_values():
    # E2B: the last 20 of 35 layers reuse keys, every fifth has no window; 13 and 14 are the last of each kind before
    modes = sharing_of_keys(E2B)
    assert [index for index, mode in enumerate(modes) if mode == KEEPING] == [13, 14]
    assert modes[15:33] == (REUSING,) * 18
    own = {"self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm", "self_attn.v_norm"}
    assert names(E2B, 0) - names(E2B, 15) == own
    # their MLPs are also twice as wide
    up = [module for module in layer_modules(E2B, 20) if module.name == "mlp.up_proj"]
    assert [module.out_features for module in up if isinstance(module, Linear)] == [2 * 6144]


def test_every_layer_has_its_part_of_the_second_embedding_table():
    table = next(module for module in outer_modules(E2B) if module.name == "embed_tokens_per_layer")
    assert weight_shapes(table) == ((262_144, 35 * 256),)


def test_gemma_4_26b_has_about_4_billion_active_parameters():
    # "A4B", by its name: 3.8 billion
    assert active_parameters(GEMMA_26B) / 10**9 == pytest.approx(3.82, abs=0.01)


def test_all_linear_includes_the_linears_of_per_layer_embeddings():
    assert {"per_layer_model_projection", "per_layer_input_gate"} <= adapted_by_all_linear(E2B)
    # PEFT 0.21 lists no former names for Gemma 4's experts
    beside_experts = adapted_by_all_linear(GEMMA_26B)
    assert "router.proj" in beside_experts
    assert not any(name.startswith("experts") for name in beside_experts)


def adapted_by_all_linear(model: Model) -> set[str]:
    adaptable = (
        module for module, _ in modules_with_counts(model) if isinstance(module, Linear | Bare)
    )
    return {module.name for module in adaptable if is_adapted(module, LORA.adapters)}


def test_wider_heads_add_more_attention_operations():
    # 31B at 2,048 tokens: 50 layers with windows of 1,024; 10 without, whose heads are twice as wide
    windowed = 1024 * 2048 - 1024 * 1023 // 2
    causal = 2048 * 2049 // 2
    assert attended_pairs(GEMMA_31B, 2048, skips=True) == 50 * windowed + 10 * causal * 2
    assert attended_pairs(GEMMA_31B, 2048, skips=False) == (50 + 20) * 2048**2


TEXT_OF_GEMMA_4 = {
    "model_type": "gemma4_text",
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
}


def test_gemma_4_is_read_with_its_class_defaults():
    # Gemma4TextConfig: a head tied to the embedding, windows of 512 in five of six layers, embeddings of 256 a layer
    model = model_from_config({"model_type": "gemma4", "text_config": TEXT_OF_GEMMA_4})
    assert model.tie_word_embeddings
    assert model.layer_types == ("sliding_attention",) * 5 + ("full_attention",)
    assert (model.sliding_window, model.head_dim, model.global_head_dim) == (512, 4, 512)
    assert (model.hidden_size_per_layer_input, model.vocab_size_per_layer_input) == (256, 262_144)


def test_head_sizes_may_be_given_per_layer():
    # the form in which transformers 5.23 saves a config
    saved = TEXT_OF_GEMMA_4 | {"per_layer_config": {"5": {"head_dim": 8, "num_key_value_heads": 1}}}
    model = model_from_config(saved)
    assert (model.global_head_dim, model.num_global_key_value_heads) == (8, 1)
    before = {"global_head_dim": 8, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
    assert model_from_config(TEXT_OF_GEMMA_4 | before).num_global_key_value_heads == 1


def test_gemma_4_without_shared_keys_is_sharded():
    setup = TrainingSetup(mixed_precision=MixedPrecision.NO, model_class=ModelClass.TEXT)
    one = estimate(GEMMA_31B, None, setup)
    two = estimate(GEMMA_31B, None, replace(setup, strategy=Strategy.FSDP, num_gpus=2))
    assert two.peak.bytes < 0.6 * one.peak.bytes


def test_a_custom_layer_count_too_small_for_shared_keys_is_refused():
    assert resized(E2B, {"num_hidden_layers": 26}).layer_types[-1] == "full_attention"
    with pytest.raises(ValueError, match="num_hidden_layers 22 is too few for gemma4_text"):
        resized(E2B, {"num_hidden_layers": 22})
    with pytest.raises(ValueError, match="num_hidden_layers 10 is too few for gemma3n_text"):
        resized(catalog.model("google/gemma-3n-E2B-it"), {"num_hidden_layers": 10})


def test_liger_patches_neither_unknown_norms_nor_the_mlp_beside_experts():
    # liger-kernel 0.8.5, monkey_patch.py, apply_liger_kernel_to_gemma4_text
    setup = TrainingSetup(use_liger_kernel=True)
    assert kernels(GEMMA_31B, setup.computation, setup.adapters).mlp
    assert not kernels(GEMMA_26B, setup.computation, setup.adapters).mlp
    assert "post_per_layer_input_norm" in kernels(E2B, setup.computation, setup.adapters).left
    fused = estimate(GEMMA_31B, None, setup).phases[Phase.LOSS].bytes
    assert fused < estimate(GEMMA_31B, None, TrainingSetup()).phases[Phase.LOSS].bytes


# --- PhiMoE ---------------------------------------------------------------------------------------

PHI_MOE = {  # microsoft/Phi-3.5-MoE-instruct, from its class's defaults and its published count
    "model_type": "phimoe",
    "vocab_size": 32_064,
    "hidden_size": 4096,
    "intermediate_size": 6400,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "attention_bias": True,
    "lm_head_bias": True,
}


def test_phi_3_5_moe_has_its_published_parameter_count():
    # the Hub's safetensors.total, by llmfit 1.1.17, hf_models.json
    model = model_from_config(PHI_MOE)
    assert total_parameters(model) == 41_873_153_344
    assert active_parameters(model) / 10**9 == pytest.approx(6.6, abs=0.05)  # "6.6B", by its card


def test_noise_on_the_expert_input_is_kept_twice_per_layer():
    quiet = model_from_config(PHI_MOE | {"num_hidden_layers": 4})
    noisy = model_from_config(PHI_MOE | {"num_hidden_layers": 4, "input_jitter_noise": 0.01})
    setup = TrainingSetup(mixed_precision=MixedPrecision.NO, max_length=512)
    kept = [
        estimate(model, None, setup).phases[Phase.LOSS].resident[Component.ACTIVATIONS]
        for model in (quiet, noisy)
    ]
    assert kept[1] - kept[0] == 4 * 2 * 512 * 4096 * 2


def test_all_linear_includes_the_router_of_phimoe_which_peft_cannot_train():
    # peft 0.21.2 run on the real class: AttributeError: 'tuple' object has no attribute 'dtype'
    with pytest.raises(
        ValueError,
        match=r"the router of phimoe, .*; set exclude_modules to router, or name others",
    ):
        estimate(model_from_config(PHI_MOE), None, LORA)


# --- Gemma 3n -------------------------------------------------------------------------------------

GEMMA_3N = catalog.model("google/gemma-3n-E2B-it")


def test_gemma_3n_is_read_with_its_class_defaults():
    # Gemma3nTextConfig: four streams, rank 64, ten layers with sparse gates, every fifth layer without a window
    text = {"model_type": "gemma3n_text", "vocab_size": 100, "hidden_size": 8}
    text |= {"num_hidden_layers": 35, "num_attention_heads": 8}
    model = model_from_config({"model_type": "gemma3n", "text_config": text})
    assert (model.altup_num_inputs, model.laurel_rank, model.cut_layers) == (4, 64, 10)
    assert (model.num_kv_shared_layers, model.intermediate_size) == (15, 16_384)
    assert model.layer_types[:5] == ("sliding_attention",) * 4 + ("full_attention",)
    assert model.final_logit_softcapping


def test_a_packed_gemma_3n_is_refused():
    # transformers 5.23 run on a packed base: a and b must have same reduction dim, but got [512, 4] X [1, 8]
    for packed in ({"method": Method.QLORA}, {"method": Method.LORA, "load_in_8bit": True}):
        with pytest.raises(ValueError, match=r"fails in gemma3n_text, .* altup.correction_coefs"):
            estimate(GEMMA_3N, None, TrainingSetup(**packed))


def test_only_the_registry_compares_model_types():
    """A comparison with ``model_type`` is family-specific and belongs in that family's record."""
    asking = []
    for folder in ("estimator", "dashboard"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                asked = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
                asked += [node.subject] if isinstance(node, ast.Match) else []
                if any(
                    isinstance(operand, ast.Attribute) and operand.attr == "model_type"
                    for operand in asked
                ):
                    asking.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert [
        place for place in asking if not place.startswith("estimator/families/registry.py")
    ] == []
    assert asking, "the registry itself is found"
