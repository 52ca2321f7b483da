"""How many rows a generation has on one GPU, and how long they are."""

from __future__ import annotations

from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model


def rows_at_once(setup: TrainingSetup) -> int:
    """Rows of one generation on one GPU (a count): all micro-batches until the next one.

    Source: trl 1.16, trainer/grpo_config.py:1095 (``generation_batch_size``).

    >>> rows_at_once(TrainingSetup(objective="grpo", per_device_train_batch_size=4, gradient_accumulation_steps=2))
    8
    """
    steps = setup.task.steps_per_generation or setup.batch.gradient_accumulation_steps
    return setup.batch.per_device_train_batch_size * steps


def engine_rows(setup: TrainingSetup) -> int:
    """Rows of a generation that one engine beside the trainer is given (a count): those that its GPUs train on.

    >>> engine_rows(TrainingSetup(objective="grpo", per_device_train_batch_size=8, vllm_tensor_parallel_size=2))
    16
    """
    return rows_at_once(setup) * setup.generation.vllm_tensor_parallel_size


def row_tokens(setup: TrainingSetup) -> int:
    """Tokens of a whole row (a count): prompt and completion.

    >>> row_tokens(TrainingSetup(objective="grpo", max_length=1024))
    1024
    """
    return setup.prompt_tokens + setup.task.max_completion_length


def longest_row(model: Model, setup: TrainingSetup) -> int:
    """Tokens of the longest row that vLLM must hold (a count): by default every position of the model.

    Source: trl 1.16, generation/vllm_generation.py:362 (``max_model_len=None``); vllm 0.33, config/model.py,
    ``_get_and_verify_max_len``.
    """
    return (
        setup.generation.vllm_max_model_length or model.max_position_embeddings or row_tokens(setup)
    )


def mean_row(setup: TrainingSetup) -> int:
    """Tokens of a row on average (a count): as said, but more than the prompt and no more than a whole row."""
    given = setup.run.mean_tokens_per_example or row_tokens(setup)
    return max(setup.prompt_tokens + 1, min(given, row_tokens(setup)))


def mean_completion(setup: TrainingSetup) -> int:
    """Tokens of a completion on average (a count): of ``mean_tokens_per_example`` what the prompt leaves.

    >>> given = TrainingSetup(objective="grpo", max_length=1024, max_completion_length=512, mean_tokens_per_example=640)
    >>> mean_completion(given)
    128
    """
    return mean_row(setup) - setup.prompt_tokens
