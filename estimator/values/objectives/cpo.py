"""CPO, with SimPO and AlphaPO: pairs of answers without a reference model, and the whole logits in float32.

Source: trl 1.16, experimental/cpo/cpo_trainer.py, ``concatenated_forward`` and ``get_batch_loss_metrics``. Every loss
type is arithmetic on two numbers a pair; ``alphapo`` has no cross-entropy of the chosen rows beside them
(experimental/cpo/cpo_config.py, ``cpo_alpha`` 0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.values.objective import Objective, TrlTrainer

if TYPE_CHECKING:
    from estimator.passes.step import Step
    from estimator.values.facets.objective import Task


def cpo(step: Step) -> None:
    """One forward call on chosen and rejected rows, the chosen's cross-entropy, log-probabilities of all, backward."""
    step.on_pairs(learns_chosen=learns_chosen(step.setup.task))


def learns_chosen(task: Task) -> bool:
    """Whether the chosen rows have a cross-entropy of their own in the loss (a yes or no)."""
    return task.loss_type != "alphapo"


def logit_reads(task: Task) -> float:
    """Twice those of the chosen half, where it has a cross-entropy of its own."""
    return 1.5 if learns_chosen(task) else 1.0


OBJECTIVE = Objective(
    "cpo",
    cpo,
    logit_reads=logit_reads,
    takes="pairs of answers",
    phrase="by CPO",
    trl=TrlTrainer(
        "CPO",
        rows='rows of "prompt", "chosen" and "rejected".',
        dataset="trl-lib/ultrafeedback_binarized",
        arguments="cpo_alpha simpo_gamma label_smoothing is_encoder_decoder max_completion_length",
        module="trl.experimental.cpo",
        has_script=False,
        loads_auto_dtype=True,
    ),
    loss_types=("sigmoid", "hinge", "ipo", "simpo", "alphapo"),
    usual_loss_type="sigmoid",
    beta=0.1,
    is_paired=True,
    is_preference=True,
    zeroes_dropout=True,
    prepares_base=True,
)
