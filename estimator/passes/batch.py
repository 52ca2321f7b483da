"""What an objective makes of a micro-batch: how many rows, and how many of their tokens are scored."""

from __future__ import annotations

from dataclasses import replace

from estimator.values.arithmetic import ceil_div
from estimator.values.facets.batch import Batch
from estimator.values.facets.objective import Task
from estimator.values.objectives.grpo import scores_policy
from estimator.values.setup import TrainingSetup


def rows_per_example(task: Task) -> int:
    """Rows of the trained model's forward call for one example (a count): two of a pair, else one.

    Source: trl 1.16, trainer/dpo_trainer.py, ``DataCollatorForPreference`` (chosen and rejected are concatenated);
    trainer/reward_trainer.py, likewise; sentence-transformers 6.2, sentence_transformer/losses/
    multiple_negatives_ranking.py (an anchor and its positive).

    >>> rows_per_example(Task()), rows_per_example(Task(objective="dpo"))
    (1, 2)
    """
    return 2 if task.objective.is_paired else 1


def passed_rows(setup: TrainingSetup) -> int:
    """Rows of the trained model's forward call (a count).

    >>> passed_rows(TrainingSetup(objective="dpo", per_device_train_batch_size=4))
    8
    """
    return rows_per_example(setup.task) * setup.batch.per_device_train_batch_size


def joined(batch: Batch, rows: int, length: int) -> Batch:
    """A micro-batch of so many rows as the model is called with it: one row where TRL joins them.

    One row that is not packed is one example, so that nothing needs to be kept apart.

    Source: trl 1.16, trainer/sft_trainer.py, ``DataCollatorForLanguageModeling.torch_call``; transformers 5.23,
    masking_utils.py, ``find_packed_sequence_indices``.

    >>> packed = joined(Batch(packing=True), 4, 1024)
    >>> packed.per_device_train_batch_size, packed.max_length, joined(Batch(padding_free=True), 1, 1024).is_joined
    (1, 4096, False)
    """
    if batch.packing or (batch.padding_free and rows > 1):
        return batch.as_rows(1, rows * length)
    apart = replace(batch, padding_free=False) if batch.padding_free else batch
    return apart.as_rows(rows, length)


def least_batch(setup: TrainingSetup) -> int:
    """The fewest rows of a micro-batch that the objective takes, of which others are multiples with grpo (a count).

    >>> [
    ...     least_batch(TrainingSetup(objective=objective, num_generations=8))
    ...     for objective in ("dpo", "kto", "grpo")
    ... ]
    [1, 2, 8]
    """
    return setup.task.objective.least_batch(setup)


def least_length(task: Task) -> int:
    """The shortest row that leaves the loss a token (a count).

    >>> least_length(Task(objective="dpo", max_prompt_length=512))
    513
    """
    if task.objective.generates:
        return (task.max_prompt_length or 1) + task.max_completion_length
    if task.objective.is_preference:
        return 1 + (task.max_prompt_length or 0)
    return 1


def alike(setup: TrainingSetup) -> Task:
    """The task of a setup, in which accumulation and generation say no more than whether ``scores_policy``.

    >>> aligned = TrainingSetup(objective="grpo", gradient_accumulation_steps=4, steps_per_generation=4)
    >>> alike(aligned) == alike(TrainingSetup(objective="grpo"))
    True
    """
    if not setup.task.objective.generates:
        return setup.task
    times = 1 + 2 * scores_policy(setup)
    return replace(setup.task, steps_per_generation=None, num_iterations=times, num_generations=8)


def accumulates(setup: TrainingSetup) -> bool:
    """Whether backward finds gradients of earlier rows (a yes or no): of micro-batches, or of GradCache's mini-batches.

    >>> accumulates(TrainingSetup()), accumulates(TrainingSetup(objective="embedding", mini_batch_size=8))
    (False, True)
    """
    is_cached = setup.task.objective.compares_rows and setup.task.mini_batch_size is not None
    return is_cached or setup.batch.gradient_accumulation_steps > 1


def scored_tokens(setup: TrainingSetup) -> int:
    """Tokens of a row that the loss counts (a count): the completion's, but never the first, which nothing predicts.

        min(completion, S - 1)      S: tokens of a row

    Source: trl 1.16, trainer/utils.py, ``add_fused_lm_head`` (``labels[:, 1:] != -100``).

    >>> [scored_tokens(TrainingSetup(max_length=1024, completion_fraction=share)) for share in (1.0, 0.25)]
    [1023, 256]
    >>> scored_tokens(TrainingSetup(objective="dpo", max_length=1024, max_prompt_length=256))
    768
    """
    length = setup.batch.max_length
    if setup.task.objective.generates:
        completion = setup.task.max_completion_length
    elif setup.task.objective.is_preference:
        completion = length - setup.prompt_tokens
    else:
        completion = ceil_div(round(setup.task.completion_fraction * length * 10**6), 10**6)
    return min(completion, length - 1)
