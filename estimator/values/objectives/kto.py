"""KTO: single answers that are good or bad; prompts with others' answers are asked too, to estimate a divergence.

Source: trl 1.16, trainer/kto_trainer.py, ``_compute_loss`` and ``_compute_kl_logps``; llamafactory 0.9.5,
train/kto/trainer.py, ``concatenated_forward``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.values.objective import Objective, TrlTrainer, asked_reference
from estimator.values.refusals import Line, Refusal, RefusedError
from estimator.values.specs import Phase

if TYPE_CHECKING:
    from estimator.passes.forward import Pass
    from estimator.passes.step import Step
    from estimator.tape.tape import Tensor
    from estimator.values.facets.objective import Task
    from estimator.values.setup import TrainingSetup

ONE_ROW_HAS_NO_KL = Refusal(
    "objective kto estimates a divergence from the other rows of a micro-batch and stops at one of 1 row; raise "
    "per_device_train_batch_size, or set loss_type apo_zero_unpaired.",
    Line("trl", "trainer/kto_trainer.py", 844, "args.per_device_train_batch_size <= 1"),
)


def kto(step: Step) -> None:
    """Policy on mismatched rows without gradients, policy, reference on both, backward."""
    task = step.setup.task
    reference = step.reference()
    ids, mask, completions = step.batch(3)
    others = step.batch(3 * asks_kl(task))
    mismatched = step.policy(grad=False, phase=Phase.REFERENCE, label="KL")
    loss, *held = _both(step, step.policy(), mismatched, ids)
    logits = held[1:]  # the labels stay
    del held[1]
    if not task.precompute_ref_log_probs:
        asked = step.of_reference(reference)
        of_reference = _both(step, asked, asked._replace(label="reference's KL"), ids)[2]
        if task.given_loss.keeps_logits:
            logits.append(of_reference)
        del of_reference
    step.measure(logits, splits=True)
    logits.clear()
    step.train(loss)
    del ids, mask, completions, others, held


def asks_kl(task: Task) -> bool:
    """Whether the loss estimates a divergence on mismatched prompts and answers (a yes or no).

    Source: trl 1.16, trainer/kto_trainer.py, ``calculate_KL``.
    """
    return task.loss_type != "apo_zero_unpaired"


def _both(
    step: Step, asked: Pass, mismatched: Pass, ids: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One model's loss on the rows, their labels, and logits that are held; it is asked of mismatched rows beside.

    Where the trainer computes whole logits the rows come first.
    """
    task, is_whole = step.setup.task, step.loss.takes_whole_logits
    if asks_kl(task) and not is_whole:
        step.ask(mismatched, ids, step.ids())
    labels = step.ids()
    loss, held = step.ask(asked, ids, labels)
    if asks_kl(task) and is_whole:
        step.ask(mismatched, ids, step.ids())
    if held is not None and is_whole:
        held = step.split(held)
    return loss, labels, held


def passes_without_grad(setup: TrainingSetup) -> int:
    """The reference's on the rows; that of the policy and of the reference on mismatched ones (a count)."""
    references = asked_reference(setup)
    return references + asks_kl(setup.task) * (1 + references)


def least_batch(setup: TrainingSetup) -> int:
    """Two rows, of which each is the other's mismatch (a count)."""
    return 2 if asks_kl(setup.task) else 1


def refuses(setup: TrainingSetup) -> RefusedError | None:
    """One row has no other.

    LLaMA-Factory's trainer, whose logits are whole, makes the other rows of the data set and calls no TRL's
    ``__init__``: llamafactory 0.9.5, train/kto/trainer.py:89; data/processor/feedback.py, ``preprocess_dataset``.
    """
    is_trls = not setup.task.given_loss.takes_whole_logits
    is_alone = is_trls and setup.batch.per_device_train_batch_size == 1
    return ONE_ROW_HAS_NO_KL() if is_alone and asks_kl(setup.task) else None


OBJECTIVE = Objective(
    "kto",
    kto,
    passes_without_grad=passes_without_grad,
    least_batch=least_batch,
    refuses=refuses,
    takes="answers that are good or bad",
    phrase="by KTO",
    trl=TrlTrainer(
        "KTO",
        rows='rows of "prompt", "completion" and "label".',
        dataset="trl-lib/kto-mix-14k",
        arguments="desirable_weight undesirable_weight",
    ),
    loss_types=("kto", "apo_zero_unpaired"),
    usual_loss_type="kto",
    beta=0.1,
    is_preference=True,
    has_reference=True,
    offloads_activations=True,
    zeroes_dropout=True,
)
