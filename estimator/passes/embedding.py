"""Embedding: pairs of texts; each vector is held against all of the batch's, whole or in GradCache's mini-batches.

Source: sentence-transformers 6.2, sentence_transformer/losses/multiple_negatives_ranking.py and
cached_multiple_negatives_ranking.py, base/losses/gradcache.py, ``CachedLossMixin``, base/losses/merged_forward.py,
``embed_columns`` (each column has a forward call of its own); Gao et al. 2021, arXiv:2101.06983.
"""

from __future__ import annotations

from estimator.passes.forward import ID_BYTES, Pass
from estimator.passes.step import Step
from estimator.tape import operators as op
from estimator.tape.tape import ACTIVATIONS, Tensor
from estimator.values.specs import Phase

COLUMNS = ("anchors", "positives")


def embedding(step: Step) -> None:
    """The vectors of both columns, the scores of every pair, and backward."""
    setup = step.setup
    batch = [step.ids(setup.batch.tokens) for _ in range(2 * len(COLUMNS))]
    if setup.task.mini_batch_size is None:
        _whole(step, batch[0])
    else:
        _in_mini_batches(step, batch[0])
    step.end()
    del batch


def _whole(step: Step, ids: Tensor) -> None:
    examples = step.setup.batch.per_device_train_batch_size
    vectors, hidden = [], []
    for column in COLUMNS:
        vector, states = _vectors(
            step, Pass(step.trained, examples, step.setup.batch.max_length, label=column), ids
        )
        vectors.append(vector)
        hidden.append(states)
    step.tape.enter(Phase.LOSS, "loss")
    loss = _contrast(step, vectors, examples)
    vectors.clear()
    hidden.clear()
    if step.training:
        step.backward(loss)


def _in_mini_batches(step: Step, ids: Tensor) -> None:
    """All vectors without gradients, the gradients of these, and each mini-batch once more with its graph.

    One mini-batch is played; gradients of those before it lie there already.
    """
    tape, setup = step.tape, step.setup
    examples, length = setup.batch.per_device_train_batch_size, setup.batch.max_length
    first = Pass(
        step.trained,
        step.at_once,
        length,
        grad=False,
        phase=Phase.SCORING,
        label="without gradients",
    )
    with tape.grad(enabled=False):
        _vectors(step, first, ids)
    width = step.trained.model.hidden_size
    bytes_each = 4 if tape.autocast_width is not None else setup.precision.dtype.bytes
    cached = [tape.new(examples * width, bytes_each, ACTIVATIONS) for _ in COLUMNS]
    gradients = [tape.new(examples * width, bytes_each, ACTIVATIONS) for _ in COLUMNS]
    scores = tape.new(step.at_once * examples, 4)
    log_softmax = tape.new(step.at_once * examples, 4)
    del scores, log_softmax
    if not step.training:
        return
    vector, states = _vectors(step, Pass(step.trained, step.at_once, length), ids)
    tape.enter(Phase.LOSS, "loss")
    loss = op.mean(tape, vector, 1, "vectors times their gradients")
    del vector, states
    step.backward(loss)
    del cached, gradients


def _vectors(step: Step, of: Pass, ids: Tensor) -> tuple[Tensor, Tensor]:
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


def _contrast(step: Step, vectors: list[Tensor], examples: int) -> Tensor:
    """Cosines of every anchor with every positive, in cross-entropy against its own."""
    tape = step.tape
    units = [op.elementwise(tape, vector, "unit length", saves="output") for vector in vectors]
    scores = op.scale(tape, op.matmul(tape, units[0], units[1], examples * examples, "cosines"))
    labels = tape.new(examples, ID_BYTES)
    return op.log_softmax_loss(tape, scores, labels)
