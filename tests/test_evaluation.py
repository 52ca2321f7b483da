"""Evaluation: Trainer's loop without gradients.

TRACED are heights in bytes of a real ``model.eval()`` and ``torch.no_grad()`` forward call with labels, after two
training steps: transformers 5.23, peft 0.21, accelerate 1.15 (its autocast and ``convert_outputs_to_fp32``), torch
2.13, on a device that counts allocations and computes nothing. It has no cuBLAS workspace.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import (
    Component,
    MixedPrecision,
    Model,
    Moment,
    Phase,
    TrainingSetup,
    Verdict,
    catalog,
    estimate,
    needs,
)
from estimator.answer.needs import need
from estimator.contract.setups import parse
from estimator.parallel.strategies import resident_memory
from estimator.search.remedies import remedies
from estimator.step.evaluation import evaluation_plan, evaluation_walk, kept_logits_bytes
from estimator.step.timeline import Walk, structure
from estimator.values.methods import Method
from estimator.values.specs import Dtype, Gpu

LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "tie_word_embeddings": False,
}
TRACED = [
    # the logits dominate: 10 bytes for each of 2,048 x 32,000
    ({"model": LLAMA, "max_length": 512, "per_device_eval_batch_size": 4}, 799123968, 1323446272),
    # float32 weights under autocast with a small vocabulary: their 16-bit copies accumulate until the last layer
    (
        {
            "model": {**LLAMA, "vocab_size": 1000},
            "max_length": 512,
            "per_device_eval_batch_size": 4,
            "dtype": "float32",
        },
        718639616,
        686934016,
    ),
]
MODEL = catalog.model("mistralai/Mistral-7B-v0.1")
MANY = TrainingSetup(eval_strategy="epoch", per_device_eval_batch_size=64)


def walk(model: Model, setup: TrainingSetup) -> Walk:
    same = structure(setup)
    plan, resident = evaluation_plan(model, same), resident_memory(model, same)
    return evaluation_walk(model, setup, plan, resident, 0)


@pytest.mark.parametrize(("given", "forward", "loss"), TRACED)
def test_evaluation_matches_the_real_height(given, forward, loss):
    model, _, setup = parse(given)
    heights = walk(model, setup).heights()
    assert heights[Phase.FORWARD].bytes == pytest.approx(forward, rel=5e-5)
    assert heights[Phase.LOSS].bytes == pytest.approx(loss, rel=5e-5)


def test_evaluation_keeps_nothing_between_layers():
    model, _, setup = parse(TRACED[0][0])
    shallow = walk(replace(model, num_hidden_layers=2), setup)
    deep = walk(model, setup)
    before = [sum(walk._begins) for walk in (shallow, deep)]
    assert shallow.peak_bytes - before[0] == deep.peak_bytes - before[1]


@pytest.mark.parametrize("key", ["gradient_checkpointing", "hold_outputs"])
def test_training_only_options_do_not_affect_evaluation(key):
    setup = TrainingSetup(method=Method.LORA, eval_strategy="steps")
    heights = [
        estimate(MODEL, None, replace(setup, **{key: flag})).phases[Phase.EVALUATION].bytes
        for flag in (False, True)
    ]
    assert heights[0] == heights[1]


def test_without_a_strategy_there_is_no_evaluation():
    assert Phase.EVALUATION not in estimate(MODEL, None, TrainingSetup()).phases
    assert need(MODEL, None, replace(MANY, eval_strategy="no")) == need(
        MODEL, None, TrainingSetup()
    )


def test_a_large_evaluation_raises_the_need_but_not_the_training_peak():
    plain, many = estimate(MODEL, None, TrainingSetup()), estimate(MODEL, None, MANY)
    assert many.peak == plain.peak
    assert many.decisive.phase is Phase.EVALUATION
    assert many.decisive.bytes > many.peak.bytes
    # PyTorch's allocator adds 2 % to the step, and less to the evaluation, whose tensors are larger
    added = many.decisive.bytes - plain.peak.bytes
    assert many.need_low_bytes - plain.need_low_bytes == pytest.approx(added, rel=0.1)


def test_a_smaller_evaluation_batch_fixes_an_evaluation_that_does_not_fit():
    plain = estimate(MODEL, None, TrainingSetup())
    card = Gpu(name="one", memory_bytes=plain.need_high_bytes + 2**30)
    dying = estimate(MODEL, card, MANY)
    assert dying.verdict is Verdict.DOES_NOT_FIT
    first, *_ = remedies(dying, [])
    assert set(first.keys) == {"per_device_eval_batch_size"}
    assert estimate(MODEL, card, replace(MANY, **first.keys)).verdict is Verdict.FITS


def test_logits_are_kept_for_metrics_in_float32_under_autocast():
    # by hand: 2 batches of 8 x 1,024 tokens, 32,000 words, 4 bytes; 2 bytes if nothing converts the outputs
    setup = TrainingSetup()
    assert kept_logits_bytes(MODEL, setup, 2) == 2 * 8 * 1024 * 32000 * 4
    plain = replace(setup, mixed_precision=MixedPrecision.NO, dtype=Dtype.BFLOAT16)
    assert kept_logits_bytes(MODEL, plain, 2) == 2 * 8 * 1024 * 32000 * 2


def test_dropout_takes_no_memory_in_evaluation():
    gpt2 = catalog.model("openai-community/gpt2")
    assert gpt2.resid_pdrop
    setup = TrainingSetup(eval_strategy="epoch")

    def height(model: Model) -> int:
        return estimate(model, None, setup).phases[Phase.EVALUATION].bytes

    assert height(gpt2) == height(replace(gpt2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


# --- metrics of the logits ----------------------------------------------------------------------

METRICS = TrainingSetup(
    max_length=512, eval_strategy="steps", per_device_eval_batch_size=2, compute_metrics=True
)
A_BATCH = 2 * 512 * 49_152 * 4
"""By hand: rows · tokens · words of SmolLM2, as float32 under autocast."""


def _evaluation(**keys: object) -> Moment:
    setup = replace(METRICS, **keys)
    return estimate(catalog.model("HuggingFaceTB/SmolLM2-135M"), None, setup).phases[
        Phase.EVALUATION
    ]


def test_logits_of_earlier_batches_stay_and_are_concatenated_by_copying():
    """``nested_concat``: the earlier and new batches, 4 in total, and their concatenated copy."""
    joined = _evaluation(eval_accumulation_steps=4)
    assert joined.name == "logits of the evaluation's batches"
    assert joined.resident[Component.LOGITS] == 2 * 4 * A_BATCH


def test_logits_moved_to_the_host_immediately_cost_nothing_extra():
    without, with_it = (
        _evaluation(compute_metrics=asks, eval_accumulation_steps=1) for asks in (False, True)
    )
    assert with_it == without


def test_a_second_batch_runs_beside_the_first_one_s_logits():
    """With one earlier batch, the batch itself needs more than the concatenation."""
    first, second = (_evaluation(eval_accumulation_steps=steps) for steps in (1, 2))
    assert second.resident[Component.LOGITS] in (
        first.resident[Component.LOGITS] + A_BATCH,
        4 * A_BATCH,
    )


def test_the_fused_head_makes_no_logits_so_the_model_is_called_again():
    """TRL 1.16: an extra forward pass, whose logits take 2 bytes a word plus 4 as float32, instead of a tile."""
    fused = {"loss": "chunked_trl", "eval_accumulation_steps": 1}
    with_it, without = (_evaluation(compute_metrics=asks, **fused) for asks in (True, False))
    assert with_it.bytes - without.bytes > A_BATCH


def test_every_gpu_gathers_all_logits():
    shared = _evaluation(eval_accumulation_steps=4, strategy="ddp", num_gpus=2)
    assert shared.resident[Component.LOGITS] == 2 * 2 * 4 * A_BATCH


def test_need_and_grid_include_metrics():
    model, card = catalog.model("HuggingFaceTB/SmolLM2-135M"), catalog.gpu("A100-SXM4-80GB")
    setup = replace(METRICS, eval_accumulation_steps=16)
    high = need(model, card, setup).high
    assert high >= 2 * 16 * A_BATCH
    assert int(needs(model, card, setup, max_length=[512]).high_bytes[0]) == high
