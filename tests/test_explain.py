"""How it was computed: the terms add up to the figure they explain, and the code is the one that ran."""

from __future__ import annotations

import pytest

from dashboard import explain
from estimator import Method, Optimizer, TrainingSetup, catalog, estimate
from estimator.step.timeline import weight_bytes
from estimator.values.specs import Component

MODELS = ["mistralai/Mistral-7B-v0.1", "openai-community/gpt2", "google/gemma-2-2b"]
SETUPS = {
    "full": TrainingSetup(),
    "full, peak in the optimizer's step": TrainingSetup(optim=Optimizer.ADAMW_TORCH),
    "accumulated": TrainingSetup(gradient_accumulation_steps=4),
    "lora": TrainingSetup(method=Method.LORA, max_length=512),
    "qlora, checkpointed": TrainingSetup(method=Method.QLORA, gradient_checkpointing=True),
}
EXACT = [part for part in Component if part is not Component.COMMUNICATION]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", SETUPS)
def test_the_terms_of_every_component_add_up_to_it(model, name):
    answer = estimate(catalog.model(model), catalog.gpu("H100-SXM5-80GB"), SETUPS[name])
    for part in EXACT:
        size = answer.peak.resident.get(part, 0)
        told = explain.explain(part, answer)
        if size:
            assert sum(line.bytes for line in told.lines) == size, part
    outside = explain.explain(None, answer)
    assert sum(line.bytes for line in outside.lines) == answer.need_high_bytes - answer.peak.bytes


def test_the_code_shown_is_the_code_that_runs():
    told = explain.explain(
        Component.WEIGHTS, estimate(catalog.model(MODELS[0]), None, SETUPS["full"])
    )
    assert told.functions[0] is weight_bytes
    assert explain.source(weight_bytes).startswith("def weight_bytes(")
    assert "Source:" in explain.docstring(weight_bytes)


@pytest.mark.parametrize("part", [*EXACT, None])
@pytest.mark.parametrize("name", SETUPS)
def test_every_part_leads_to_code_and_a_docstring(part, name):
    answer = estimate(catalog.model(MODELS[0]), None, SETUPS[name])
    told = explain.explain(part, answer)
    assert told.lead
    for function in told.functions:
        assert explain.source(function).lstrip().startswith("def ")
    assert explain.docstring(told.functions[0])


def test_one_layer_times_layers_is_nearly_all_that_forward_keeps():
    answer = estimate(catalog.model(MODELS[0]), None, SETUPS["lora"])
    kept = sum(line.bytes for line in explain.kept_lines(answer))
    loss = answer.phases[next(p for p in answer.phases if p == "loss")]
    share = 32 * kept / loss.resident[Component.ACTIVATIONS]
    assert share == pytest.approx(1, abs=0.02), "the rest: embedding, final norm, rotary tables"
