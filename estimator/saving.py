"""What saving a checkpoint holds on the GPU, and what the checkpoint weighs on disk."""

from __future__ import annotations

from estimator.moments import Resident
from estimator.results import Moment
from estimator.specs import Phase, TrainingSetup


def save_moment(resident: Resident, workspace: int) -> Moment:
    """Bytes alive on one GPU while Trainer saves: weights, states and the workspace, nothing more.

    Gradients are gone by then (``zero_grad`` sets them to None), and safetensors copies tensors to the host to write.

    Source: transformers 5.23, trainer.py, ``_maybe_log_save_evaluate`` after ``optimizer.step`` and ``zero_grad``;
    safetensors, torch.py, ``_flatten_as_ptr``.
    """
    sizes = resident.sizes(workspace)
    return Moment(Phase.SAVE, "saving a checkpoint", {c: n for c, n in sizes.items() if n})


def checkpoint_bytes(resident: Resident, setup: TrainingSetup) -> int:
    """Bytes of one checkpoint on disk: what is trained, and its optimizer states.

    Source: transformers 5.23, trainer.py, ``_save_checkpoint``; peft 0.21, ``save_pretrained`` (adapters alone).
    """
    trained = resident.adapters if setup.uses_adapters else resident.weights
    return trained + resident.states.resident_bytes + resident.states.paged_bytes
