"""What saving a checkpoint holds on the GPU, and what the checkpoint weighs on disk."""

from __future__ import annotations

from estimator.memory.optimizer import States
from estimator.memory.overhead import workspace_bytes
from estimator.moments import adapter_bytes, weight_bytes
from estimator.results import Moment
from estimator.specs import Component, Gpu, Model, Phase, TrainingSetup


def save_moment(model: Model, setup: TrainingSetup, gpu: Gpu | None, states_bytes: int) -> Moment:
    """Bytes alive on one GPU while Trainer saves: weights and states, nothing more.

    Gradients are gone by then (``zero_grad`` sets them to None), and safetensors copies tensors to the host to write.

    Source: transformers 5.23, trainer.py, ``_maybe_log_save_evaluate`` after ``optimizer.step`` and ``zero_grad``;
    safetensors, torch.py, ``_flatten_as_ptr``.
    """
    resident = {
        Component.WEIGHTS: weight_bytes(model, setup),
        Component.ADAPTERS: adapter_bytes(model, setup),
        Component.OPTIMIZER_STATES: states_bytes,
        Component.WORKSPACE: workspace_bytes(gpu),
    }
    return Moment(Phase.SAVE, "saving a checkpoint", {c: n for c, n in resident.items() if n})


def checkpoint_bytes(model: Model, setup: TrainingSetup, states: States) -> int:
    """Bytes of one checkpoint on disk: what is trained, and its optimizer states.

    Source: transformers 5.23, trainer.py, ``_save_checkpoint``; peft 0.21, ``save_pretrained`` (adapters alone).
    """
    trained = adapter_bytes(model, setup) if setup.uses_adapters else weight_bytes(model, setup)
    return trained + states.resident_bytes + states.paged_bytes
