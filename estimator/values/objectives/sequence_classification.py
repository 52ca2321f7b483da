"""Sequence classification: a label for a text, by a head of labels on every position, of which one a row counts.

Source: transformers 5.23, modeling_layers.py, ``GenericForSequenceClassification.forward``; loss/loss_utils.py,
``ForSequenceClassificationLoss``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.values.objective import Objective

if TYPE_CHECKING:
    from estimator.passes.step import Step


def sequence_classification(step: Step) -> None:
    """One forward call, the loss of one position a row, and backward."""
    ids, mask = step.batch(2)
    labels = step.ids(step.rows)
    forward = step.call(step.policy())
    pooled = step.scores(forward, ids)
    loss = step.cross_entropy(pooled, labels)
    step.train(loss)
    forward.router_logits.clear()
    del ids, mask, labels, pooled


OBJECTIVE = Objective(
    "sequence_classification",
    sequence_classification,
    takes="texts that have a label",
    phrase="as a classifier",
    has_score=True,
    asks_labels=True,
    has_metrics=True,
)
