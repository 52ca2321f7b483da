"""Device maps: the real libraries' maps, stored in a file; the rules by hand; the command that prints them.

tests/reference/placements.jsonl holds what accelerate 1.15 and transformers 5.23 inferred
(tests/verify/test_placement_real.py writes and checks it).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import catalog
from estimator.__main__ import main
from estimator.contract.placement_request import place
from estimator.contract.setups import read_model
from estimator.families.model_tree import (
    ModuleNode,
    module_tree,
    total_parameters,
    untrained_parameters,
)
from estimator.families.modules import TINY_LLAMA
from estimator.parallel.placement import (
    ACCELERATE,
    Balance,
    Packing,
    from_pretrained_device_map,
    infer_auto_device_map,
    sizes_in_bits,
)
from tests.rows import for_each

ROOT = Path(__file__).resolve().parent.parent


def cases(name):
    lines = (ROOT / "tests" / "reference" / name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


GOLDEN = cases("placements.jsonl")
GPT2 = "openai-community/gpt2"
TIED = replace(TINY_LLAMA, tie_word_embeddings=True)
EMBEDDING, LAYER = 160, 1184
"""Bytes in bfloat16: twice 10 · 8, and twice 8 · (8 + 4 + 4 + 8) + 3 · 8 · 16 + 2 · 8."""


# --- the real libraries ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=f"{i}-{case['request']['model']}") for i, case in enumerate(GOLDEN)],
)
def test_maps_match_the_library_module_by_module(case):
    assert place(case["request"]) == case["map"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("google/gemma-4-E2B-it", "the vision tower of gemma4 is not modelled yet"),
        (GPT2, "places a vision tower"),
    ],
)
def test_a_tower_that_is_not_known_is_refused(model, said):
    with pytest.raises(ValueError, match=said):
        place({"model": model, "max_memory": {"0": "1GiB"}, "model_class": "image_text"})


def test_a_tied_head_follows_the_text_s_embedding_and_not_the_tower():
    # Gemma 3 4B in bfloat16: 2.10 GiB hold the tower (0.78) beside a reserve of 1.25, but not the embedding (1.25) too
    limits = {"0": "2150MiB", "1": "24GiB"}
    placed = place(
        {"model": "google/gemma-3-4b-it", "max_memory": limits, "model_class": "image_text"}
    )
    text = next(gpu for name, gpu in placed.items() if name.startswith("model.language_model"))
    assert placed["model.vision_tower"] == 0
    assert placed["lm_head"] == text == 1


def test_stored_maps_cover_everything_that_affects_a_map():
    models = [catalog.model(case["request"]["model"]) for case in GOLDEN]
    assert len(GOLDEN) >= 30
    assert len({model.model_type for model in models}) >= 20
    assert {model.tie_word_embeddings for model in models} == {True, False}
    assert sum(model.num_experts > 0 for model in models) >= 4
    assert {"cpu", "disk"} <= {device for case in GOLDEN for device in case["map"].values()}
    assert any(case["request"].get("load_in_4bit") for case in GOLDEN)


# --- the tree -------------------------------------------------------------------------------------


@for_each("name", sorted(catalog.models()))
def test_the_module_tree_contains_every_parameter_once(name):
    """Without buffers, the tree has as many elements as ``total_parameters`` counts and the Hub publishes."""
    model = catalog.model(name)
    buffers = {"inv_freq", "embed_positions", "embed_scale", "beta", "eps"}
    buffers |= {"e_score_correction_bias", "layer_scalar"}
    buffers |= {"router_input_scale", "per_layer_projection_scale", "per_layer_input_scale"}
    held = sum(
        one.elements
        for node in module_tree(model).walk()
        for one in node.tensors
        if one.name not in buffers
    )
    # ERNIE's correction bias, a buffer in other models, is a parameter that is never trained
    assert held + untrained_parameters(model) == total_parameters(model)


def test_experts_split_into_two_stacks_and_the_activation():
    tree = module_tree(catalog.model("mistralai/Mixtral-8x7B-v0.1"))
    experts = next(node for node in tree.walk() if node.class_name == "MixtralExperts")
    assert [part.name.rpartition(".")[2] for part in experts.parts] == [
        "gate_up_proj",
        "down_proj",
        "act_fn",
    ]


def test_a_mask_counts_one_bit_per_element():
    """accelerate 1.15, utils/modeling.py, ``dtype_byte_size``: torch.bool is an eighth of a byte."""
    names = {"model_type": "gpt_bigcode", "n_embd": 8, "n_layer": 1, "n_head": 2}
    asked = names | {"n_positions": 16, "vocab_size": 10}
    sizes = sizes_in_bits(module_tree(read_model(asked)), ACCELERATE["float16"])
    whole = sizes["transformer"]
    children = sum(size for name, size in sizes.items() if name.count(".") == 1)
    assert whole - children == 16 * 16


# --- the rules, by hand ---------------------------------------------------------------------------


def layers_on(placed, device):
    return [name for name, where in placed.items() if where == device]


def test_the_first_gpu_reserves_room_for_the_largest_remaining_layer():
    enough = EMBEDDING + LAYER + LAYER  # one layer placed, room for another
    assert infer_auto_device_map(TINY_LLAMA, {0: enough})["model.layers.0"] == 0
    assert infer_auto_device_map(TINY_LLAMA, {0: enough - 1})["model.layers"] == "disk"


def test_the_second_gpu_reserves_no_room():
    placed = infer_auto_device_map(TINY_LLAMA, {0: 0, 1: EMBEDDING + LAYER})
    assert layers_on(placed, 1) == ["model.embed_tokens", "model.layers.0"]


def test_a_tied_head_is_placed_with_the_embedding_and_an_untied_one_last():
    limits = {0: EMBEDDING + 2 * LAYER, 1: 10**6}
    assert infer_auto_device_map(TIED, limits)["lm_head"] == 0
    assert infer_auto_device_map(TINY_LLAMA, limits)["lm_head"] == 1


def test_a_model_on_one_device_is_one_key():
    assert infer_auto_device_map(TINY_LLAMA, {0: 10**6}) == {"": 0}
    assert infer_auto_device_map(TINY_LLAMA, {"cpu": 10**6}) == {"": "cpu"}
    assert infer_auto_device_map(TINY_LLAMA, {0: 10}) == {"": "disk"}


def test_a_layer_is_split_only_if_allowed():
    limits = {0: 0, 1: EMBEDDING + 400}
    whole = infer_auto_device_map(TINY_LLAMA, limits)
    split = infer_auto_device_map(TINY_LLAMA, limits, no_split_module_classes=())
    assert layers_on(whole, 1) == ["model.embed_tokens"]
    assert layers_on(split, 1) == ["model.embed_tokens", "model.layers.0.self_attn"]


def test_auto_limits_all_gpus_but_the_last_to_a_share_and_a_buffer():
    """2,720 bytes: transformers counts rotary buffers as float32. 2,720 / 3 + 1.25 · 1,184 = 2,386 a GPU."""
    three = dict.fromkeys(range(3), 10**6)
    held = {0: 2386, 1: 2386, 2: 10**6}
    sequential = from_pretrained_device_map(TINY_LLAMA, held, balance=Balance.SEQUENTIAL)
    assert from_pretrained_device_map(TINY_LLAMA, three) == sequential
    assert set(sequential.values()) == {0, 1, 2}


def test_quantising_reserves_a_tenth_of_every_device():
    """At 4 bits: a layer 8 · 24 / 2 + 3 · 8 · 16 / 2 + 32 = 320; all 160 + 640 + 16 + 16 + 160 = 992."""
    fits, short = {0: 1103}, {0: 1102}  # 0.9 · 1,103 = 992.7 and 0.9 · 1,102 = 991.8
    keys = {"balance": Balance.SEQUENTIAL, "packing": Packing.FOUR_BIT}
    assert from_pretrained_device_map(TINY_LLAMA, fits, **keys) == {"": 0}
    with pytest.raises(ValueError, match="give the GPUs more max_memory"):
        from_pretrained_device_map(TINY_LLAMA, short, **keys)


LIMITS = st.lists(st.integers(0, 4000), max_size=4)


@given(LIMITS, st.sampled_from([TINY_LLAMA, TIED]), st.sampled_from(list(Balance)))
def test_every_tensor_is_on_one_device_and_no_device_overflows(gpus, model, balance):
    placed = infer_auto_device_map(model, dict(enumerate(gpus)), balance=balance)
    sizes = sizes_in_bits(module_tree(model), ACCELERATE["bfloat16"])
    assert sum(sizes[name] for name in placed) == sizes[""]
    for device, limit in enumerate(gpus):
        assert sum(sizes[name] for name in layers_on(placed, device)) <= 8 * limit
    leaves = [node for node in module_tree(model).walk() if not node.children]
    assert all(sum(_covers(name, leaf) for name in placed) == 1 for leaf in leaves)


def _covers(name: str, leaf: ModuleNode) -> bool:
    return not name or f"{leaf.name}.".startswith(f"{name}.")


# --- the request ----------------------------------------------------------------------------------


def test_limits_are_read_as_accelerate_reads_them():
    """accelerate 1.15, ``convert_file_size_to_int``: a lower-case b, as in Gb, means bits."""
    as_bytes = {"0": 2**27, "1": 10**9 // 8, "cpu": 10**9}
    as_text = {"0": "0.125GiB", "1": "1Gb", "cpu": "1000MB"}
    maps = [place({"model": GPT2, "max_memory": limits}) for limits in (as_bytes, as_text)]
    assert maps[0] == maps[1]
    assert len(set(maps[0].values())) > 1


@for_each("row", cases("placements_refused.jsonl"))
def test_an_invalid_request_is_refused_in_one_sentence(row):
    with pytest.raises(ValueError, match=re.escape(row["says"])) as problem:
        place(row["request"])
    assert str(problem.value).endswith((".", "?"))
    assert "\n" not in str(problem.value)


def test_command_prints_the_map_as_json(capsys):
    case = GOLDEN[0]
    assert main(["placement", json.dumps(case["request"])]) == 0
    assert json.loads(capsys.readouterr().out) == case["map"]


@pytest.mark.parametrize("arguments", [(), ("{}",), ("[1]",), ("{",), ("{}", "{}")])
def test_command_refuses_in_one_sentence(capsys, arguments):
    assert main(["placement", *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
