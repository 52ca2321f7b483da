"""KTO: single answers that are good or bad; prompts with others' answers are asked too, to estimate a divergence.

Source: trl 1.16, trainer/kto_trainer.py, ``_compute_loss`` and ``_compute_kl_logps``.
"""

from __future__ import annotations

from estimator.objectives.batch import asks_kl
from estimator.objectives.causal_lm import LabelledCall
from estimator.objectives.dpo import as_reference, load_reference
from estimator.objectives.forward import Pass
from estimator.objectives.step import Step
from estimator.tape.tape import Tensor
from estimator.values.specs import Phase


def kto(step: Step) -> None:
    """Policy on mismatched rows without gradients, policy, reference on both, backward."""
    setup = step.setup
    rows, length = setup.per_device_train_batch_size, setup.max_length
    has_kl = asks_kl(setup)
    reference = load_reference(step)
    ids, mask, completions = (step.ids(rows * length) for _ in range(3))
    others = [step.ids(rows * length) for _ in range(3 * has_kl)]

    if has_kl:
        asked = Pass(step.trained, rows, length, grad=False, phase=Phase.REFERENCE, label="KL")
        _ask(step, asked, ids)
    labels = step.ids(rows * length)
    policy = step.call(Pass(step.trained, rows, length))
    loss, outputs = LabelledCall(policy, rows * step.scored).run(ids, labels)
    del outputs
    if not setup.precompute_ref_log_probs:
        asked = as_reference(reference, step, rows)
        if has_kl:
            _ask(step, asked._replace(label="reference's KL"), ids)
        _ask(step, asked, ids)
    if step.training:
        step.backward(loss)
    step.end()
    del ids, mask, completions, others, labels


def _ask(step: Step, of: Pass, ids: Tensor) -> None:
    """A forward call without gradients, with labels of its own."""
    labels = step.ids(of.rows * of.length)
    with step.tape.grad(enabled=False):
        LabelledCall(step.call(of), of.rows * step.scored).run(ids, labels)
