"""The sentences under the sliders: the effective batch, and evaluation where it sets a limit; names of changes."""

from __future__ import annotations

from collections.abc import Sequence

from estimator import TrainingSetup, smaller_evaluation


def effective_batch(setup: TrainingSetup) -> str:
    """The sentence under the accumulation slider.

    >>> effective_batch(TrainingSetup(per_device_train_batch_size=4, gradient_accumulation_steps=8))
    'Effective batch 32 = 4 × 8 on 1 GPU; 10,000 examples are 313 steps an epoch.'
    """
    size = setup.effective_batch_size
    steps = -(-setup.run.num_train_examples // size)
    gpus = "on 1 GPU" if setup.mesh.num_gpus == 1 else f"× {setup.mesh.num_gpus:,} GPUs"
    return (
        f"Effective batch {size:,} = {setup.batch.per_device_train_batch_size:,} × "
        f"{setup.batch.gradient_accumulation_steps:,} {gpus}; "
        f"{setup.run.num_train_examples:,} example{_are(setup.run.num_train_examples)} "
        f"{steps:,} step{'s' * (steps != 1)} an epoch."
    )


def _are(number: int) -> str:
    return "s are" if number != 1 else " is"


def evaluation_limit(key: str, limit: int, setup: TrainingSetup) -> str:
    """Where evaluation, not training, sets the limit of a slider: what to lower.

    >>> evaluation_limit("max_length", 4096, TrainingSetup())
    'Beyond 4,096 tokens training fits, evaluation does not: lower per_device_eval_batch_size, now 8.'
    """
    at = f"{limit:,} tokens" if key == "max_length" else f"micro-batch {limit:,}"
    where = f"Beyond {at} training" if limit else "Training"
    return f"{where} fits, evaluation does not: {smaller_evaluation(setup.run)}."


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
