"""RLOO: answers that the model gives itself, each against the others of its prompt.

Source: trl 1.16, trainer/rloo_trainer.py, ``_generate_and_score_completions`` (old log-probabilities are always asked
for); trainer/rloo_config.py (``beta`` 0.05).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.values.objective import Objective, TrlTrainer, asked_reference
from estimator.values.objectives import grpo

if TYPE_CHECKING:
    from estimator.passes.step import Step
    from estimator.values.setup import TrainingSetup


def rloo(step: Step) -> None:
    """GRPO's step, with old log-probabilities."""
    grpo.scored_and_trained(step, scores_policy=True)


def passes_without_grad(setup: TrainingSetup) -> int:
    """The policy's on what it wrote, and the reference's (a count)."""
    return 1 + asked_reference(setup)


OBJECTIVE = Objective(
    "rloo",
    rloo,
    passes_without_grad=passes_without_grad,
    least_batch=grpo.least_batch,
    refuses=grpo.refuses,
    takes="what the model writes",
    phrase="by RLOO",
    trl=TrlTrainer(
        "RLOO",
        rows=grpo.ROWS,
        dataset=grpo.DATASET,
        arguments="normalize_advantages reward_clip_range rloo_k",
    ),
    beta=0.05,
    has_reference=True,
    generates=True,
)
