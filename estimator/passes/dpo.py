"""DPO: pairs of answers; a reference model is asked without gradients while the policy's graph is alive.

Source: trl 1.16, trainer/dpo_trainer.py, ``DataCollatorForPreference`` and ``_compute_loss``. Every loss type is
arithmetic on two numbers a pair.
"""

from __future__ import annotations

from estimator.passes.forward import Pass
from estimator.passes.step import Step, as_reference, load_reference
from estimator.passes.whole_logits import ask, measure


def dpo(step: Step) -> None:
    """One forward call on chosen and rejected rows together, the reference's on the same rows, and backward."""
    setup = step.setup
    rows, length = 2 * setup.batch.per_device_train_batch_size, setup.batch.max_length
    ids, mask, completions = (step.ids(rows * length) for _ in range(3))
    labels = step.ids(rows * length)
    reference = load_reference(step)
    loss, *held = ask(step, Pass(step.trained, rows, length), ids, labels)
    if not setup.task.precompute_ref_log_probs:
        _, asked = ask(step, as_reference(reference, step, rows), ids, labels)
        if setup.task.given_loss.keeps_logits:
            held.append(asked)
        del asked
    measure(step, rows, held)
    held.clear()
    if step.training:
        step.backward(loss)
    step.end()
    del ids, mask, completions, labels
