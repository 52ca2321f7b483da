"""GRPO's training step: completions that were generated are scored without gradients where needed, then trained on.

RLOO's is the same, but old log-probabilities are always asked for, and by default a reference: ``scores_policy`` and
``asks_reference`` say so. Generation is no part of it: what it needs is not counted.

Source: trl 1.16, trainer/grpo_trainer.py, ``_generate_and_score_completions``, ``_get_per_token_logps_and_entropies``
and ``_compute_loss``; trainer/rloo_trainer.py, the same methods; trainer/rloo_config.py (``beta`` 0.05). Every loss
type is arithmetic on a few numbers a token of the completion. verl's step has the same passes: verl 0.9.1,
workers/engine_workers.py, ``compute_log_prob``, ``compute_ref_log_prob``, ``update_actor``.
"""

from __future__ import annotations

from estimator.passes.batch import scores_policy
from estimator.passes.forward import Pass
from estimator.passes.step import Step, as_reference, load_reference
from estimator.passes.whole_logits import ask
from estimator.tape.tape import ACTIVATIONS, Tensor
from estimator.values.specs import Phase


def grpo(step: Step) -> None:
    """Old log-probabilities and the reference's, without gradients before the graph; the policy's; backward."""
    setup = step.setup
    rows, length = setup.batch.per_device_train_batch_size, setup.batch.max_length
    reference = load_reference(step)
    batch = [step.ids(rows * length) for _ in range(2)]  # prompts and completions, ids and masks
    scored: list[Tensor] = []
    if scores_policy(setup):
        asked = Pass(step.trained, rows, length, grad=False, phase=Phase.SCORING, label="old")
        scored.append(_score(step, asked))
    if setup.task.asks_reference:
        asked = as_reference(reference, step, rows)._replace(phase=Phase.SCORING)
        scored.append(_score(step, asked))
    ids, mask, labels = (step.ids(rows * length) for _ in range(3))
    loss, outputs = ask(step, Pass(step.trained, rows, length), ids, labels)
    del outputs
    if step.training:
        step.backward(loss)
    step.end()
    del batch, scored, ids, mask, labels


def _score(step: Step, of: Pass) -> Tensor:
    """One slice of the batch, of the size of a micro-batch; its log-probabilities stay until the step ends."""
    ids, mask, labels = (step.ids(of.rows * of.length) for _ in range(3))
    ask(step, of, ids, labels)
    del ids, mask, labels
    return step.tape.new(of.rows * step.scored, 4, ACTIVATIONS)
