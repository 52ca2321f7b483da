"""A regular expression of target modules is the list of names that PEFT makes of it.

tests/verify compares the reach of patterns with PEFT itself, for every family and every tower.
"""

from __future__ import annotations

import sys
from time import process_time

import pytest

from estimator import read_files
from estimator.contract.setups import read_setup, write_fields
from estimator.families.adapters import trainable_parameters
from estimator.families.target_pattern import with_names
from estimator.sources import catalog
from estimator.values.facets.adapters import Adapters
from estimator.values.refusals import RefusedError

LLAMA = "meta-llama/Llama-3.1-8B"
OF_AXOLOTL = (
    r"model.language_model.layers.[\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj"
)
"""The pattern of axolotl's examples for models that see."""


def adapted(model: str, pattern: str, **keys: object) -> Adapters:
    reading = read_setup({"model": model, "method": "lora", "lora_target_modules": pattern, **keys})
    assert not reading.problems
    return reading.setup.adapters


def refused(model: str, pattern: str) -> str:
    (problem,) = read_setup(
        {"model": model, "method": "lora", "lora_target_modules": pattern}
    ).problems
    return problem


def test_a_pattern_of_text_leaves_the_tower_without_adapters():
    reading = read_setup(
        {
            "model": "Qwen/Qwen2.5-VL-7B-Instruct",
            "method": "lora",
            "model_class": "image_text",
            "lora_r": 32,
            "lora_target_modules": OF_AXOLOTL,
        }
    )
    model, setup = reading.model, reading.setup
    assert model is not None
    assert not reading.problems
    # 28 layers, hidden 3,584, keys and values 512, intermediate 18,944 (the checkpoint's config.json); A and B of q, o,
    # k, v, gate, up and down
    sides = 2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944)
    assert trainable_parameters(model, setup.adapters) == 28 * 32 * sides
    assert setup.adapters.freeze_vision


def test_a_pattern_may_name_layers():
    given = adapted(LLAMA, r".*\.layers\.(0|31)\.self_attn\.[qv]_proj")
    assert given.lora_target_modules == ("q_proj", "v_proj")
    assert given.layers_to_transform == (0, 31)


def test_a_short_name_that_two_modules_share_is_written_with_its_block():
    given = adapted("openai-community/gpt2", r".*attn\.c_proj")  # GPT-2's MLP has a c_proj, too
    assert given.lora_target_modules == ("attn.c_proj",)


def test_of_a_mixture_peft_takes_the_last_parts_in_every_layer():
    # _resolve_string_target_modules keeps "leaf names", so layer 1 alone cannot be asked for
    given = adapted("mistralai/Mixtral-8x7B-v0.1", r".*layers\.1\.self_attn\.q_proj")
    assert (given.lora_target_modules, given.layers_to_transform) == (("q_proj",), None)


def test_a_pattern_is_written_as_the_names_that_it_stands_for():
    reading = read_setup(
        {"model": LLAMA, "method": "lora", "lora_target_modules": r".*\.(q|v)_proj"}
    )
    assert reading.model is not None
    written = write_fields(reading.model, reading.gpu, reading.setup)
    assert written["lora_target_modules"] == ["q_proj", "v_proj"]


def test_a_list_of_one_name_is_a_pattern_for_trl():
    # trl 1.16, trainer/model_config.py:177; PEFT then finds no module whose whole name is q_proj
    run = read_files(
        {"pasted": f"trl sft --model_name_or_path {LLAMA} --use_peft --lora_target_modules q_proj"}
    )
    (problem,) = read_setup(run.setup).problems
    assert r"Write .*\.q_proj, or a list of names." in problem


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (
            r"model\.blocks\..*",
            "llama's are such as model.layers.0.self_attn.q_proj, and none does.",
        ),
        (r".*self_attn.*", "also matches model.layers.0.self_attn, which is no layer that gets an"),
        (r".*\.[qk]_proj|.*\.1\.mlp\.up_proj", "that no list of names tells from the others"),
        (
            r"^(?!.*mlp).*q_proj",
            "is not modelled yet (invalid perl operator: (?!); list the modules'",
        ),
        (r"(q_proj", "is not modelled yet (missing ): (q_proj); list the modules' names."),
        ("x" * 1001, "lora_target_modules must be "),
    ],
)
def test_what_cannot_be_said_by_names_is_refused_in_one_sentence(pattern, says):
    assert says in refused(LLAMA, pattern)


def test_no_pattern_takes_long():
    # Python's own re backtracks on this for longer than the universe lasts
    begun = process_time()
    with pytest.raises(RefusedError):
        with_names(
            catalog.model(LLAMA),
            Adapters(method="lora", lora_target_modules=r"((([a-z0-9_.]+)+)+)+!"),
        )
    assert process_time() - begun < 5


def test_without_the_package_a_pattern_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "re2", None)
    assert "the package google-re2 is not installed" in refused(LLAMA, r".*\.gate_proj")


def test_a_pattern_is_no_matter_where_nothing_is_adapted():
    reading = read_setup({"model": LLAMA, "lora_target_modules": "nothing"})
    assert (reading.problems, reading.setup.adapters.lora_target_modules) == ((), "all-linear")
