"""KTO: single answers that are good or bad; prompts with others' answers are asked too, to estimate a divergence.

Source: trl 1.16, trainer/kto_trainer.py, ``_compute_loss`` and ``_compute_kl_logps``; llamafactory 0.9.5,
train/kto/trainer.py, ``concatenated_forward``.
"""

from __future__ import annotations

from estimator.families.liger import loss_of
from estimator.passes.batch import asks_kl
from estimator.passes.forward import Pass
from estimator.passes.step import Step, as_reference, load_reference
from estimator.passes.whole_logits import ask, measure
from estimator.tape.tape import LOGITS, Tensor
from estimator.values.specs import Phase


def kto(step: Step) -> None:
    """Policy on mismatched rows without gradients, policy, reference on both, backward."""
    setup = step.setup
    rows, length = setup.batch.per_device_train_batch_size, setup.batch.max_length
    reference = load_reference(step)
    ids, mask, completions = (step.ids(rows * length) for _ in range(3))
    others = [step.ids(rows * length) for _ in range(3 * asks_kl(setup.task))]
    asked = Pass(step.trained, rows, length)
    mismatched = asked._replace(grad=False, phase=Phase.REFERENCE, label="KL")
    loss, *held = _both(step, asked, mismatched, ids)
    logits = held[1:]  # the labels stay
    del held[1]
    if not setup.task.precompute_ref_log_probs:
        asked = as_reference(reference, step, rows)
        of_reference = _both(step, asked, asked._replace(label="reference's KL"), ids)[2]
        if setup.task.given_loss.keeps_logits:
            logits.append(of_reference)
        del of_reference
    measure(step, rows, logits)
    logits.clear()
    if step.training:
        step.backward(loss)
    step.end()
    del ids, mask, completions, others, held


def _both(
    step: Step, asked: Pass, mismatched: Pass, ids: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One model's loss on the rows, their labels, and logits that are held; it is asked of mismatched rows beside.

    Where the trainer computes whole logits the rows come first.
    """
    is_whole = loss_of(step.trained.model, step.setup).takes_whole_logits
    size = asked.rows * asked.length
    if asks_kl(step.setup.task) and not is_whole:
        ask(step, mismatched, ids, step.ids(size))
    labels = step.ids(size)
    loss, held = ask(step, asked, ids, labels)
    if asks_kl(step.setup.task) and is_whole:
        ask(step, mismatched, ids, step.ids(size))
    if held is not None and is_whole:
        step.tape.operation = "logits of good and of bad answers"
        held = step.tape.new(held.elements, held.width, LOGITS)
    return loss, labels, held
