"""GPU memory of an evaluation: Trainer's loop, a forward call without gradients at ``per_device_eval_batch_size``.

Source: transformers 5.23, trainer.py, ``evaluation_loop`` and ``prediction_step`` (``torch.no_grad``, ``model.eval``);
``_inner_training_loop`` evaluates after ``optimizer.step`` and ``zero_grad``, when states exist and gradients do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache

from estimator.passes.causal_lm import with_logits
from estimator.passes.dropout import without_dropout
from estimator.resident.model import Resident
from estimator.step.timeline import Plan, Schedule, Sizes, Steps, Walk
from estimator.tape.program import Sized
from estimator.values.arithmetic import allocated
from estimator.values.losses import Loss
from estimator.values.results import Moment
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, MixedPrecision, Model, Optimizer, Phase


def evaluation_walk(
    model: Model, setup: TrainingSetup, steps: Steps, resident: Resident, workspace: int
) -> Walk:
    """One evaluation batch after the first step: weights, adapters and states are resident, gradients are not.

    Dropout is the identity; nothing is checkpointed or saved. What remains is one layer's tensors at a time, autocast's
    copies of float32 weights (cached without gradients too), and the loss: T · V logits at 2 bytes, with 4 more as
    float32 and 4 for the log-softmax at once. ``prediction_step`` holds the outputs until it returns.

    Leaves out: the next batch's ids, which accelerate's loader prefetches to the GPU (24 bytes a token).
    Source: torch 2.13, aten/src/ATen/native/Dropout.cpp (``!train`` returns the input) and
    aten/src/ATen/autocast_mode.cpp, ``cached_cast``; transformers 5.23, trainer.py (``use_cache`` is set to false).
    """
    rests = resident.sizes(workspace)
    step = steps.step(Sizes.of(setup, setup.run.per_device_eval_batch_size))
    if not setup.run.compute_metrics:
        return Walk(step, rests, setup.mesh.shard_ranks)
    batches = setup.run.eval_accumulation_steps or 1  # where an evaluation runs, it is given
    every = kept_logits_bytes(model, setup, batches)
    before = kept_logits_bytes(model, setup, batches - 1)
    begins = {**rests, Component.LOGITS: before}
    joined = {**rests, Component.LOGITS: every + (every if batches > 1 else 0)}
    return MetricsWalk(step, begins, setup.mesh.shard_ranks, joined)


class MetricsWalk(Walk):
    """An evaluation batch after others whose logits are kept, and these joined to them: both are there at once."""

    def __init__(
        self,
        step: tuple[Sized, Schedule],
        begins: Mapping[Component, int],
        ranks: int,
        joined: Mapping[Component, int],
    ) -> None:
        super().__init__(step, begins, ranks)
        self._joined = Moment(
            Phase.EVALUATION,
            "logits of the evaluation's batches",
            {component: size for component, size in joined.items() if size},
        )

    @property
    def peak_bytes(self) -> int:
        """Bytes at the highest moment."""
        return max(super().peak_bytes, self._joined.bytes)

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """Those of the batch, and the logits joined."""
        return (*super().moments, self._joined)

    def heights(self) -> dict[Phase, Moment]:
        """The highest moment of each phase, and the logits joined."""
        return {**super().heights(), Phase.EVALUATION: self._joined}


def kept_logits_bytes(model: Model, setup: TrainingSetup, batches: int) -> int:
    """Bytes of the logits that Trainer keeps on one GPU after some evaluation batches with ``compute_metrics``.

        batches · G · b · s · V · p     p: 4 under autocast, whose outputs accelerate converts to float32, else the
                                        dtype's; G: GPUs, whose logits are all gathered on each; of a classifier
                                        the labels stand for s · V

    ``torch.cat`` joins every batch to the previous ones and briefly holds both: twice as much.
    ``eval_accumulation_steps`` moves the logits to the host after that many batches;
    ``preprocess_logits_for_metrics`` can shrink them. Without ``compute_metrics`` nothing is kept:
    ``prediction_loss_only`` is set.

    Source: transformers 5.23, trainer.py, ``evaluate`` and ``evaluation_loop``; trainer_pt_utils.py,
    ``EvalLoopContainer.add`` and ``nested_concat``; accelerate 1.15, ``convert_outputs_to_fp32``.
    """
    width = (
        4
        if setup.precision.mixed_precision is not MixedPrecision.NO
        else setup.precision.dtype.bytes
    )
    rows = setup.run.per_device_eval_batch_size * setup.mesh.replicas
    each = model.num_labels or setup.batch.max_length * model.vocab_size
    return allocated(batches * rows * each * width)


@lru_cache(maxsize=1024)
def evaluation_plan(model: Model, structure: TrainingSetup) -> Plan:
    """The plan of an evaluation batch of a structure.

    Source: derived, as ``evaluation_walk``.
    """
    return _shared_plan(without_dropout(model), evaluated(structure))


def evaluated(structure: TrainingSetup) -> TrainingSetup:
    """The forward call's structure without what ``model.eval`` disables; shared by all adapter ranks and optimizers.

    Liger's fused loss is left out where logits are asked for: liger-kernel 0.8.5, transformers/model/llama.py
    (``skip_logits``).
    """
    is_fused = structure.task.loss is None or structure.task.loss.fuses_gradient
    makes_logits = (
        structure.run.compute_metrics and is_fused and structure.task.objective.is_causal_lm
    )
    return structure.replace(
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        hold_outputs=False,
        lora_dropout=0.0,
        lora_r=1,
        optim=Optimizer.SGD,
        optim_state_dtype=None,
        loss=Loss.STANDARD if makes_logits else structure.task.loss,
    )


@lru_cache(maxsize=256)
def _shared_plan(model: Model, structure: TrainingSetup) -> Plan:
    asks = structure.run.compute_metrics and structure.task.objective.is_causal_lm
    return Plan(model, structure, training=False, objective=with_logits if asks else None)
