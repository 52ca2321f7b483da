"""Checkpoints with towers: which class they load as, and what the towers cost in a step on text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from estimator import Component, Strategy, TrainingSetup, catalog, estimate
from estimator.contract.setups import read_setup
from estimator.families.adapters import adapter_parameters, is_quantized, trainable_parameters
from estimator.families.loaded import tower_modules, tower_parameters
from estimator.families.model_tree import total_parameters
from estimator.families.modules import Linear
from estimator.families.registry import FAMILIES
from estimator.families.weights import tower_buffers
from estimator.families.wrapped import classes_of
from estimator.parallel.placements import idle_tensors, module_bytes, trainable_tensors
from estimator.sources.repository import from_config
from estimator.values.methods import Method
from estimator.values.specs import Model, ModelClass, Optimizer

WITH = [hub_id for hub_id, entry in catalog.models().items() if entry.model.towers]
GEMMA_3, GEMMA_3N = catalog.model("google/gemma-3-4b-it"), catalog.model("google/gemma-3n-E2B-it")
E2B, GEMMA_31B = catalog.model("google/gemma-4-E2B-it"), catalog.model("google/gemma-4-31B-it")
LORA = TrainingSetup(method=Method.LORA)
TEXT = {"model_class": ModelClass.TEXT}


def tower_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of all tower modules on the GPU."""
    buffers = sum(buffer.copies * buffer.bytes for buffer in tower_buffers(model, setup.adapters))
    return buffers + sum(
        n * module_bytes(module, setup) for module, n in tower_modules(model, setup.adapters)
    )


def ledger(model: Model, setup: TrainingSetup) -> dict[Component, int]:
    return dict(estimate(model, None, setup).peak.resident)


@pytest.mark.parametrize("hub_id", WITH)
def test_text_and_towers_have_the_published_parameters(hub_id):
    """The Hub also counts stored buffers, and keys and values that transformers 5 does not create."""
    entry = catalog.models()[hub_id]
    towers = tower_parameters(entry.model, TrainingSetup().adapters)
    made = estimate(entry.model, None, TrainingSetup()).total_parameters
    assert made == total_parameters(entry.model) + towers
    stored_beside = entry.published_extra - towers
    assert stored_beside >= 0
    assert f"{towers}" in entry.published_extra_is or entry.published_extra == towers


def test_every_catalogued_gemma_with_towers_names_its_class():
    assert {catalog.model(hub_id).model_type for hub_id in WITH} == {
        name for name, family in FAMILIES.items() if family.with_towers
    }
    for hub_id in (*WITH, "google/gemma-3-1b-it", "Qwen/Qwen3.5-4B"):
        model = catalog.model(hub_id)
        said = " ".join(estimate(model, None, TrainingSetup()).assumptions)
        text = " ".join(estimate(model, None, TrainingSetup(**TEXT)).assumptions)
        if hub_id in WITH:
            classes = classes_of(model.model_type)
            made, alone = classes.made, classes.text
            assert f"loads {made}" in said
            assert f"{tower_parameters(model, TrainingSetup().adapters):,} parameters" in said
            assert f"model_class text: {alone}" in text
        else:
            assert said == text
            assert "model_class" not in said


def test_all_linear_adapts_the_linears_of_siglip_too():
    # in 27 layers q, k, v and out of 1152 x 1152, fc1 and fc2 of 1152 x 4304; the projector is not a linear
    by_hand = 27 * 16 * (4 * (1152 + 1152) + 2 * (1152 + 4304))
    alone = adapter_parameters(GEMMA_3, replace(LORA, **TEXT).adapters)
    assert adapter_parameters(GEMMA_3, LORA.adapters) == alone + by_hand
    # by name: q_proj is in tower and text; the text's output projection is o_proj, the tower's is not
    named = replace(LORA, lora_target_modules=("q_proj", "o_proj"))
    without = adapter_parameters(GEMMA_3, replace(named, **TEXT).adapters)
    assert adapter_parameters(GEMMA_3, named.adapters) == without + 27 * 16 * (1152 + 1152)


SETUPS = [
    TrainingSetup(),
    TrainingSetup(optim=Optimizer.ADAFACTOR, gradient_checkpointing=True),
    LORA,
    replace(LORA, gradient_checkpointing=True, per_device_train_batch_size=2),
    TrainingSetup(method=Method.QLORA, gradient_checkpointing=True),
    TrainingSetup(method=Method.QLORA, prepare_model_for_kbit_training=True),
    replace(LORA, load_in_8bit=True),
]


@pytest.mark.parametrize("model", [GEMMA_3, GEMMA_31B, E2B], ids=["3", "4 31B", "4 E2B"])
@pytest.mark.parametrize("setup", SETUPS)
def test_towers_cost_only_their_weights_and_adapters(model, setup):
    text = replace(setup, **TEXT)
    alone, made = ledger(model, text), ledger(model, setup)
    weights = made.pop(Component.WEIGHTS) - alone.pop(Component.WEIGHTS)
    assert weights == tower_bytes(model, setup)
    adapters = made.pop(Component.ADAPTERS, 0) - alone.pop(Component.ADAPTERS, 0)
    assert adapters == (_rounded(model, setup) if setup.adapters.uses_adapters else 0)
    assert made == alone  # gradients, optimizer states, activations
    trained = trainable_parameters(model, setup.adapters) - trainable_parameters(
        model, text.adapters
    )
    assert (
        trained
        == sum(tensor.alike * _size(tensor.shape) for tensor in idle_tensors(model, setup))
        > 0
    )


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _rounded(model: Model, setup: TrainingSetup) -> int:
    """Bytes of the adapters that get no gradient, each rounded up to 512."""
    return sum(
        tensor.alike * -(-tensor.width * _size(tensor.shape) // 512) * 512
        for tensor in idle_tensors(model, setup)
    )


def test_a_4_bit_base_quantises_tower_linears_except_the_models_last():
    setup = TrainingSetup(method=Method.QLORA)
    whole = [
        module.name
        for module, _ in tower_modules(E2B, setup.adapters)
        if isinstance(module, Linear) and not is_quantized(module, setup.adapters)
    ]
    assert whole == ["embed_audio.embedding_projection"]  # get_keys_to_not_convert
    assert all(
        is_quantized(module, setup.adapters)
        for module, _ in tower_modules(GEMMA_3, setup.adapters)
        if isinstance(module, Linear)
    )


@pytest.mark.parametrize("setup", [TrainingSetup(), LORA])
def test_ddp_buckets_include_parameters_without_gradients(setup):
    setup = replace(setup, num_gpus=2, strategy=Strategy.DDP)
    text = ledger(GEMMA_3, replace(setup, **TEXT))[Component.COMMUNICATION]
    more = sum(
        tensor.alike * tensor.width * _size(tensor.shape) for tensor in idle_tensors(GEMMA_3, setup)
    )
    made = ledger(GEMMA_3, setup)[Component.COMMUNICATION]
    assert abs(made - text - more) < 512  # buckets are rounded up to 512 bytes


def test_gemma_3n_runs_its_embedders_on_text():
    full = TrainingSetup()
    more = len(trainable_tensors(GEMMA_3N, full)) - len(
        trainable_tensors(GEMMA_3N, replace(full, **TEXT))
    )
    assert more == 6  # two embedders, each with a table, its norm and a projection
    said = " ".join(estimate(GEMMA_3N, None, full).assumptions)
    assert "whose activations are not counted" in said


@pytest.mark.parametrize(
    ("model", "changes", "sentence"),
    [
        (
            GEMMA_3,
            {"strategy": Strategy.FSDP},
            "the model has no SiglipTextEmbeddings; take model_class",
        ),
        (GEMMA_3, {"strategy": Strategy.FSDP, "fsdp_version": 1}, "no SiglipTextEmbeddings"),
        (
            GEMMA_31B,
            {"strategy": Strategy.FSDP},
            "the model has no Gemma4AudioLayer; take model_class",
        ),
        (
            GEMMA_3,
            {"strategy": Strategy.DDP, "gradient_checkpointing": True},
            "strategy ddp fails at the second step of Gemma3ForConditionalGeneration",
        ),
        (GEMMA_3, {"strategy": Strategy.ZERO3}, "zero3 is not modelled yet for Gemma3ForCond"),
        (GEMMA_3, {"strategy": Strategy.DEVICE_MAP}, "device_map is not modelled yet for Gemma3"),
        (
            E2B,
            {"num_gpus": 1, "method": Method.LORA, "lora_target_modules": ("q_proj",)},
            "names 'q_proj', which also matches linears of a custom class in the towers of gemma4_text",
        ),
    ],
)
def test_setups_refused_for_their_towers_run_without_them(model, changes, sentence):
    setup = TrainingSetup(**{"num_gpus": 2, **changes})
    with pytest.raises(ValueError, match=sentence):
        estimate(model, None, setup)
    assert estimate(model, None, replace(setup, **TEXT)).peak.bytes > 0


VISION = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
VISION |= {"num_attention_heads": 16, "image_size": 896, "patch_size": 14}
VISION |= {"vision_use_head": False, "model_type": "siglip_vision_model"}
WRAPPER: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "vision_config": VISION,
}


def test_a_config_with_towers_equals_the_catalogued_model():
    found = from_config(WRAPPER)
    assert found.model.towers == GEMMA_3.towers
    assert found.parameters == 4_300_079_472  # the Hub's count of google/gemma-3-4b-it
    assert not found.left_out
    reading = read_setup({"model": json.loads(json.dumps(WRAPPER)), "model_class": "text"})
    assert reading.model is not None
    assert estimate(reading.model, None, reading.setup).total_parameters == 3_880_263_168


@pytest.mark.parametrize(
    "changes",
    [
        {"vision_config": VISION | {"model_type": "siglip2_vision_model"}},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    ],
)
def test_towers_of_unknown_modules_are_reported_as_left_out(changes):
    found = from_config(WRAPPER | changes)
    assert found.model.towers is None
    assert "whose towers are not counted here" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("vision", "sentence"),
    [
        ({"hidden_size": 0}, "hidden_size must be a whole number from 1"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers must be a whole number"),
        ({"vision_use_head": 3}, "vision_use_head must be true or false"),
        (7, "vision_config must be an object or null"),
    ],
)
def test_a_tower_with_impossible_sizes_is_refused_by_key(vision, sentence):
    found = from_config(WRAPPER | {"vision_config": vision})
    assert found.model is None
    assert sentence in found.problem


def test_a_text_config_alone_has_no_towers():
    found = from_config(WRAPPER["text_config"])
    assert found.model.towers is None
    alone = estimate(found.model, None, TrainingSetup())
    assert alone.peak.bytes == estimate(GEMMA_3, None, TrainingSetup(**TEXT)).peak.bytes
