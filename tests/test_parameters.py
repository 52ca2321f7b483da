"""Parameter counts: by hand, and of every catalogued model to the last digit.

Expected counts are the Hub's own (``safetensors.total``, data/models.csv) or are written out here.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from estimator import catalog
from estimator.families.adapters import (
    adapter_parameters,
    default_targets,
    is_adapted,
    trainable_parameters,
)
from estimator.families.known.falcon import falcon_norm_names
from estimator.families.model_tree import (
    active_parameters,
    layer_modules,
    outer_modules,
    total_parameters,
)
from estimator.families.modules import (
    TINY_LLAMA,
    Embedding,
    Linear,
    Norm,
    module_parameters,
    weight_shapes,
)
from estimator.families.registry import MODELLED
from estimator.parallel.tensors import model_tensors
from estimator.values.facets.adapters import Adapters
from estimator.values.methods import Method
from estimator.values.setup import TrainingSetup
from estimator.values.specs import StateSpace
from tests.rows import for_each

GPT2 = catalog.model("openai-community/gpt2")
LLAMA_3_8B = catalog.model("meta-llama/Meta-Llama-3-8B")
MIXTRAL = catalog.model("mistralai/Mixtral-8x7B-v0.1")
LORA = TrainingSetup(method=Method.LORA, lora_r=8)
PUBLISHED = [entry for entry in catalog.models().values() if entry.published_parameters is not None]


@for_each("entry", PUBLISHED)
def test_published_count_is_reproduced_to_the_last_digit(entry):
    ours = total_parameters(entry.model) + entry.published_extra
    assert ours == entry.published_parameters


def test_nearly_every_catalogued_model_has_a_published_count():
    assert len(PUBLISHED) >= len(catalog.models()) - 6


def test_gpt2_by_hand():
    h = 768
    layer = 2 * 2 * h + (h * 3 * h + 3 * h) + (h * h + h) + (h * 4 * h + 4 * h) + (4 * h * h + h)
    assert total_parameters(GPT2) == 50257 * h + 1024 * h + 12 * layer + 2 * h == 124_439_808


def test_llama_3_8b_by_hand():
    h, kv, f = 4096, 8 * 128, 14336
    layer = 2 * h * h + 2 * h * kv + 3 * h * f + 2 * h
    assert total_parameters(LLAMA_3_8B) == 2 * 128_256 * h + 32 * layer + h == 8_030_261_248


def test_a_tied_head_is_not_counted():
    tied = replace(TINY_LLAMA, tie_word_embeddings=True)
    assert total_parameters(TINY_LLAMA) - total_parameters(tied) == 10 * 8
    assert "lm_head" not in [module.name for module in outer_modules(tied)]


def test_mixtral_8x7b_by_hand():
    h, kv, f, experts = 4096, 8 * 128, 14336, 8
    layer = 2 * h * h + 2 * h * kv + experts * h + experts * 3 * h * f + 2 * h
    assert total_parameters(MIXTRAL) == 2 * 32_000 * h + 32 * layer + h == 46_702_792_704


def test_mixtral_8x7b_activates_two_of_eight_experts():
    # "a 47B parameter model, but only uses 13B active parameters": arXiv:2401.04088, abstract
    idle = 32 * 6 * 3 * 4096 * 14336
    assert active_parameters(MIXTRAL) == total_parameters(MIXTRAL) - idle == 12_879_925_248


@pytest.mark.parametrize(
    ("hub_id", "billions"),
    # the model cards' "activated" parameters, which count embeddings and head
    [("Qwen/Qwen3-30B-A3B", 3.3), ("Qwen/Qwen3-235B-A22B", 22), ("Qwen/Qwen1.5-MoE-A2.7B", 2.7)],
)
def test_active_parameters_match_the_model_card(hub_id, billions):
    assert active_parameters(catalog.model(hub_id)) / 1e9 == pytest.approx(billions, rel=0.02)


def test_all_parameters_of_a_dense_model_are_active():
    assert active_parameters(LLAMA_3_8B) == total_parameters(LLAMA_3_8B)


def test_experts_are_two_three_dimensional_tensors():
    stacks = [
        shape for m in layer_modules(MIXTRAL) for shape in weight_shapes(m) if len(shape) == 3
    ]
    assert stacks == [(8, 2 * 14336, 4096), (8, 4096, 14336)]


def test_all_linear_includes_router_and_experts_that_peft_maps_by_old_names():
    # PEFT 0.21: gate and up were two linears, now one stack, so its rank doubles; every expert has its own adapter
    h, f, experts, r = 4096, 14336, 8, 8
    attention = r * (2 * (h + h) + 2 * (h + 1024))
    stacks = 2 * r * experts * (h + 2 * f) + r * experts * (f + h)
    layer = attention + r * (h + experts) + stacks
    setup = replace(LORA, lora_dropout=0.0)
    assert adapter_parameters(MIXTRAL, setup.adapters) == 32 * layer


def test_all_linear_adapts_only_true_linears_of_qwen2_moe():
    model = catalog.model("Qwen/Qwen1.5-MoE-A2.7B")
    h, shared = 2048, 5632
    linears = 4 * (h + h) + 3 * (h + shared) + (h + 1)
    assert adapter_parameters(model, LORA.adapters) == 24 * 8 * linears


def test_dropout_on_adapted_experts_is_refused_as_peft_refuses_it():
    with pytest.raises(
        ValueError, match=r"PEFT refuses lora_dropout 0\.05 with .*; set lora_dropout to 0"
    ):
        adapter_parameters(MIXTRAL, LORA.adapters)
    attention_alone = replace(LORA, lora_target_modules=("q_proj", "v_proj"))
    assert adapter_parameters(MIXTRAL, attention_alone.adapters) == 32 * 8 * (
        (4096 + 4096) + (4096 + 1024)
    )


def test_adapting_gate_without_up_is_refused():
    half = replace(LORA, lora_dropout=0.0, lora_target_modules=("w1", "w2"))
    with pytest.raises(ValueError, match="leaves out 'w3', which mixtral fuses with 'w1'"):
        adapter_parameters(MIXTRAL, half.adapters)


def test_conv1d_stores_its_weight_transposed():
    assert weight_shapes(Linear("c_attn", 4, 12, bias=True, conv1d=True)) == ((4, 12), (12,))
    assert weight_shapes(Linear("q_proj", 4, 12)) == ((12, 4),)


def test_norm_shapes():
    assert weight_shapes(Norm("norm", 4, bias=True)) == ((4,), (4,))
    assert weight_shapes(Norm("norm", 4, weight=False)) == ()
    assert weight_shapes(Embedding("wte", 5, 4)) == ((5, 4),)


def test_olmo_norms_have_no_parameters():
    norms = layer_modules(catalog.model("allenai/OLMo-7B-hf"))
    assert sum(module_parameters(module) for module in norms if isinstance(module, Norm)) == 0


def test_apertus_has_two_scalars_in_its_activation():
    apertus = layer_modules(catalog.model("swiss-ai/Apertus-8B-2509"))
    (activation,) = [module for module in apertus if module.name == "mlp.act_fn"]
    assert module_parameters(activation) == 2


def test_falcon_11b_has_one_norm_per_layer_and_40b_two():
    assert falcon_norm_names(catalog.model("tiiuae/falcon-11B")) == ("input_layernorm",)
    assert falcon_norm_names(catalog.model("tiiuae/falcon-40b")) == ("ln_attn", "ln_mlp")


def test_opt_350m_projects_its_embedding_and_has_no_final_norm():
    names = [module.name for module in outer_modules(catalog.model("facebook/opt-350m"))]
    assert names == ["embed_tokens", "embed_positions", "project_out", "project_in"]


@for_each("model_type", sorted(MODELLED))
def test_names_within_a_layer_are_unique(model_type):
    mixer = StateSpace(heads=2, head_dim=4, state_size=4, groups=1, chunk_size=4)
    model = replace(TINY_LLAMA, model_type=model_type, max_position_embeddings=16, qk_norm=True)
    model = replace(model, state_space=mixer if model_type == "falcon_h1" else None)
    names = [module.name for module in layer_modules(model)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("model_type", ["chatglm", "bert", ""])
def test_unknown_architecture_is_refused_by_name(model_type):
    unknown = replace(TINY_LLAMA, model_type=model_type)
    for count in (total_parameters, layer_modules, outer_modules):
        with pytest.raises(
            ValueError, match=rf"architecture '{model_type}' is not modelled.*llama"
        ):
            count(unknown)


def test_a_layer_beyond_the_last_is_refused():
    with pytest.raises(ValueError, match="layer 2 does not exist in a model with 2 layers"):
        layer_modules(TINY_LLAMA, 2)


def test_learned_positions_need_max_position_embeddings():
    with pytest.raises(
        ValueError, match="gpt2 has learned positions; give max_position_embeddings"
    ):
        total_parameters(replace(TINY_LLAMA, model_type="gpt2"))


def test_all_linear_adapts_every_linear_but_the_head():
    per_layer = 8 * ((4096 + 4096) * 2 + (4096 + 1024) * 2 + (4096 + 14336) * 3)
    assert adapter_parameters(LLAMA_3_8B, LORA.adapters) == 32 * per_layer == 20_971_520
    assert not is_adapted(Linear("lm_head", 8, 8), LORA.adapters)


def test_a_target_matches_an_exact_name_or_its_last_part():
    both = replace(LORA, lora_target_modules=("c_proj",))
    one = replace(LORA, lora_target_modules=("mlp.c_proj",))
    assert adapter_parameters(GPT2, both.adapters) == 12 * 8 * ((768 + 768) + (3072 + 768))
    assert adapter_parameters(GPT2, one.adapters) == 12 * 8 * (3072 + 768)


def test_a_partial_name_matches_nothing():
    assert not is_adapted(
        Linear("self_attn.q_proj", 8, 8), LORA.replace(lora_target_modules=("proj",)).adapters
    )


def test_full_fine_tuning_trains_everything_and_adapts_nothing():
    assert trainable_parameters(GPT2, Adapters()) == total_parameters(GPT2)
    assert adapter_parameters(GPT2, Adapters()) == 0
    assert not is_adapted(Linear("q_proj", 8, 8), TrainingSetup().adapters)


@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA])
def test_only_adapters_are_trained(method):
    setup = replace(LORA, method=method)
    assert trainable_parameters(LLAMA_3_8B, setup.adapters) == adapter_parameters(
        LLAMA_3_8B, setup.adapters
    )


@pytest.mark.parametrize("rank", [1, 8, 64])
def test_adapters_grow_with_the_rank(rank):
    one = adapter_parameters(GPT2, replace(LORA, lora_r=1).adapters)
    assert adapter_parameters(GPT2, replace(LORA, lora_r=rank).adapters) == rank * one


@pytest.mark.parametrize("targets", [("q_proj",), ("q_proj", "k_proj")])
def test_targets_that_match_nothing_are_refused_with_the_available_names(targets):
    setup = replace(LORA, lora_target_modules=targets)
    with pytest.raises(
        ValueError, match=re.escape("attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj")
    ):
        adapter_parameters(GPT2, setup.adapters)


def test_a_target_without_a_match_is_ignored_beside_one_that_matches():
    alone = adapter_parameters(GPT2, replace(LORA, lora_target_modules=("c_attn",)).adapters)
    both = adapter_parameters(
        GPT2, replace(LORA, lora_target_modules=("c_attn", "q_proj")).adapters
    )
    assert both == alone


def test_a_regular_expression_is_resolved_where_setups_are_read():
    with pytest.raises(ValueError, match=r"regular expression, which only parse\(\) resolves"):
        adapter_parameters(GPT2, replace(LORA, lora_target_modules=".*attn").adapters)


ONE_OF_EACH = {entry.model.model_type: entry.model for entry in PUBLISHED}


@for_each("kind", sorted(ONE_OF_EACH))
def test_the_list_of_tensors_has_each_trained_parameter_once(kind):
    # against the counts, which are compared with PEFT's own
    model, lora = ONE_OF_EACH[kind], Adapters(method="lora")
    lora = replace(lora, lora_target_modules=default_targets(model, lora))
    for adapters in (Adapters(), lora, replace(lora, modules_to_save=("lm_head",))):
        tensors = [tensor for tensor in model_tensors(model, adapters) if tensor.trained]
        count = sum(tensor.alike * tensor.numel for tensor in tensors)
        assert count == trainable_parameters(model, adapters)
