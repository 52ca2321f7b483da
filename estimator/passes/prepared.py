"""What a trainer does to model and setup before the first step."""

from __future__ import annotations

from dataclasses import replace

from estimator.families.liger import loss_of
from estimator.families.registry import balances_experts
from estimator.parallel.tensor_parallel import part_of
from estimator.passes.batch import accumulates
from estimator.passes.dropout import without_dropout_modules
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model


def as_trained(model: Model, setup: TrainingSetup) -> tuple[Model, TrainingSetup]:
    """Model and setup with the head that the objective trains.

    A classification head is new, so it is trained whole beside adapters too: PEFT's ``modules_to_save`` gets it where
    the task is sequence classification.

    Source: transformers 5.23, modeling_layers.py, ``GenericForSequenceClassification``; trl 1.16,
    trainer/reward_trainer.py (``num_labels = 1``); peft 0.21, peft_model.py, ``PeftModelForSequenceClassification``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> as_trained(TINY_LLAMA, TrainingSetup(objective="reward"))[0].num_labels
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


def as_played(model: Model, setup: TrainingSetup) -> tuple[Model, TrainingSetup]:
    """Model and setup as the trainer leaves them before the first step.

    TRL's trainers with the fused head ask a mixture for its router's logits, whatever its config says, where the config
    class has a coefficient for the loss that spreads tokens evenly: trl 1.16, trainer/sft_trainer.py,
    ``aux_loss_enabled``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> as_played(TINY_LLAMA, TrainingSetup(objective="dpo"))[1].adapters.lora_dropout
    0.0
    """
    if loss_of(model, setup).tiles_logits and balances_experts(model.model_type):
        model = replace(model, output_router_logits=True)
    if accumulates(setup):
        setup = setup.replace(gradient_accumulation_steps=2)
    model = part_of(model, setup.mesh.tp_size)
    if not setup.task.objective.zeroes_dropout:
        return model, setup
    return without_dropout_modules(model), setup.replace(lora_dropout=0.0)
