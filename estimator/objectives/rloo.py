"""RLOO's training step: as GRPO's, but old log-probabilities are always asked for, and by default a reference.

Source: trl 1.16, trainer/rloo_trainer.py, ``_generate_and_score_completions`` and ``_compute_loss``;
trainer/rloo_config.py (``beta`` 0.05).
"""

from __future__ import annotations

from estimator.objectives.grpo import grpo
from estimator.objectives.step import Step


def rloo(step: Step) -> None:
    """Every pass of GRPO; ``scores_policy`` and ``asks_reference`` say which there are."""
    grpo(step)
