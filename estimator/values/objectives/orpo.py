"""ORPO: pairs of answers without a reference model, and the whole logits in float32.

Source: trl 1.16, experimental/orpo/orpo_trainer.py, ``concatenated_forward`` and ``get_batch_loss_metrics``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.values.objective import Objective, TrlTrainer

if TYPE_CHECKING:
    from estimator.passes.step import Step


def orpo(step: Step) -> None:
    """One forward call on chosen and rejected rows, cross-entropy of the chosen, log-probabilities of all, backward."""
    step.on_pairs()


OBJECTIVE = Objective(
    "orpo",
    orpo,
    takes="pairs of answers",
    phrase="by ORPO",
    trl=TrlTrainer(
        "ORPO",
        rows='rows of "prompt", "chosen" and "rejected".',
        dataset="trl-lib/ultrafeedback_binarized",
        arguments="padding_value is_encoder_decoder max_completion_length",
        module="trl.experimental.orpo",
        has_script=False,
        loads_auto_dtype=True,
    ),
    beta=0.1,
    is_paired=True,
    is_preference=True,
    zeroes_dropout=True,
    prepares_base=True,
    logit_reads=lambda task: 1.5,  # those of the chosen half twice
)
