"""Sequence classification: a head of labels on every position, of which one a row counts.

Source: transformers 5.23, modeling_layers.py, ``GenericForSequenceClassification.forward``; loss/loss_utils.py,
``ForSequenceClassificationLoss``.
"""

from __future__ import annotations

from estimator.passes.forward import Forward, Pass
from estimator.passes.step import Step
from estimator.tape import operators as op
from estimator.tape.tape import Tensor


def sequence_classification(step: Step) -> None:
    """One forward call, the loss of one position a row, and backward."""
    setup = step.setup
    rows, length = setup.batch.per_device_train_batch_size, setup.batch.max_length
    ids, mask = step.ids(rows * length), step.ids(rows * length)
    labels = step.ids(rows)
    forward = step.call(Pass(step.trained, rows, length))
    pooled = scores(step, forward, ids, rows)
    loss = op.log_softmax_loss(step.tape, op.cast(step.tape, pooled, 4), labels)
    if step.training:
        step.backward(loss)
    step.end()
    forward.router_logits.clear()
    del ids, mask, labels


def scores(step: Step, forward: Forward, ids: Tensor, rows: int) -> Tensor:
    """The scores of one position a row, after a head on all positions; ends the call.

    rows · num_labels, picked from rows · S · num_labels
    """
    tape, labels = step.tape, forward.model.num_labels or 1
    hidden = forward.hidden(ids)
    tape.enter(forward.end_phase, "loss")
    every = forward.outer.linear("score", hidden)
    del hidden
    index = step.ids(rows)
    pooled = op.gather(tape, every, index, rows * labels, "last token's scores")
    del every
    forward.end()
    if tape.autocast_width is not None:
        pooled = op.cast(tape, pooled, 4)
    return forward.hooks.leave_model(pooled, None)[0]
