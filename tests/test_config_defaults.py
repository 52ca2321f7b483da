"""Keys missing from a config take their class's default: every key of every family, singly and together.

tests/reference/config_defaults.jsonl lists the defaults of transformers 5.23's config classes, as written by
tests/verify/test_config_defaults_real.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimator import Model
from estimator.families.hf_config import model_from_config
from estimator.families.registry import MODELLED
from tests.rows import for_each

FILE = Path(__file__).parent / "reference" / "config_defaults.jsonl"
CONFIGS: dict[str, dict[str, Any]] = {
    config["model_type"]: config for config in map(json.loads, FILE.read_text().splitlines())
}
WITHOUT_A_CLASS = {"internlm3"}
"""Remote code on the Hub."""
POSITIONS = {"max_position_embeddings", "max_seq_len", "n_positions"}
"""Left out, they are unknown rather than the class's, unless they are learned."""
UNUSED = {("qwen3_next", "intermediate_size"), ("qwen3_5_moe_text", "intermediate_size")}
"""No layer has an MLP of that width."""


def seen(config: dict[str, Any]) -> Model:
    return replace(model_from_config(config), max_position_embeddings=0, learned_positions=0)


ASKED_FOR = r"config (has no \w+; add it, a whole number|says nothing of its layers; add hybrid)"
"""Sizes that no config of the Hub leaves out have no default here."""


def required(config: dict[str, Any]) -> set[str]:
    found = {"model_type"}
    for key in config.keys() - found:
        try:
            model_from_config({name: value for name, value in config.items() if name != key})
        except ValueError as error:
            if not re.search(ASKED_FOR, str(error)):
                raise
            found.add(key)
    return found


def test_every_family_is_in_the_file():
    assert CONFIGS.keys() == MODELLED - WITHOUT_A_CLASS


@for_each("model_type", sorted(CONFIGS))
def test_a_missing_key_takes_its_class_s_default(model_type):
    config = CONFIGS[model_type]
    needed, whole = required(config), seen(config)
    for key in config.keys() - needed:
        if (model_type, key) in UNUSED:
            continue
        without = {name: value for name, value in config.items() if name != key}
        assert seen(without) == whole, key
        if key not in POSITIONS:
            assert model_from_config(without) == model_from_config(config), key


@for_each("model_type", sorted(CONFIGS))
def test_a_config_with_only_sizes_takes_all_class_defaults(model_type):
    config = CONFIGS[model_type]
    kept = required(config) | {key for family, key in UNUSED if family == model_type}
    assert seen({key: config[key] for key in kept if key in config}) == seen(config)


@pytest.mark.parametrize("name", ["5", "05", "0005"])
def test_per_layer_keys_match_layer_numbers_with_leading_zeros(name):
    # transformers 5.23 saves "05" where a model has ten layers or more
    config = {key: value for key, value in CONFIGS["gemma4_text"].items() if key != "layer_types"}
    config |= {"num_hidden_layers": 6, "per_layer_config": {name: {"head_dim": 384}}}
    assert model_from_config(config).global_head_dim == 384


@pytest.mark.parametrize(
    ("keys", "sparse"),
    [
        (
            {"moe_layer_interval": 1, "moe_layer_start_index": 2, "moe_layer_end_index": 4},
            {2, 3, 4},
        ),
        (
            {"moe_layer_interval": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1},
            {1, 3, 5},
        ),
        ({"moe_layer_interval": 3, "moe_layer_start_index": 0, "moe_layer_end_index": 4}, {2}),
    ],
)
def test_ernie_has_experts_at_an_interval_between_two_layers(keys, sparse):
    # transformers 5.23, modeling_ernie4_5_moe.py: (layer_idx + 1) % interval == 0 and start <= layer_idx <= end
    config = CONFIGS["ernie4_5_moe"] | {"num_hidden_layers": 6} | keys
    config.pop("mlp_layer_types", None)
    kinds = model_from_config(config).mlp_layer_types
    assert {index for index, kind in enumerate(kinds) if kind == "sparse"} == sparse
    assert len(kinds) == 6


@pytest.mark.parametrize(
    ("keys", "sparse"),
    [
        ({"moe_layers": [1, 4]}, {1, 4}),
        ({"moe_layers": None, "interleave_moe_layer_step": 2}, {1, 3, 5}),
        ({"moe_layers": None, "interleave_moe_layer_step": 3}, {2, 5}),
    ],
)
def test_llama_4_has_experts_in_listed_layers_or_at_an_interval(keys, sparse):
    config = CONFIGS["llama4_text"] | {"num_hidden_layers": 6} | keys
    for derived in ("layer_types", "no_rope_layers"):
        config.pop(derived, None)
    kinds = model_from_config(config).mlp_layer_types
    assert {index for index, kind in enumerate(kinds) if kind == "sparse"} == sparse


@pytest.mark.parametrize("listed", [[1, "2"], [True], "12", 3])
def test_llama_4_s_moe_layers_must_be_integers(listed):
    config = CONFIGS["llama4_text"] | {"moe_layers": listed}
    with pytest.raises(ValueError, match="moe_layers must list whole numbers"):
        model_from_config(config)
