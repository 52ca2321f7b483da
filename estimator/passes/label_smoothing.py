"""Supervised fine-tuning with label smoothing, which needs the whole logits whatever the loss.

Source: transformers 5.23, trainer.py, ``compute_loss``, and trainer_pt_utils.py, ``LabelSmoother``; trl 1.16,
trainer/sft_trainer.py, ``compute_loss`` (a second forward call without gradients, with the fused head, for metrics).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.passes.forward import as_logits
from estimator.passes.labelled_call import LabelledCall
from estimator.tape import operators as op
from estimator.tape.tape import LOGITS, Tape, Tensor
from estimator.values.losses import Loss
from estimator.values.specs import Phase

if TYPE_CHECKING:
    from estimator.passes.step import Step


def smoothed(step: Step) -> None:
    """One forward call without labels, the smoothed loss of its logits, TRL's call for metrics, and backward."""
    setup, rows = step.setup, step.rows
    ids, labels = step.batch(2)
    padding = step.ids() if setup.batch.padded else None
    forward = step.call(step.policy())
    logits = step.logits(forward, ids)
    words = forward.model.vocab_size
    loss = _loss(step.tape, logits, rows, setup.batch.max_length - 1, words)
    del logits
    forward.router_logits.clear()
    if setup.task.given_loss.tiles_logits:
        again = step.policy(grad=False, phase=Phase.REFERENCE, label="for metrics")
        with step.tape.grad(enabled=False):
            fused = LabelledCall(step.call(again), rows * step.scored, Loss.CHUNKED_TRL)
            fused.run(ids, labels)
        del fused
    step.train(loss)
    del ids, labels, padding


def _loss(tape: Tape, logits: Tensor, examples: int, scored: int, words: int) -> Tensor:
    """Negated log-softmax of all positions but the last, of which one word and the sum of all words count.

    Four tensors of T · V at once: the logits, the copy that is shifted, the log-softmax, and its negative. The last two
    are kept for backward. One row is contiguous as it is, so that the slice is not copied.

    Source: transformers 5.23, trainer_pt_utils.py, ``LabelSmoother.__call__`` (``logits[..., :-1, :].contiguous()``);
    torch 2.13, tools/autograd/derivatives.yaml (``gather`` keeps its input).
    """
    width, rows = logits.width, examples * scored
    elements = rows * words
    shifted = op.part(tape, logits, elements)
    if examples > 1:
        shifted = as_logits(op.clone(tape, shifted))
    tape.operation = "log-softmax"
    found = tape.new(elements, width, LOGITS)
    found = tape.record(
        "log-softmax backward",
        found,
        [shifted],
        lambda t, g: [t.new(elements, width, LOGITS)],
        [found],
    )
    negated = as_logits(op.scale(tape, found))
    del found
    index = tape.new(rows, 8)
    tape.operation = "log-probabilities"
    node = tape.begin(
        "log-probabilities backward",
        [negated],
        lambda t, g: [t.new(elements, width, LOGITS)],
        [negated, index],
    )
    likelihood = tape.finish(node, tape.new(rows, width))
    tape.operation = "sum over the words"
    total = tape.record(
        "sum over the words, backward",
        tape.new(rows, 4),
        [negated],
        lambda t, g: [
            t.new(elements, width, LOGITS) if width != 4 else t.view(t.new(rows, 4), elements)
        ],
    )
    del negated, shifted, index
    likelihood = op.mean(tape, likelihood, 1, "loss")
    return op.add(tape, likelihood, op.mean(tape, total, 1, "loss"))
