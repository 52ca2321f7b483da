"""DPO: pairs of answers; a reference model is asked without gradients while the policy's graph is alive.

Source: trl 1.16, trainer/dpo_trainer.py, ``DataCollatorForPreference`` and ``_compute_loss``. Every loss type is
arithmetic on two numbers a pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.values.objective import Objective, TrlTrainer

if TYPE_CHECKING:
    from estimator.passes.step import Step


def dpo(step: Step) -> None:
    """One forward call on chosen and rejected rows together, the reference's on the same rows, and backward."""
    task = step.setup.task
    ids, mask, completions, labels = step.batch(4)
    reference = step.reference()
    loss, *held = step.ask(step.policy(), ids, labels)
    if not task.precompute_ref_log_probs:
        _, asked = step.ask(step.of_reference(reference), ids, labels)
        if task.given_loss.keeps_logits:
            held.append(asked)
        del asked
    step.measure(held)
    held.clear()
    step.train(loss)
    del ids, mask, completions, labels


OBJECTIVE = Objective(
    "dpo",
    dpo,
    takes="pairs of answers",
    phrase="by DPO",
    trl=TrlTrainer(
        "DPO",
        rows='rows of "prompt", "chosen" and "rejected".',
        dataset="trl-lib/ultrafeedback_binarized",
        arguments="""loss_weights ld_alpha f_divergence_type f_alpha_divergence_coef use_weighting rpo_alpha
        discopop_tau ref_adapter_name force_use_ref_model padding_free label_smoothing""",
    ),
    loss_types=(
        *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard"),
        *("aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
    ),
    usual_loss_type="sigmoid",
    beta=0.1,
    is_paired=True,
    is_preference=True,
    has_reference=True,
    offloads_activations=True,
    zeroes_dropout=True,
)
