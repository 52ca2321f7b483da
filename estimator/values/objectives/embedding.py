"""Embedding: pairs of texts; each vector is held against all of the batch's, whole or in GradCache's mini-batches.

Source: sentence-transformers 6.2, sentence_transformer/losses/multiple_negatives_ranking.py and
cached_multiple_negatives_ranking.py, base/losses/gradcache.py, ``CachedLossMixin``, base/losses/merged_forward.py,
``embed_columns`` (each column has a forward call of its own); Gao et al. 2021, arXiv:2101.06983.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.values.objective import Objective
from estimator.values.specs import Phase

if TYPE_CHECKING:
    from estimator.passes.step import Step
    from estimator.tape.tape import Tensor
    from estimator.values.setup import TrainingSetup

COLUMNS = ("anchors", "positives")


def embedding(step: Step) -> None:
    """The vectors of both columns, the scores of every pair, and backward."""
    batch = step.batch(2 * len(COLUMNS), step.setup.batch.per_device_train_batch_size)
    if step.setup.task.mini_batch_size is None:
        _whole(step, batch[0])
    else:
        _in_mini_batches(step, batch[0])
    step.end()
    del batch


def _whole(step: Step, ids: Tensor) -> None:
    vectors, hidden = [], []
    for column in COLUMNS:
        vector, states = step.vectors(step.policy(rows=step.examples, label=column), ids)
        vectors.append(vector)
        hidden.append(states)
    step.tape.enter(Phase.LOSS, "loss")
    loss = step.contrast(vectors)
    vectors.clear()
    hidden.clear()
    if step.training:
        step.backward(loss)


def _in_mini_batches(step: Step, ids: Tensor) -> None:
    """All vectors without gradients, the gradients of these, and each mini-batch once more with its graph.

    One mini-batch is played; gradients of those before it lie there already.
    """
    tape, examples = step.tape, step.examples
    first = step.policy(
        rows=step.at_once, grad=False, phase=Phase.SCORING, label="without gradients"
    )
    with tape.grad(enabled=False):
        step.vectors(first, ids)
    width = step.trained.model.hidden_size
    bytes_each = 4 if tape.autocast_width is not None else step.setup.precision.dtype.bytes
    cached = [step.held(examples * width, bytes_each) for _ in COLUMNS]
    gradients = [step.held(examples * width, bytes_each) for _ in COLUMNS]
    scores = tape.new(step.at_once * examples, 4)
    log_softmax = tape.new(step.at_once * examples, 4)
    del scores, log_softmax
    if not step.training:
        return
    vector, states = step.vectors(step.policy(rows=step.at_once), ids)
    tape.enter(Phase.LOSS, "loss")
    loss = step.mean(vector, "vectors times their gradients")
    del vector, states
    step.backward(loss)
    del cached, gradients


def passes_without_grad(setup: TrainingSetup) -> int:
    """GradCache's, before the one with gradients (a count)."""
    return int(setup.task.mini_batch_size is not None)


OBJECTIVE = Objective(
    "embedding",
    embedding,
    passes_without_grad=passes_without_grad,
    takes="pairs of texts",
    phrase="as an embedding model",
    is_paired=True,
    compares_rows=True,
    labels=0,
)
