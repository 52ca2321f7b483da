"""What an estimate assumes of its objective, in sentences."""

from __future__ import annotations

from estimator.families.liger import loss_of
from estimator.passes.batch import scored_tokens
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model


def objective_sentences(model: Model, setup: TrainingSetup) -> list[str]:
    """The rows, the reference and the head of an objective."""
    objective = setup.task.objective
    sentences = []
    if setup.task.smooths_labels:
        sentences.append(
            "Label smoothing needs the whole logits"
            + (
                "; TRL asks the model once more without gradients, for its metrics."
                if setup.task.given_loss.tiles_logits
                else ", whatever the loss."
            )
        )
    if loss_of(model, setup).scores_completions and not objective.is_causal_lm:
        sentences.append(
            f"Of each row's {setup.batch.max_length:,} tokens {setup.prompt_tokens:,} are the prompt's: the head "
            f"computes {scored_tokens(setup):,} alone."
        )
    if setup.task.given_loss.takes_whole_logits and objective.has_reference:
        sentences.append(
            "The loss is LLaMA-Factory's, which takes the log-softmax of every row's logits in float32."
        )
    if objective.is_paired:
        sentences.append("An example is two rows, which go through the model together.")
        if objective.compares_rows:
            sentences[-1] = (
                "An example is two texts, an anchor and its positive; each has a call of its own."
            )
    if setup.keeps_reference:
        sentences.append(
            "The reference model is a second copy of the weights in "
            + (
                "the dtype of autocast"
                if setup.task.given_loss.takes_whole_logits
                else "the same dtype"
            )
            + ", which stays all through the run."
        )
    elif setup.task.asks_reference:
        sentences.append("The reference model is the base with its adapters switched off.")
    if objective.zeroes_dropout and setup.adapters.uses_adapters and setup.adapters.lora_dropout:
        sentences.append(
            f"The trainer of {objective} sets dropout to 0, lora_dropout {setup.adapters.lora_dropout:g} too."
        )
    return sentences
