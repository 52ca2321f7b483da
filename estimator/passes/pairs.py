"""Pairs of answers without a reference model, and the whole logits in float32: TRL's experimental trainers.

Source: trl 1.16, experimental/orpo/orpo_trainer.py and experimental/cpo/cpo_trainer.py, ``concatenated_forward`` and
``get_batch_loss_metrics``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.passes.forward import as_logits
from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.tape import Tensor

if TYPE_CHECKING:
    from estimator.passes.step import Step


def on_pairs(step: Step, *, learns_chosen: bool = True) -> None:
    """One forward call on chosen and rejected rows, log-probabilities of all, backward.

    ``learns_chosen``: a cross-entropy of the chosen rows is in the loss.
    """
    setup, tape = step.setup, step.tape
    rows, length = step.rows, setup.batch.max_length
    ids, mask, completions = step.batch(3)
    forward = step.call(step.policy())
    hidden: Tensor | None = forward.hidden(ids)
    assert hidden is not None
    tape.enter(forward.end_phase, "loss")
    logits = forward.logits(hidden)
    hidden = None
    within_autocast = setup.casts_base_back  # autocast's own context is around the loss as well
    if not within_autocast:
        forward.end()
    tape.operation = "outputs to float32"
    if tape.autocast_width is not None:
        logits = as_logits(op.cast(tape, logits, 4))
    logits, _ = forward.hooks.leave_model(logits, None)
    labels = step.ids()
    chosen_loss = _cross_entropy(step, logits, labels) if learns_chosen else None
    shifted = step.ids(rows * (length - 1))
    size = rows * (length - 1) * forward.model.vocab_size
    found = fused.selected_log_softmax(tape, op.part(tape, logits, size), shifted)
    del logits
    loss = op.mean(tape, found, 1, "loss")
    if chosen_loss is not None:
        loss = op.add(tape, chosen_loss, loss)
    del chosen_loss, found
    if within_autocast:
        forward.end()
    step.train(loss)
    forward.router_logits.clear()
    del ids, mask, completions, labels, shifted


def _cross_entropy(step: Step, logits: Tensor, labels: Tensor) -> Tensor:
    """Of the chosen rows, which are shifted and copied; one row is contiguous as it is."""
    tape, examples, length = step.tape, step.examples, step.setup.batch.max_length
    vocabulary = step.trained.model.vocab_size
    chosen = op.part(tape, logits, examples * length * vocabulary)
    shifted = op.part(tape, chosen, examples * (length - 1) * vocabulary)
    copied = as_logits(op.clone(tape, shifted)) if examples > 1 else shifted
    return op.log_softmax_loss(tape, copied, labels)
