"""The script of each objective, and what its trainer does to the model before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from estimator.families.liger import loss_of
from estimator.families.registry import balances_experts
from estimator.parallel.tensor_parallel import part_of
from estimator.passes.batch import accumulates
from estimator.passes.causal_lm import causal_lm
from estimator.passes.dpo import dpo
from estimator.passes.dropout import without_dropout_modules
from estimator.passes.embedding import embedding
from estimator.passes.grpo import grpo
from estimator.passes.kto import kto
from estimator.passes.label_smoothing import smoothed
from estimator.passes.orpo import orpo
from estimator.passes.reward import reward
from estimator.passes.sequence_classification import sequence_classification
from estimator.passes.step import MicroStep
from estimator.values.facets.objective import Task
from estimator.values.objectives import Objective
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model


class ObjectiveRule(NamedTuple):
    """How one objective is trained."""

    step: MicroStep
    """Plays a micro-step."""
    zeroes_dropout: bool = False
    """Its trainer sets every ``nn.Dropout`` to 0, LoRA's too."""


RULES: Mapping[Objective, ObjectiveRule] = MappingProxyType(
    {
        Objective.SFT: ObjectiveRule(causal_lm),
        Objective.DPO: ObjectiveRule(dpo, zeroes_dropout=True),
        Objective.KTO: ObjectiveRule(kto, zeroes_dropout=True),
        Objective.ORPO: ObjectiveRule(orpo, zeroes_dropout=True),
        Objective.REWARD: ObjectiveRule(reward, zeroes_dropout=True),
        Objective.GRPO: ObjectiveRule(grpo),
        Objective.RLOO: ObjectiveRule(grpo),
        Objective.EMBEDDING: ObjectiveRule(embedding),
        Objective.SEQUENCE_CLASSIFICATION: ObjectiveRule(sequence_classification),
    }
)
"""One row per objective. Source of the dropout: trl 1.16, trainer/dpo_config.py, ``disable_dropout`` (on), and
trainer/utils.py, ``disable_dropout_in_model``, which is called after the adapters were added."""


def as_trained(model: Model, setup: TrainingSetup) -> tuple[Model, TrainingSetup]:
    """Model and setup with the head that the objective trains.

    A classification head is new, so it is trained whole beside adapters too: PEFT's ``modules_to_save`` gets it where
    the task is sequence classification.

    Source: transformers 5.23, modeling_layers.py, ``GenericForSequenceClassification``; trl 1.16,
    trainer/reward_trainer.py (``num_labels = 1``); peft 0.21, peft_model.py, ``PeftModelForSequenceClassification``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> as_trained(TINY_LLAMA, TrainingSetup(objective=Objective.REWARD))[0].num_labels
    1
    """
    labels = (
        setup.task.num_labels if setup.task.objective.asks_labels else setup.task.objective.labels
    )
    if labels != model.num_labels:
        model = replace(model, num_labels=labels)
    saved = setup.adapters.modules_to_save or ()
    if setup.task.objective.has_score and setup.adapters.uses_adapters and SCORE not in saved:
        setup = setup.replace(modules_to_save=(*saved, SCORE))
    return model, setup


SCORE = "score"
"""The name of a classification head."""


def step_of(task: Task) -> MicroStep:
    """The micro-step of a setup's objective."""
    return smoothed if task.smooths_labels else RULES[task.objective].step


def as_played(model: Model, setup: TrainingSetup) -> tuple[Model, TrainingSetup]:
    """Model and setup as the trainer leaves them before the first step.

    TRL's trainers with the fused head ask a mixture for its router's logits, whatever its config says, where the config
    class has a coefficient for the loss that spreads tokens evenly: trl 1.16, trainer/sft_trainer.py,
    ``aux_loss_enabled``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> as_played(TINY_LLAMA, TrainingSetup(objective=Objective.DPO))[1].adapters.lora_dropout
    0.0
    """
    if loss_of(model, setup).tiles_logits and balances_experts(model.model_type):
        model = replace(model, output_router_logits=True)
    if accumulates(setup):
        setup = setup.replace(gradient_accumulation_steps=2)
    model = part_of(model, setup.mesh.tp_size)
    if not RULES[setup.task.objective].zeroes_dropout:
        return model, setup
    return without_dropout_modules(model), setup.replace(lora_dropout=0.0)
