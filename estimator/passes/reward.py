"""Reward modelling: pairs of answers, each scored by one number.

Source: trl 1.16, trainer/reward_trainer.py, ``compute_loss``.
"""

from __future__ import annotations

from estimator.passes.forward import Pass
from estimator.passes.sequence_classification import scores
from estimator.passes.step import Step
from estimator.tape import operators as op


def reward(step: Step) -> None:
    """One forward call on chosen and rejected rows together, a loss of two numbers a pair, and backward."""
    setup = step.setup
    rows, length = 2 * setup.batch.per_device_train_batch_size, setup.batch.max_length
    ids, mask = step.ids(rows * length), step.ids(rows * length)
    forward = step.call(Pass(step.trained, rows, length))
    pooled = scores(step, forward, ids, rows)
    loss = op.mean(step.tape, op.elementwise(step.tape, pooled, "log-sigmoid"), 1, "loss")
    if step.training:
        step.backward(loss)
    step.end()
    del ids, mask
