"""Reward modelling: pairs of answers, each scored by one number.

Source: trl 1.16, trainer/reward_trainer.py, ``compute_loss``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.values.objective import Objective, TrlTrainer

if TYPE_CHECKING:
    from estimator.passes.step import Step


def reward(step: Step) -> None:
    """One forward call on chosen and rejected rows together, a loss of two numbers a pair, and backward."""
    ids, mask = step.batch(2)
    forward = step.call(step.policy())
    pooled = step.scores(forward, ids)
    step.train(step.log_sigmoid(pooled))
    del ids, mask, forward, pooled


OBJECTIVE = Objective(
    "reward",
    reward,
    takes="pairs of answers",
    phrase="as a reward model",
    trl=TrlTrainer(
        "Reward",
        rows='rows of "chosen" and "rejected".',
        dataset="trl-lib/ultrafeedback_binarized",
        arguments="center_rewards_coefficient",
    ),
    is_paired=True,
    has_score=True,
    labels=1,
    offloads_activations=True,
    zeroes_dropout=True,
)
