"""Supervised fine-tuning: the next token.

Source: transformers 5.23, trainer.py, ``compute_loss``; trl 1.16, trainer/sft_trainer.py, ``compute_loss`` (smoothed
labels: a second forward call without gradients, with the fused head, for metrics).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.values.objective import Objective, TrlTrainer

if TYPE_CHECKING:
    from estimator.passes.step import Step
    from estimator.values.setup import TrainingSetup


def sft(step: Step) -> None:
    """One call of the model with its labels, and backward; smoothed labels need the whole logits."""
    if step.setup.task.smooths_labels:
        step.smoothed()
    else:
        step.causal_lm()


def asked_for_metrics(setup: TrainingSetup) -> int:
    """TRL's call for metrics, beside smoothed labels with its fused head (a count)."""
    return int(setup.task.smooths_labels and setup.task.given_loss.tiles_logits)


OBJECTIVE = Objective(
    "sft",
    sft,
    passes_without_grad=asked_for_metrics,
    takes="the next token",
    trl=TrlTrainer(
        "SFT",
        rows='rows of "text", of "messages", or of "prompt" and "completion".',
        dataset="trl-lib/Capybara",
        arguments="""dataset_text_field packing packing_strategy eval_packing completion_only_loss
        assistant_only_loss max_seq_length padding_free truncation_mode""",
    ),
    loss_types=("nll", "dft"),
    usual_loss_type="nll",
    is_causal_lm=True,
    brings_mask=False,
    has_metrics=True,
    offloads_activations=True,
)
