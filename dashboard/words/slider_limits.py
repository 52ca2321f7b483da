"""The sentences under the sliders: the effective batch, and each slider's limit."""

from __future__ import annotations

from collections.abc import Sequence

from estimator import Model, Reach, TrainingSetup, smaller_evaluation


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
        f"{setup.num_train_examples:,} example{_are(setup.num_train_examples)} "
        f"{steps:,} step{'s' * (steps != 1)} an epoch."
    )


def _are(number: int) -> str:
    return "s are" if number != 1 else " is"


def batch_limit(limit: int, evaluating: bool, _model: Model, setup: TrainingSetup) -> str:
    """The largest micro-batch that fits at this length. Ends in a space because another sentence follows."""
    tokens = f"{setup.max_length:,} tokens"
    if limit == 0 and evaluating:
        return f"Training fits at {tokens}, evaluation does not: {smaller_evaluation(setup.run)}. "
    if limit == 0:
        return f"Not even micro-batch 1 fits at {tokens}. "
    return f"Micro-batches up to {limit:,} fit at {tokens}. "


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


def further(limit: int, reach: Reach) -> str:
    """The longer context that lossless changes allow; empty if they gain little.

    >>> further(686, Reach({}, ("Gradient checkpointing",), 17658, 9))
    ' Up to 17,658 with checkpointing: see “Best way”.'
    """
    if not reach.titles or reach.longest_context <= limit * MUCH:
        return ""
    return f" Up to {reach.longest_context:,} with {changes(reach.titles)}: see “Best way”."


def changes(titles: Sequence[str]) -> str:
    """Short titles of changes, for use within a sentence.

    >>> changes(["FSDP", "Liger's fused kernels and loss", "Gradient checkpointing"])
    'FSDP, Liger and checkpointing'
    """
    *first, last = [SHORT.get(title, title) for title in titles]
    return f"{', '.join(first)} and {last}" if first else last


SHORT = {
    "Liger's fused kernels and loss": "Liger",
    "TRL's loss in tiles": "TRL's loss in tiles",
    "Gradient checkpointing": "checkpointing",
    "Attention by FlashAttention 2": "FlashAttention 2",
    "Attention by SDPA": "SDPA",
}
MUCH = 1.1
"""Minimum gain in context that gets a sentence. Our choice."""
