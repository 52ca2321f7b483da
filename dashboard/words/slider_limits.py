"""The sentences under the sliders: the effective batch, and how far a slider can go."""

from __future__ import annotations

from estimator import Model, TrainingSetup, smaller_evaluation


def effective_batch(setup: TrainingSetup) -> str:
    """The sentence under the accumulation slider.

    >>> effective_batch(TrainingSetup(per_device_train_batch_size=4, gradient_accumulation_steps=8))
    'Effective batch 32 = 4 × 8 on 1 GPU; 10,000 examples are 313 steps an epoch.'
    """
    size = setup.effective_batch_size
    steps = -(-setup.num_train_examples // size)
    gpus = "on 1 GPU" if setup.num_gpus == 1 else f"× {setup.num_gpus:,} GPUs"
    return (
        f"Effective batch {size:,} = {setup.per_device_train_batch_size:,} × "
        f"{setup.gradient_accumulation_steps:,} {gpus}; "
        f"{setup.num_train_examples:,} examples are {steps:,} step{'s' * (steps != 1)} an epoch."
    )


def batch_limit(limit: int, evaluating: bool, _model: Model, setup: TrainingSetup) -> str:
    """The largest micro-batch that fits at this length; ends in a space, since another sentence follows."""
    tokens = f"{setup.max_length:,} tokens"
    if limit == 0 and evaluating:
        return f"Training fits at {tokens}, evaluation does not: {smaller_evaluation(setup.run)}. "
    if limit == 0:
        return f"Not even 1 fits at {tokens}. "
    return f"Up to {limit:,} fit at {tokens}. "


def context_limit(limit: int, evaluating: bool, model: Model, setup: TrainingSetup) -> str:
    """The longest context that fits at this micro-batch, or the evaluation that limits it."""
    batch = f"micro-batch {setup.per_device_train_batch_size:,}"
    if limit == 0:
        why = f", because of evaluation: {smaller_evaluation(setup.run)}" if evaluating else ""
        return f"No length fits at {batch}{why}."
    ends = ""
    if evaluating:
        ends = f"; at longer contexts evaluation no longer fits: {smaller_evaluation(setup.run)}"
    if limit == model.position_limit:
        return f"Up to {limit:,} tokens: the model has no more learned positions."
    beyond = 0 < model.max_position_embeddings < limit
    made_for = f"; the model was made for {model.max_position_embeddings:,}" if beyond else ""
    return f"Up to {limit:,} tokens fit at {batch}{made_for}{ends}."
