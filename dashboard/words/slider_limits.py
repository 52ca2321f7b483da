"""The sentences under the sliders: the effective batch, and evaluation where it sets a limit; names of changes."""

from __future__ import annotations

from collections.abc import Sequence

from estimator import TrainingSetup, smaller_evaluation


def effective_batch(setup: TrainingSetup) -> str:
    """The sentence under the accumulation slider.

    >>> effective_batch(TrainingSetup(per_device_train_batch_size=4, gradient_accumulation_steps=8))
    'Effective batch 32 = 4 × 8 on 1 GPU; 10,000 examples are 313 steps an epoch.'
    >>> effective_batch(TrainingSetup(num_gpus=8, strategy="fsdp", tp_size=2))
    'Effective batch 4 = 1 × 1 × 4 groups of 2 GPUs; 10,000 examples are 2,500 steps an epoch.'
    """
    size = setup.effective_batch_size
    steps = -(-setup.run.num_train_examples // size)
    return (
        f"Effective batch {size:,} = {setup.batch.per_device_train_batch_size:,} × "
        f"{setup.batch.gradient_accumulation_steps:,} {_on(setup.mesh.num_gpus, setup.mesh.replicas)}; "
        f"{setup.run.num_train_examples:,} example{_are(setup.run.num_train_examples)} "
        f"{steps:,} step{'s' * (steps != 1)} an epoch."
    )


def _on(gpus: int, replicas: int) -> str:
    """The last factor.

    >>> _on(1, 1), _on(8, 8), _on(8, 4), _on(8, 1)
    ('on 1 GPU', '× 8 GPUs', '× 4 groups of 2 GPUs', 'on 8 GPUs together')
    """
    if gpus == replicas > 1:
        return f"× {gpus:,} GPUs"
    if replicas > 1:
        return f"× {replicas:,} groups of {gpus // replicas:,} GPUs"
    return "on 1 GPU" if gpus == 1 else f"on {gpus:,} GPUs together"


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
