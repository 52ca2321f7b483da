"""What an objective makes of a micro-batch: how many rows, and how many of their tokens are scored."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from estimator.values.arithmetic import ceil_div
from estimator.values.facets.batch import Batch
from estimator.values.facets.objective import Task
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


def asks_kl(task: Task) -> bool:
    """Whether the loss estimates a divergence on mismatched prompts and answers (a yes or no): KTO's own does.

    Source: trl 1.16, trainer/kto_trainer.py, ``calculate_KL``.

    >>> asks_kl(Task(objective="kto")), asks_kl(Task(objective="kto", loss_type="apo_zero_unpaired"))
    (True, False)
    """
    return task.objective.is_unpaired and task.loss_type != "apo_zero_unpaired"


def scores_policy(setup: TrainingSetup) -> bool:
    """Whether the policy is asked for the log-probabilities of its own completions before it is trained on them.

    RLOO and verl always; GRPO where steps are misaligned, completions are used again, or vLLM wrote them, whose own
    log-probabilities TRL corrects by importance sampling (on by default).

    Source: verl 0.9.1, trainer/ppo/ray_trainer.py:1585 (``bypass_mode`` is off); trl 1.16,
    trainer/grpo_trainer.py, ``_generate_and_score_completions`` (``generate_every``), and trainer/rloo_trainer.py.

    >>> scores_policy(TrainingSetup(objective="grpo")), scores_policy(TrainingSetup(objective="grpo", num_iterations=2))
    (False, True)
    """
    if setup.task.objective.scores_itself or not setup.task.objective.generates:
        return setup.task.objective.scores_itself
    if setup.generation.use_vllm or setup.task.given_loss.is_verls:
        return True
    accumulation = setup.batch.gradient_accumulation_steps
    every = (setup.task.steps_per_generation or accumulation) * setup.task.num_iterations
    return accumulation % every != 0


def least_batch(setup: TrainingSetup) -> int:
    """The fewest rows of a micro-batch that the objective takes, of which others are multiples with grpo (a count).

    >>> [least_batch(TrainingSetup(objective=it, num_generations=8)) for it in ("dpo", "kto", "grpo")]
    [1, 2, 8]
    """
    if setup.task.objective.generates:
        steps = setup.task.steps_per_generation or setup.batch.gradient_accumulation_steps
        return setup.task.num_generations // gcd(
            setup.task.num_generations, setup.mesh.replicas * steps
        )
    return 2 if asks_kl(setup.task) else 1


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
    times = 3 if scores_policy(setup) else 1
    return replace(setup.task, steps_per_generation=None, num_iterations=times, num_generations=8)


def passes_without_grad(setup: TrainingSetup) -> int:
    """Forward calls without gradients in one micro-step, each on as many rows as the trained one (a count).

        dpo   1, the reference's      kto   3: KL of the policy, the reference's two; 1 without KL
        grpo, rloo   1 of the policy where ``scores_policy``, 1 of the reference where beta is not 0
        embedding with GradCache   1, before the one with gradients

    Precomputed, none is the reference's.

    Source: trl 1.16, trainer/dpo_trainer.py and kto_trainer.py, ``_compute_loss``; sentence-transformers 6.2,
    base/losses/gradcache.py, ``forward_cached``.

    >>> passes_without_grad(TrainingSetup(objective="dpo")), passes_without_grad(TrainingSetup(objective="kto"))
    (1, 3)
    """
    if setup.task.objective.compares_rows:
        return int(setup.task.mini_batch_size is not None)
    if setup.task.smooths_labels:
        return int(setup.task.given_loss.tiles_logits)
    references = int(setup.task.asks_reference)
    return references + scores_policy(setup) + asks_kl(setup.task) * (1 + references)


def accumulates(setup: TrainingSetup) -> bool:
    """Whether backward finds gradients of earlier rows (a yes or no): of micro-batches, or of GradCache's mini-batches.

    >>> accumulates(TrainingSetup()), accumulates(TrainingSetup(objective="embedding", mini_batch_size=8))
    (False, True)
    """
    is_cached = setup.task.objective.compares_rows and setup.task.mini_batch_size is not None
    return is_cached or setup.batch.gradient_accumulation_steps > 1


def prompt_tokens(setup: TrainingSetup) -> int:
    """Tokens of a row that belong to its prompt, where an objective has prompts (a count).

    >>> prompt_tokens(TrainingSetup(objective="dpo", max_length=1024))
    512
    """
    if setup.task.max_prompt_length is not None:
        return setup.task.max_prompt_length
    if setup.task.objective.generates:
        return setup.batch.max_length - setup.task.max_completion_length
    return setup.batch.max_length // 2


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
        completion = length - prompt_tokens(setup)
    else:
        completion = ceil_div(round(setup.task.completion_fraction * length * 10**6), 10**6)
    return min(completion, length - 1)
