"""An objective is a list of passes: a new one is a few lines here and changes nothing elsewhere.

Every peak below is checked against a step already known: what a pass without gradients adds, what the head costs on
fewer tokens, what a model without a head leaves out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from estimator import Component, Method, Phase, TrainingSetup, catalog
from estimator.parallel.strategies import resident_memory
from estimator.passes.causal_lm import causal_lm
from estimator.passes.forward import Forward, Pass
from estimator.passes.step import MicroStep, Step
from estimator.step.timeline import Plan, Sizes, StepTimeline
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import MixedPrecision, Model

MODEL = catalog.model("HuggingFaceTB/SmolLM2-135M")
SETUP = TrainingSetup(mixed_precision=MixedPrecision.NO, max_length=512)


def log_probabilities(
    step: Step, forward: Forward, ids: Tensor, scored: int | None = None
) -> Tensor:
    """The log-probability of every scored token."""
    hidden = forward.hidden(ids)
    if scored is not None:
        hidden = op.part(step.tape, hidden, scored * MODEL.hidden_size)
    logits = op.cast(step.tape, forward.logits(hidden), 4)
    step.tape.enter(forward.end_phase, "loss")
    return op.log_softmax_loss(step.tape, logits, ids)


def preferences(step: Step) -> None:
    """Two rows per example; the reference model runs without gradients while the policy's graph is alive."""
    setup = step.setup
    rows, length = 2 * setup.batch.per_device_train_batch_size, setup.batch.max_length
    reference = step.load(MODEL, setup)
    ids = step.ids(rows * length)
    policy = step.call(Pass(step.trained, rows, length))
    chosen = log_probabilities(step, policy, ids)
    policy.end()
    with step.tape.grad(enabled=False):
        asked = step.call(Pass(reference, rows, length, grad=False, label="reference"))
        expected = log_probabilities(step, asked, ids)
        asked.end()
    step.backward(op.add(step.tape, chosen, expected))
    step.end()


def completions(step: Step, share: int = 2) -> None:
    """The head sees the last part of every text: one token in ``share``."""
    setup = step.setup
    ids = step.ids(setup.batch.tokens)
    rows, length, scored = (
        setup.batch.per_device_train_batch_size,
        setup.batch.max_length,
        setup.batch.tokens // share,
    )
    forward = step.call(Pass(step.trained, rows, length, scored))
    loss = log_probabilities(step, forward, ids, scored)
    forward.end()
    step.backward(loss)
    step.end()


def embeddings(step: Step) -> None:
    """No head: the mean of the last hidden states is the loss."""
    setup = step.setup
    ids = step.ids(setup.batch.tokens)
    forward = step.call(
        Pass(step.trained, setup.batch.per_device_train_batch_size, setup.batch.max_length)
    )
    loss = op.mean(step.tape, forward.hidden(ids), 1, "mean of the hidden states")
    forward.end()
    step.backward(loss)
    step.end()


def with_reference(setup: TrainingSetup = SETUP) -> StepTimeline:
    plan = Plan(MODEL, setup, objective=preferences)
    resident = resident_memory(MODEL, setup)
    return StepTimeline(setup, plan, replace(resident, reference=resident.weights), 0)


def played(
    objective: MicroStep, model: Model = MODEL, setup: TrainingSetup = SETUP
) -> StepTimeline:
    plan = Plan(model, setup, objective=objective)
    return StepTimeline(setup, plan, resident_memory(model, setup), 0)


def height(timeline: StepTimeline, phase: Phase, part: Component | None = None) -> int:
    moment = timeline.heights()[phase]
    return moment.bytes if part is None else moment.resident.get(part, 0)


def test_a_pair_is_two_rows_and_the_reference_pass_leaves_nothing_behind():
    pairs = played(preferences)
    doubled = played(causal_lm, setup=replace(SETUP, per_device_train_batch_size=2))
    # backward of log-softmax holds the same logits, gradients and layers: all that the reference made is freed except
    # its loss, one float32, and what the sum of the losses saves
    difference = height(pairs, Phase.BACKWARD) - height(doubled, Phase.BACKWARD)
    assert abs(difference) < 64 * 1024


def test_a_second_model_adds_its_weights_to_every_phase():
    alone, both = played(preferences), with_reference()
    two_bytes = 2 * resident_memory(MODEL, SETUP).total_parameters
    for phase in alone.heights():
        more = height(both, phase) - height(alone, phase)
        assert more == pytest.approx(two_bytes, rel=1e-3)  # each tensor is rounded up to 512 bytes


def test_moments_of_a_second_model_carry_its_name_and_layers():
    names = [moment.name for moment in played(preferences).moments]
    layers = MODEL.num_hidden_layers
    of_reference = [name for name in names if name.startswith("reference: layer ")]
    assert len(of_reference) == layers
    assert of_reference[-1].startswith(f"reference: layer {layers} of {layers}: ")
    assert (
        sum(name.startswith("layer ") for name in names) == 2 * layers
    )  # forward and backward of the policy


def test_a_pass_without_gradients_saves_nothing():
    timeline = played(preferences)
    layers = [moment for moment in timeline.moments if moment.name.startswith("reference: layer ")]
    kept = {moment.resident.get(Component.ACTIVATIONS, 0) for moment in layers}
    assert len(kept) == 1  # what the policy saved, and no more from layer to layer


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_head_on_half_the_tokens_makes_half_the_logits(checkpointing):
    setup = replace(SETUP, gradient_checkpointing=checkpointing)
    whole = played(partial(completions, share=1), setup=setup)
    half = played(completions, setup=setup)
    # at the loss's peak each logit exists twice in float32: after the cast and after log-softmax
    spared = 8 * MODEL.vocab_size * SETUP.batch.max_length // 2
    assert height(whole, Phase.LOSS) - height(half, Phase.LOSS) == spared


def test_a_model_without_a_head_has_no_logits():
    timeline = played(embeddings)
    assert all(height(timeline, phase, Component.LOGITS) == 0 for phase in timeline.heights())


def test_a_references_autocast_cache_is_freed_after_its_call():
    setup = replace(
        SETUP, mixed_precision=MixedPrecision.BF16, dtype=type(SETUP.precision.dtype).FLOAT32
    )
    step, schedule = Plan(MODEL, setup, objective=preferences).step(Sizes(1, 512, 16, 1, 511, 1))
    # everything allocated is freed except the gradients, one float32 per trained weight
    left = sum(step.heights[run.segment].net * run.length for run in schedule.runs)
    assert left == resident_memory(MODEL, setup).gradients


def test_adapters_train_under_a_new_objective():
    setup = replace(SETUP, method=Method.LORA, autocast_adapter_dtype=False)
    step, schedule = Plan(MODEL, setup, objective=completions).step(Sizes(1, 512, 16, 1, 511, 1))
    left = sum(step.heights[run.segment].net * run.length for run in schedule.runs)
    assert left == resident_memory(MODEL, setup).gradients
