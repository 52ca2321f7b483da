"""PEFT's patterns: which layers get adapters, at which rank, and which biases are trained.

tests/verify compares the counts with PEFT; tests/test_reference.py compares whole steps with traced ones.
"""

from __future__ import annotations

from dataclasses import replace

from estimator import Method, TrainingSetup, catalog
from estimator.families.adapters import adapter_parameters, lowest_trained, trainable_parameters
from estimator.families.loaded import adapted_groups
from estimator.families.modules import TINY_LLAMA
from estimator.passes.stack import kinds_of
from estimator.time.flops import matrices

LLAMA = catalog.model("meta-llama/Llama-3.2-1B")
LORA = TrainingSetup(method=Method.LORA, lora_r=2, lora_target_modules=("q_proj", "up_proj"))
Q, UP = 8 + 8, 8 + 16
"""TINY_LLAMA: in + out of both, in each of two layers."""


def trained(**keys: object) -> int:
    return trainable_parameters(TINY_LLAMA, replace(LORA, **keys).adapters)


def test_only_listed_layers_get_adapters():
    assert trained() == 2 * 2 * (Q + UP)
    assert trained(layers_to_transform=(1,)) == 2 * (Q + UP)
    assert trained(layers_to_transform=1) == 2 * (Q + UP)


def test_backward_stops_at_the_lowest_adapted_layer():
    assert lowest_trained(TINY_LLAMA, replace(LORA, layers_to_transform=(1,))) == 1
    assert lowest_trained(LLAMA, replace(LORA, exclude_modules=("layers.0",))) == 0
    zeroth = ("layers.0.self_attn.q_proj", "layers.0.mlp.up_proj")
    assert lowest_trained(LLAMA, replace(LORA, exclude_modules=zeroth)) == 1


def test_exclude_modules_matches_the_end_of_a_name():
    assert trained(exclude_modules=("q_proj",)) == 2 * 2 * UP
    assert trained(exclude_modules=("layers.1.self_attn.q_proj",)) == 2 * (Q + 2 * UP)
    assert trained(exclude_modules=("proj",)) == trained()


def test_the_first_matching_pattern_gives_the_rank():
    assert trained(rank_pattern={"q_proj": 5}) == 2 * (5 * Q + 2 * UP)
    by_layer = {"layers.0.self_attn.q_proj": 7, "q_proj": 5}
    assert trained(rank_pattern=by_layer) == (7 + 5) * Q + 2 * 2 * UP


def test_an_adapter_bias_has_one_element_per_output():
    assert trained(lora_bias=True) == trained() + 2 * (8 + 16)


def test_base_biases_are_trained_but_not_added():
    """ "lora_only" trains the bias of q; "all" also those of k, v and o. Llama's norms have no bias."""
    biased = replace(TINY_LLAMA, attention_bias=True, attention_output_bias=True)
    only, every = replace(LORA, bias="lora_only"), replace(LORA, bias="all")
    added = adapter_parameters(biased, LORA.adapters)
    assert adapter_parameters(biased, every.adapters) == added
    assert trainable_parameters(biased, only.adapters) == added + 2 * 8
    assert trainable_parameters(biased, every.adapters) == added + 2 * (8 + 4 + 4 + 8)


def test_layers_with_different_adapters_are_simulated_separately():
    setup = replace(LORA, layers_to_transform=(0, 5, 6))
    kinds = kinds_of(LLAMA, setup, 512)
    assert len({kind.modules for kind in kinds}) == 2
    assert adapted_groups(LLAMA, setup.adapters) == ((0, 3), (1, 13))


def test_operations_follow_the_rank_of_each_module():
    """Twice the rank counts as twice the inputs and outputs at the common rank."""
    setup = replace(LORA, rank_pattern={"up_proj": 4})
    assert matrices(TINY_LLAMA, setup.adapters).adapter_inputs == 2 * (8 + 2 * 8)


def test_stacked_experts_get_adapters_of_the_configured_rank():
    """Named by the parameter: r per expert. Named by its two former modules: 2 r, as PEFT converts them."""
    moe = catalog.model("Qwen/Qwen3-30B-A3B")
    named = replace(
        LORA,
        lora_dropout=0.0,
        lora_target_modules=("q_proj",),
        target_parameters=("mlp.experts.gate_up_proj",),
    )
    converted = replace(
        LORA, lora_dropout=0.0, lora_target_modules=("q_proj", "gate_proj", "up_proj")
    )
    alone = adapter_parameters(moe, replace(named, target_parameters=None).adapters)
    by_name = adapter_parameters(moe, named.adapters) - alone
    assert by_name == 48 * 128 * 2 * (2048 + 2 * 768)
    assert adapter_parameters(moe, converted.adapters) - alone == 2 * by_name
