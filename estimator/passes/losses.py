"""Losses of what a row makes as a whole: the scores of a head of labels, and the vectors of texts.

Source: transformers 5.23, modeling_layers.py, ``GenericForSequenceClassification.forward``; loss/loss_utils.py,
``ForSequenceClassificationLoss``; trl 1.16, trainer/reward_trainer.py, ``compute_loss``; sentence-transformers 6.2,
sentence_transformer/losses/multiple_negatives_ranking.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.passes.forward import ID_BYTES, Forward, Pass
from estimator.tape import operators as op
from estimator.tape.tape import Tensor

if TYPE_CHECKING:
    from estimator.passes.step import Step


def scores(step: Step, forward: Forward, ids: Tensor) -> Tensor:
    """The scores of one position a row, after a head on all positions; ends the call.

    rows · num_labels, picked from rows · S · num_labels
    """
    tape, labels = step.tape, forward.model.num_labels or 1
    hidden = forward.hidden(ids)
    tape.enter(forward.end_phase, "loss")
    every = forward.outer.linear("score", hidden)
    del hidden
    index = step.ids(step.rows)
    pooled = op.gather(tape, every, index, step.rows * labels, "last token's scores")
    del every
    forward.end()
    if tape.autocast_width is not None:
        pooled = op.cast(tape, pooled, 4)
    return forward.hooks.leave_model(pooled, None)[0]


def vectors(step: Step, of: Pass, ids: Tensor) -> tuple[Tensor, Tensor]:
    """A vector a row, the last token's; and the hidden states, which the features hold until the loss is known.

    Source: sentence-transformers 6.2, sentence_transformer/model.py:1289 (``lasttoken`` for causal models) and
    modules/pooling.py; accelerate 1.15, ``convert_outputs_to_fp32`` (of everything that the features hold).
    """
    tape = step.tape
    forward = step.call(of)
    states = forward.hidden(ids)
    tape.operation = "last token"
    index = tape.new(of.rows, ID_BYTES)
    vector = op.gather(tape, states, index, of.rows * forward.model.hidden_size, "last token")
    forward.end()
    if tape.autocast_width is not None:
        tape.operation = "outputs to float32"
        converted = tape.new(states.elements, 4) if states.width != 4 else None
        vector = op.cast(tape, vector, 4)
        del converted
    return forward.hooks.leave_model(vector, None)[0], states


def contrast(step: Step, vectors: list[Tensor]) -> Tensor:
    """Cosines of every anchor with every positive, in cross-entropy against its own."""
    tape, examples = step.tape, step.examples
    units = [op.elementwise(tape, vector, "unit length", saves="output") for vector in vectors]
    scores = op.scale(tape, op.matmul(tape, units[0], units[1], examples * examples, "cosines"))
    labels = tape.new(examples, ID_BYTES)
    return op.log_softmax_loss(tape, scores, labels)


def cross_entropy(step: Step, scores: Tensor, labels: Tensor) -> Tensor:
    """The loss of scores in float32 against their labels."""
    return op.log_softmax_loss(step.tape, op.cast(step.tape, scores, 4), labels)


def log_sigmoid(step: Step, scores: Tensor) -> Tensor:
    """The loss of pairs of scores."""
    return mean(step, op.elementwise(step.tape, scores, "log-sigmoid"), "loss")


def mean(step: Step, x: Tensor, operation: str) -> Tensor:
    """One number of a tensor."""
    return op.mean(step.tape, x, 1, operation)
