"""GRPO: answers that the model gives itself, by their rewards against those of their group.

Completions that were generated are scored without gradients where needed, then trained on. Generation is no part of the
step: what it needs is not counted.

Source: trl 1.16, trainer/grpo_trainer.py, ``_generate_and_score_completions``, ``_get_per_token_logps_and_entropies``
and ``_compute_loss``. Every loss type is arithmetic on a few numbers a token of the completion. verl's step has the
same passes: verl 0.9.1, workers/engine_workers.py, ``compute_log_prob``, ``compute_ref_log_prob``, ``update_actor``.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from estimator.values.objective import Objective, TrlTrainer, asked_reference
from estimator.values.refusals import CONTRADICTION, Line, Refusal, RefusedError
from estimator.values.specs import Phase

if TYPE_CHECKING:
    from estimator.passes.forward import Pass
    from estimator.passes.step import Step
    from estimator.tape.tape import Tensor
    from estimator.values.setup import TrainingSetup

COMPLETION_FILLS_ROW = Refusal(
    "max_completion_length {completion} and a prompt of {prompt} tokens do not fit into max_length {length}; raise it "
    "to their sum, or lower one of them.",
    CONTRADICTION,
)
PARTS_OF_A_GROUP = Refusal(
    "A generation is {rows} rows over all GPUs, which TRL refuses as no multiple of num_generations {generations}; "
    "change per_device_train_batch_size, gradient_accumulation_steps or num_generations.",
    Line(
        "trl", "trainer/grpo_config.py", 1131, "self.generation_batch_size % self.num_generations"
    ),
)


def grpo(step: Step) -> None:
    """Old log-probabilities and the reference's, without gradients before the graph; the policy's; backward."""
    scored_and_trained(step, scores_policy=scores_policy(step.setup))


def scored_and_trained(step: Step, *, scores_policy: bool) -> None:
    """The step, with or without old log-probabilities of the policy."""
    reference = step.reference()
    batch = step.batch(2)  # prompts and completions, ids and masks
    scored: list[Tensor] = []
    if scores_policy:
        asked = step.policy(grad=False, phase=Phase.SCORING, label="old")
        scored.append(_score(step, asked))
    if step.setup.task.asks_reference:
        scored.append(_score(step, step.of_reference(reference)._replace(phase=Phase.SCORING)))
    ids, mask, labels = step.batch(3)
    loss, outputs = step.ask(step.policy(), ids, labels)
    del outputs
    step.train(loss)
    del batch, scored, ids, mask, labels


def _score(step: Step, of: Pass) -> Tensor:
    """One slice of the batch, of the size of a micro-batch; its log-probabilities stay until the step ends."""
    ids, mask, labels = step.batch(3)
    step.ask(of, ids, labels)
    del ids, mask, labels
    return step.held(of.rows * step.scored, 4)


def scores_policy(setup: TrainingSetup) -> bool:
    """Whether the policy is asked for the log-probabilities of its own completions before it is trained on them.

    verl's always; TRL's where steps are misaligned, completions are used again, or vLLM wrote them, whose own
    log-probabilities TRL corrects by importance sampling (on by default).

    Source: verl 0.9.1, trainer/ppo/ray_trainer.py:1585 (``bypass_mode`` is off); trl 1.16,
    trainer/grpo_trainer.py, ``_generate_and_score_completions`` (``generate_every``).
    """
    if setup.generation.use_vllm or setup.task.given_loss.is_verls:
        return True
    accumulation = setup.batch.gradient_accumulation_steps
    every = (setup.task.steps_per_generation or accumulation) * setup.task.num_iterations
    return accumulation % every != 0


def passes_without_grad(setup: TrainingSetup) -> int:
    """The policy's on what it wrote, where it is asked for, and the reference's (a count)."""
    return scores_policy(setup) + asked_reference(setup)


def least_batch(setup: TrainingSetup) -> int:
    """The part of a group that each micro-batch of a generation has (a count)."""
    generations = setup.task.num_generations
    steps = setup.task.steps_per_generation or setup.batch.gradient_accumulation_steps
    return generations // gcd(generations, setup.mesh.replicas * steps)


def refuses(setup: TrainingSetup) -> RefusedError | None:
    """A row without a prompt, and a generation of broken groups."""
    task, length, prompt = setup.task, setup.batch.max_length, setup.prompt_tokens
    if prompt < 1 or prompt + task.max_completion_length > length:
        return COMPLETION_FILLS_ROW(
            completion=task.max_completion_length, prompt=max(1, prompt), length=length
        )
    steps = task.steps_per_generation or setup.batch.gradient_accumulation_steps
    rows = setup.batch.per_device_train_batch_size * setup.mesh.replicas * steps
    if rows % task.num_generations:
        return PARTS_OF_A_GROUP(rows=rows, generations=task.num_generations)
    return None


ROWS = 'rows of "prompt" and what the reward asks for. None is cut.'
DATASET = "trl-lib/DeepMath-103K"

OBJECTIVE = Objective(
    "grpo",
    grpo,
    passes_without_grad=passes_without_grad,
    least_batch=least_batch,
    refuses=refuses,
    takes="what the model writes",
    phrase="by GRPO",
    trl=TrlTrainer(
        "GRPO",
        rows=ROWS,
        dataset=DATASET,
        arguments="""importance_sampling_level multi_objective_aggregation scale_rewards top_entropy_quantile
        max_tool_calling_iterations sapo_temperature_neg sapo_temperature_pos entropy_coef
        vllm_importance_sampling_correction vllm_importance_sampling_mode""",
    ),
    loss_types=("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    usual_loss_type="dapo",
    beta=0.0,
    has_reference=True,
    generates=True,
)
