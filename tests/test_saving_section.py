"""The section "Saving and loading" of a run that evaluates, saves and merges."""

from __future__ import annotations

from dataclasses import replace

from dashboard.estimate import ledger, saving
from dashboard.words import verdicts
from estimator import Method, TrainingSetup, catalog, estimate
from estimator.run.stages import stages

MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
LORA = TrainingSetup(method=Method.LORA, gradient_checkpointing=True)


def said(setup: TrainingSetup) -> str:
    answer = estimate(MISTRAL, None, setup)
    return saving.stages_html(answer, stages(answer)) + saving.saving_html(answer, 2**30, 1.0)


def test_each_method_has_its_own_rows():
    def names(method: Method) -> list[str]:
        return [act.name for act in stages(estimate(MISTRAL, None, replace(LORA, method=method)))]

    common = ["Load", "Training step", "Evaluate 8 × 1,024 tokens"]
    assert names(Method.FULL) == [*common, "Save weights and optimizer", "Save weights only"]
    adapters = [*common, "Save adapters and optimizer", "Save adapters only"]
    assert names(Method.LORA) == [*adapters, "Merge and save"]
    assert names(Method.QLORA) == [
        *adapters,
        "Merge, still in 4 bits",
        "Merge into a 16-bit base",
    ]


def test_the_highest_stage_alone_is_bold():
    answer = estimate(MISTRAL, None, LORA)
    drawn = saving.stages_html(answer, stages(answer))
    highest = max(stages(answer), key=lambda one: one.gpu_bytes)
    assert drawn.count("hr-sum") == 1
    assert f'<tr class="hr-sum"><td class="hr-name-cell">{highest.name}</td>' in drawn


def test_an_unplanned_evaluation_is_mentioned_but_not_counted():
    assert "An evaluation would need more, but none is planned" in said(LORA)
    assert "Evaluation needs more than training" not in said(LORA)
    assert "lower per_device_eval_batch_size, now 8" in said(replace(LORA, eval_strategy="steps"))


def test_the_verdict_names_the_deciding_stage():
    answer = estimate(MISTRAL, catalog.gpu("L4"), replace(LORA, eval_strategy="steps"))
    assert verdicts.verdict(answer).when.startswith("Evaluation needs more than training")
    assert "Evaluation beyond that" in ledger.ledger_html(answer)


def test_the_section_counts_the_checkpoints():
    assert "The run leaves one checkpoint of 0.5 GiB" in said(LORA)
    three = replace(LORA, num_train_epochs=5.0, save_total_limit=2)
    assert "At most 3 checkpoints are on disk at once, 1.4 GiB" in said(three)
    assert "saves no checkpoints" in said(replace(LORA, save_strategy="no"))
