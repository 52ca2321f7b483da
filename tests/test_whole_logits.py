"""DPO and KTO on all logits: LLaMA-Factory's and ms-swift's losses, compared with traces of their own code.

Traced: the loss functions of llamafactory 0.9.5 and ms-swift 4.6.0 on TRL 1.16's trainer, transformers 5.23 and torch
2.13, every allocation counted, on Llama-3.2-1B, 23 November 2026. The trace runs no kernel, so it lacks the copy of a
slice in CUDA's log-softmax (``host_softmax``), which is added here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import Component, Method, Phase, TrainingSetup, catalog, estimate, need, remedies
from estimator.contract.setups import parse
from estimator.grid.needs import needs
from estimator.tools.imported import read_files
from estimator.values.losses import Loss
from estimator.values.range import Range
from estimator.values.specs import Verdict

LLAMA = catalog.model("meta-llama/Llama-3.2-1B")
SMALL = catalog.model("HuggingFaceTB/SmolLM2-135M")
PAIRS = TrainingSetup(
    objective="dpo",
    loss=Loss.STANDARD,
    per_device_train_batch_size=2,
    max_length=1024,
    max_prompt_length=512,
    gradient_checkpointing=True,
)
MIB = 2**20
WHOLE = [Loss.STANDARD, Loss.SELECTIVE, Loss.SELECTIVE_TRL]


def copied(rows: int, length: int) -> int:
    return rows * (length - 1) * LLAMA.vocab_size * 4


@pytest.mark.parametrize(
    ("keys", "traced"),
    [
        ({}, (14_423_331_328, 18_624_025_088, 16_520_438_272)),
        ({"mixed_precision": "no"}, (14_423_331_328, 18_624_025_088, 16_520_438_272)),
        (
            {"dtype": "float32", "per_device_train_batch_size": 1, "max_length": 2048},
            (22_650_587_648, 26_852_307_456, 24_749_746_688),
        ),
        (
            {"objective": "kto", "per_device_train_batch_size": 4},
            (14_423_528_960, 20_725_572_096, 16_520_537_088),
        ),
    ],
)
def test_llamafactorys_loss_holds_three_copies_of_all_logits(keys, traced):
    setup = replace(PAIRS, **keys)
    loss, reference, backward = _phases(setup)
    for said, there in ((loss, traced[0]), (reference, traced[1])):
        assert said - there == pytest.approx(
            copied(4 * 1024 // setup.batch.max_length, setup.batch.max_length), abs=2 * MIB
        )
    assert backward == pytest.approx(traced[2], abs=MIB)


@pytest.mark.parametrize(
    ("keys", "traced"),
    [
        ({}, (11_793_236_992, 12_845_999_104, 13_408_993_792)),
        ({"mixed_precision": "no"}, (11_266_957_824, 11_530_127_872, 13_408_993_792)),
        (
            {"objective": "kto", "per_device_train_batch_size": 4},
            (11_793_336_320, 12_846_098_432, 13_409_092_608),
        ),
    ],
)
def test_ms_swifts_loss_holds_the_completions_logits(keys, traced):
    said = _phases(replace(PAIRS, loss=Loss.SELECTIVE, **keys))
    for mine, there in zip(said, traced, strict=True):
        assert mine == pytest.approx(there, abs=2 * MIB)


def test_the_fused_head_is_the_first_remedy_for_whole_logits():
    card = catalog.gpu("RTX 4090")
    setup = replace(PAIRS, per_device_train_batch_size=16)
    first = remedies(estimate(SMALL, card, setup), [card])[0]
    assert first.keys == {"loss": Loss.CHUNKED_TRL}
    mended = estimate(SMALL, card, replace(setup, loss=Loss.CHUNKED_TRL))
    assert mended.verdict is Verdict.FITS
    assert mended.need_high_bytes == first.need_high_bytes


def _phases(setup: TrainingSetup) -> list[int]:
    phases = estimate(LLAMA, None, setup).phases
    return [
        phases[phase].bytes - phases[phase].resident[Component.WORKSPACE]
        for phase in (Phase.LOSS, Phase.REFERENCE, Phase.BACKWARD)
    ]


@pytest.mark.parametrize(
    ("keys", "traced"),
    [
        ({}, (13_374_540_800, 16_721_614_336, 16_522_473_984)),
        ({"mixed_precision": "no"}, (12_322_919_424, 14_521_734_656, 13_408_993_792)),
        (
            {"dtype": "float32", "per_device_train_batch_size": 1, "max_length": 2048},
            (24_072_399_872, 27_420_499_456, 27_222_409_728),
        ),
    ],
)
def test_trls_older_loss_holds_all_logits_and_copies_them_for_its_metrics(keys, traced):
    """Traced like the others, with ``_compute_loss`` of trl 1.9.0."""
    said = _phases(replace(PAIRS, loss=Loss.SELECTIVE_TRL, **keys))
    for mine, there in zip(said, traced, strict=True):
        assert mine == pytest.approx(there, abs=2 * MIB)


def test_prompt_tokens_cost_llamafactory_as_much_as_completions_and_ms_swift_nothing():
    for loss, same in ((Loss.STANDARD, True), (Loss.SELECTIVE, False)):
        peaks = {
            estimate(SMALL, None, replace(PAIRS, loss=loss, max_prompt_length=prompt)).peak.bytes
            for prompt in (64, 960)
        }
        assert (len(peaks) == 1) is same


def test_llamafactorys_reference_stays_in_autocasts_dtype():
    """It casts trained weights to float32 and loads untrained models in ``compute_dtype``."""
    for loss, width in ((Loss.STANDARD, 2), (Loss.SELECTIVE, 4)):
        peak = estimate(SMALL, None, replace(PAIRS, loss=loss, dtype="float32")).peak
        held = peak.resident[Component.REFERENCE_MODEL] / peak.resident[Component.WEIGHTS]
        assert held == pytest.approx(width / 4, rel=1e-3)  # each tensor is rounded up to 512 bytes


@pytest.mark.parametrize("loss", WHOLE)
@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_a_grid_matches_the_estimates(objective, loss):
    gpu = catalog.gpu("A100-SXM4-80GB")
    setup = replace(PAIRS, objective=objective, loss=loss)
    read = needs(SMALL, gpu, setup, per_device_train_batch_size=[2, 3, 8])
    for index, batch in enumerate((2, 3, 8)):
        alone = need(SMALL, gpu, replace(setup, per_device_train_batch_size=batch))
        assert Range(int(read.low_bytes[index]), int(read.high_bytes[index])) == alone


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("stage: dpo\nfinetuning_type: lora\nlora_target: all\ncutoff_len: 1024\n", "standard"),
        ("stage: kto\nfinetuning_type: full\ncutoff_len: 1024\n", "standard"),
        ("swift rlhf --rlhf_type dpo --tuner_type lora --max_length 2048", "selective"),
        ("rl: dpo\nadapter: lora\nlora_target_linear: true\nsequence_len: 512\n", "selective_trl"),
    ],
)
def test_configs_of_tools_that_compute_whole_logits_set_the_loss(text, loss):
    named = " --model {}"
    if "\n" in text:
        named = "base_model: {}\n" if "rl: " in text else "model_name_or_path: {}\n"
    run = read_files({"pasted": text + named.format("HuggingFaceTB/SmolLM2-135M")})
    assert run.setup["loss"] == loss
    assert estimate(*parse(run.setup)).peak.bytes > 0


@pytest.mark.parametrize("loss", WHOLE)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
def test_whole_logits_work_on_several_gpus(strategy, loss):
    for method in (Method.FULL, Method.LORA):
        setup = replace(PAIRS, loss=loss, strategy=strategy, num_gpus=2, method=method)
        answer = estimate(SMALL, None, setup)
        assert sum(answer.peak.resident.values()) == answer.peak.bytes
        assert Phase.REFERENCE in answer.phases
