""" "How it was computed": terms add up to the figure that they explain, and the code shown is the code that ran."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dashboard.estimate import explanation
from dashboard.words import rule_of_thumb
from estimator import (
    Method,
    Optimizer,
    Strategy,
    TrainingSetup,
    catalog,
    estimate,
    explain,
    kept_terms,
)
from estimator.parallel.placements import weight_bytes
from estimator.values.specs import Component
from tests.rows import for_each
from tests.test_limits import MODELS as GENERAL_MODELS
from tests.test_limits import SETUPS as GENERAL
from tests.test_limits import SEVERAL, can_be_trained

MODELS = ["mistralai/Mistral-7B-v0.1", "openai-community/gpt2", "google/gemma-2-2b"]
SETUPS = {
    "full": TrainingSetup(),
    "full, peak in the optimizer's step": TrainingSetup(optim=Optimizer.ADAMW_TORCH),
    "accumulated": TrainingSetup(gradient_accumulation_steps=4),
    "lora": TrainingSetup(method=Method.LORA, max_length=512),
    "qlora, checkpointed": TrainingSetup(method=Method.QLORA, gradient_checkpointing=True),
}
STRATEGIES = [strategy for strategy in Strategy if strategy is not Strategy.NONE]


def add_up(answer):
    """Terms add up to their component in the ledger; terms outside the peak add up to the rest of the need."""
    for part in Component:
        told = explain(answer, part)
        if size := answer.peak.resident.get(part, 0):
            assert sum(term.bytes for term in told.terms) == size, part
    outside = explain(answer, None)
    beyond = answer.need_high_bytes - answer.decisive.bytes
    assert sum(term.bytes for term in outside.terms) == beyond


@for_each("strategy", STRATEGIES)
@for_each("number", [2, 3, 4, 8])
@for_each("method", [Method.FULL, Method.LORA])
def test_terms_add_up_under_every_strategy_and_number_of_gpus(strategy, number, method):
    setup = TrainingSetup(method=method, strategy=strategy, num_gpus=number)
    if strategy is Strategy.HSDP:
        if number % 4:
            return
        setup = replace(setup, dp_replicate_size=2)
    add_up(estimate(catalog.model(MODELS[0]), catalog.gpu("H100-SXM5-80GB"), setup))


@settings(max_examples=25)
@given(model=GENERAL_MODELS, setup=st.one_of(GENERAL, SEVERAL, SEVERAL))
def test_terms_add_up_for_any_setup(model, setup):
    assume(can_be_trained(model, setup))
    add_up(estimate(model, None, setup))


def test_fsdp_weights_are_one_gpu_s_shard_plus_gathered_weights():
    # 7,241,732,096 parameters in bfloat16, LoRA: 2 bytes each over 4 GPUs; the page used to show all 13.49 GiB
    setup = TrainingSetup(method=Method.LORA, strategy=Strategy.FSDP, num_gpus=4)
    answer = estimate(catalog.model(MODELS[0]), catalog.gpu("H100-SXM5-80GB"), setup)
    share, *rest = explain(answer, Component.WEIGHTS).terms
    assert share.what == "shards"
    assert share.bytes == pytest.approx(2 * 7_241_732_096 / 4, rel=1e-4)
    assert any("all-gather" in term.what for term in rest)


def test_a_device_map_shows_the_fullest_gpu_s_modules():
    setup = TrainingSetup(strategy=Strategy.DEVICE_MAP, num_gpus=4)
    answer = estimate(catalog.model(MODELS[0]), catalog.gpu("H100-SXM5-80GB"), setup)
    fullest = max(answer.devices, key=lambda held: held.need.high)
    terms = explain(answer, Component.WEIGHTS).terms
    (down,) = [term for term in terms if term.what == "mlp.down_proj"]
    assert down.bytes == len(fullest.layers) * 2 * 14336 * 4096


def test_terms_add_up_when_a_later_gpu_of_the_map_is_the_fullest():
    setup = TrainingSetup(
        strategy=Strategy.DEVICE_MAP, num_gpus=4, max_length=16, optim=Optimizer.ADAMW_TORCH
    )
    answer = estimate(catalog.model(MODELS[0]), None, setup)
    assert max(answer.devices, key=lambda held: held.need.high).device > 0, "no buffers there"
    add_up(answer)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_communication_has_its_own_terms(strategy):
    groups = 2 if strategy is Strategy.HSDP else 1
    setup = TrainingSetup(strategy=strategy, num_gpus=8, dp_replicate_size=groups)
    answer = estimate(catalog.model(MODELS[0]), None, setup)
    told = explain(answer, Component.COMMUNICATION)
    temporary = {term.what for term in explain(answer, Component.TEMPORARIES).terms}
    assert not temporary & {term.what for term in told.terms}
    assert "exchange" in told.lead


def test_the_rule_of_thumb_is_not_compared_with_one_gpu_s_shard():
    for strategy in STRATEGIES:
        groups = 2 if strategy is Strategy.HSDP else 1
        setup = TrainingSetup(strategy=strategy, num_gpus=4, dp_replicate_size=groups)
        answer = estimate(catalog.model(MODELS[0]), None, setup)
        said = rule_of_thumb.sentence(answer)
        shares = strategy is not Strategy.DDP
        assert ("says nothing about one of them" in said) is shares, strategy
        assert ("It forgets gradients" in said) is not shares


def test_the_code_shown_is_the_code_that_runs():
    told = explain(estimate(catalog.model(MODELS[0]), None, SETUPS["full"]), Component.WEIGHTS)
    assert told.functions[0] is weight_bytes
    assert explanation.source(weight_bytes).startswith("def weight_bytes(")
    assert "Source:" in explanation.docstring(weight_bytes)


@for_each("part", [*Component, None])
@for_each("name", SETUPS)
def test_every_component_links_to_code_with_a_docstring(part, name):
    answer = estimate(catalog.model(MODELS[0]), None, SETUPS[name])
    told = explain(answer, part)
    assert told.lead
    for function in told.functions:
        assert explanation.source(function).lstrip().startswith("def ")
    assert explanation.docstring(told.functions[0])


def test_one_layer_times_the_layer_count_is_nearly_all_that_forward_keeps():
    answer = estimate(catalog.model(MODELS[0]), None, SETUPS["lora"])
    kept = sum(term.bytes for term in kept_terms(answer))
    loss = answer.phases[next(p for p in answer.phases if p == "loss")]
    share = 32 * kept / loss.resident[Component.ACTIVATIONS]
    assert share == pytest.approx(1, abs=0.02), "the rest: embedding, final norm, rotary tables"
