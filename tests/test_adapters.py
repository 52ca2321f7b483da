"""Where adapters go: layers below the first adapter, targets that PEFT accepts, embeddings and heads.

tests/test_reference.py compares steps with traced ones ("PEFT").
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from estimator import Component, Model, Phase, catalog, estimate
from estimator.answer import estimate as engine
from estimator.contract.setups import parse, write_fields
from estimator.families.adapters import adapter_parameters, linears_peft_takes
from estimator.families.model_tree import layer_groups, layer_modules, modules_with_counts
from estimator.families.modules import Linear
from estimator.passes import stack
from estimator.run.prequantized import as_loaded
from estimator.step import timeline as moments_module
from estimator.values.methods import Method
from estimator.values.refusals import RefusedError
from estimator.values.setup import TrainingSetup
from tests.rows import for_each

IDS = {catalog.model(hub_id).model_type: hub_id for hub_id in reversed(catalog.models())}
"""One model of every family in the catalogue."""

# --- layers below the first adapter --------------------------------------------------------------

SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
}
HEADS = {"head_dim": 64}
DELTA, FULL, CONV = "linear_attention", "full_attention", "conv"
QWEN3_5 = {
    **SMALL,
    **HEADS,
    "model_type": "qwen3_5_text",
    "layer_types": [DELTA, DELTA, DELTA, FULL, DELTA, FULL],
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
LLAMA = {**SMALL, **HEADS, "model_type": "llama"}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
STEP = {"method": "lora", "max_length": 512, "per_device_train_batch_size": 2}


def lists_of_targets(model: Model) -> list[list[str]]:
    """Typical targets: every linear by name, attention, the MLP, a linear that only some layers have."""
    linears = linears_peft_takes(model)
    short = [
        {
            module.name.rpartition(".")[2]
            for module in layer_modules(model, lowest)
            if isinstance(module, Linear)
        }
        for lowest, _ in layer_groups(model)
    ]
    rare = [name for name in linears if 0 < sum(name in names for names in short) < len(short)]
    attention = {
        module.name.rpartition(".")[2]
        for module, _ in modules_with_counts(model)
        if isinstance(module, Linear) and "attn" in module.name
    }
    named = [[*linears], [n for n in linears if n in attention], MLP, rare[:1], [linears[-1]]]
    return [names for index, names in enumerate(named) if names and names not in named[:index]]


@for_each("hub_id, checkpointing", [*zip(IDS.values(), cycle([False, True]), strict=False)])
def test_every_list_of_targets_gets_an_estimate_or_a_one_sentence_refusal(hub_id, checkpointing):
    answered = 0
    for names in reversed(lists_of_targets(catalog.model(hub_id))):
        given = {"model": hub_id, "method": "lora", "lora_target_modules": names}
        given |= {"gradient_checkpointing": checkpointing, "lora_dropout": 0.0}
        said = ""
        try:
            of = estimate(*parse(given))
        except ValueError as refusal:
            said = str(refusal)
        else:
            assert of.peak.bytes > of.peak.resident[Component.WEIGHTS]
            answered += 1
        assert not said or (said.startswith("lora_target_modules ") and said.endswith("."))
        if answered and checkpointing:  # every layer is reached for any targets
            break
    assert answered


def forget() -> None:
    for remembers in (estimate, engine.per_structure, moments_module.plan, moments_module._plan):
        remembers.cache_clear()


PARTLY = {
    "llama": ["v_proj"],
    "qwen3_5_text": ATTENTION,
    "deepseek_v3": MLP,
    "gemma3n_text": ["per_layer_projection"],
    "gemma4_text": ["k_proj"],
    "granitemoehybrid": ["v_proj"],
}


@pytest.mark.parametrize("strategy", [{}, {"strategy": "ddp", "num_gpus": 2}], ids=["one", "ddp"])
@pytest.mark.parametrize("family", PARTLY)
def test_simulating_some_layers_equals_simulating_all_when_few_are_adapted(
    family, strategy, monkeypatch
):
    given = {"lora_target_modules": PARTLY[family]} | strategy
    some, every = some_and_all(IDS[family], given, monkeypatch)
    assert some == every


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("family", ["lfm2", "nemotron_h", "qwen3_5_text", "granitemoehybrid"])
def test_fsdp_2_layers_are_simulated_next_to_their_real_neighbours(
    family, checkpointing, monkeypatch
):
    given = {"strategy": "fsdp", "num_gpus": 2, "gradient_checkpointing": checkpointing}
    some, every = some_and_all(IDS[family], given, monkeypatch)
    assert some == every


def some_and_all(
    hub_id: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[tuple[Phase, int]], list[tuple[Phase, int]]]:
    """The moments of a LoRA step, with a few layers simulated and with all of them."""
    step = {"model": hub_id, "method": "lora", "lora_dropout": 0.0, "max_length": 256}
    step |= {"model_class": "text"}  # PEFT refuses names of linears that the towers of Gemma 4 wrap
    asked = parse(step | given)
    found = []
    for _ in range(2):
        found.append([(moment.phase, moment.bytes) for moment in estimate(*asked).moments])
        forget()
        monkeypatch.setattr(stack, "played_layers", lambda kinds: list(range(len(kinds))))
    return found[0], found[1]


def test_layers_below_the_first_adapter_keep_no_activations():
    of = estimate(*parse({"model": QWEN3_5, "lora_target_modules": ATTENTION} | STEP))
    forward = [m for m in of.moments if m.phase is Phase.FORWARD and "layer" in m.name]
    before = [m.resident.get(Component.ACTIVATIONS, 0) for m in forward]
    # the moments of layers 1 to 3, the delta-nets, begin with the same activations; layer 4 leaves some
    assert before[0] == before[1] == before[2] < before[4]
    backward = [m for m in of.moments if m.phase is Phase.BACKWARD and "layer" in m.name]
    assert [m.name.split(":")[0] for m in backward] == [f"layer {n} of 6" for n in (6, 5, 4)]


# --- default targets -------------------------------------------------------------------------------


def advice(refusal: str) -> dict[str, Any]:
    """The keys that a refusal advises to set."""
    if re.search("(use|take) method lora", refusal):
        return {"method": "lora"}
    if named := re.search(r"name others, such as ([\w, ]+)\.", refusal):
        return {"lora_target_modules": named[1].split(", ")}
    named = re.search(r"or name ([\w, ]+) in lora_target_modules\.", refusal)
    assert named, refusal
    return {"lora_target_modules": named[1].split(", ")}


@for_each("hub_id", catalog.models())
def test_default_adapters_get_an_estimate_or_advice_that_works(hub_id):
    for asked in ({}, {"lora_target_modules": "all-linear"}):
        for method in ("lora", "qlora"):
            given: dict[str, Any] = {"model": hub_id, "method": method} | asked
            if said := refused(given):
                assert asked or method == "qlora", said
                # a checkpoint that is not packed again may be one of experts too
                for _ in range(2):
                    given |= advice(said)
                    if not (said := refused(given)):
                        break
                assert not said
                assert estimate(*parse(given)).trainable_parameters > 0


def refused(given: dict[str, Any]) -> str:
    """Why a setup is refused before the simulation starts; empty if it is not refused."""
    try:
        model, _, setup = parse(given)
        engine.per_structure(model, moments_module.structure(as_loaded(model, setup)), 0)
    except ValueError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize(
    ("hub_id", "targets"),
    [
        # peft 0.21, utils/constants.py, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
        ("mistralai/Mixtral-8x7B-v0.1", ("q_proj", "v_proj")),
        ("meta-llama/Llama-4-Scout-17B-16E", ("q_proj", "v_proj")),
        ("nvidia/Nemotron-H-8B-Base-8K", ("q_proj", "k_proj", "v_proj", "o_proj")),
        # not in that table: the linears of attention, whose names no expert uses
        ("Qwen/Qwen3-30B-A3B", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("mistralai/Mistral-7B-v0.1", "all-linear"),
    ],
)
def test_default_targets_are_those_peft_accepts_when_it_refuses_all_linears(hub_id, targets):
    model, gpu, setup = parse({"model": hub_id, "method": "lora"})
    assert setup.adapters.lora_target_modules == targets
    said = " ".join(estimate(model, gpu, setup).assumptions)
    assert ("PEFT refuses adapters on all linears" in said) is (targets != "all-linear")
    written = write_fields(model, gpu, setup)
    assert parse(written)[2] == setup


def test_without_dropout_mixtral_defaults_to_all_linears():
    given = {"model": "mistralai/Mixtral-8x7B-v0.1", "method": "lora", "lora_dropout": 0.0}
    assert parse(given)[2].adapters.lora_target_modules == "all-linear"


# --- embeddings and heads ------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_adapters_of_embedding_and_head_are_counted_in_parameters_and_bytes(tied):
    model = LLAMA | (TIED if tied else UNTIED)
    asked = {"lora_target_modules": ["embed_tokens", "lm_head"], "lora_r": 8}
    of = estimate(*parse({"model": model} | STEP | asked))
    # A is [8, 4096] and B [256, 8] of the embedding; of the head A is [8, 256] and B [4096, 8]; float32
    assert of.trainable_parameters == 2 * 8 * (4096 + 256)
    assert of.peak.resident[Component.ADAPTERS] == 4 * of.trainable_parameters


def test_all_linear_excludes_head_and_embedding():
    at_default = estimate(*parse({"model": LLAMA} | STEP)).trainable_parameters
    # r 16 of q, o: 256 to 256, k, v: 256 to 128, gate, up, down: 256 and 512; six layers
    assert at_default == 6 * 16 * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 512))


# --- targets without a match ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hub_id", "targets", "lacking"),
    [
        ("openai-community/gpt2", ["c_attn", "q_proj", "k_proj"], ("q_proj", "k_proj")),
        ("facebook/opt-1.3b", ["qkv_proj", "fc1"], ("qkv_proj",)),
        ("EleutherAI/pythia-1.4b", ["query_key_value", "proj"], ("proj",)),  # not a whole name
    ],
)
def test_an_unmatched_target_is_ignored_and_reported(hub_id, targets, lacking):
    given = {"model": hub_id, "method": "lora", "per_device_train_batch_size": 1, "max_length": 64}
    of = estimate(*parse(given | {"lora_target_modules": targets}))
    kept = [name for name in targets if name not in lacking]
    alone = estimate(*parse(given | {"lora_target_modules": kept}))
    # peft 0.21, tuners_utils.py, inject_adapter: an error only where nothing at all was targeted
    assert of.moments == alone.moments
    (said,) = set(of.assumptions) - set(alone.assumptions)
    assert all(name in said for name in lacking)
    with pytest.raises(RefusedError, match="PEFT fails if nothing matches"):
        adapter_parameters(of.model, replace(of.setup, lora_target_modules=lacking).adapters)


@pytest.mark.parametrize(
    ("hub_id", "target", "said"),
    [
        ("openai-community/gpt2", "wpe", "not modelled yet"),
        ("facebook/opt-1.3b", "embed_positions", "not modelled yet"),
        ("google/gemma-3n-E2B-it", "embed_tokens_per_layer", "not modelled yet"),
        ("Qwen/Qwen3.5-9B", "conv1d", "not modelled yet"),
        ("mistralai/Mistral-7B-v0.1", "layers.3.self_attn.q_proj", "not modelled yet"),
        ("nvidia/Nemotron-H-8B-Base-8K", "conv1d", "PEFT refuses an adapter"),
        ("mistralai/Mistral-7B-v0.1", "input_layernorm", "so PEFT refuses it"),
        ("mistralai/Mistral-7B-v0.1", "self_attn", "so PEFT refuses it"),
    ],
)
def test_a_target_without_a_modelled_adapter_is_refused_even_beside_valid_ones(
    hub_id, target, said
):
    model = catalog.model(hub_id)
    for targets in ((target,), (linears_peft_takes(model)[0], target)):
        setup = TrainingSetup(method=Method.LORA, lora_target_modules=targets)
        with pytest.raises(RefusedError, match=said):
            adapter_parameters(model, setup.adapters)
