"""DDP: every GPU holds the whole model, and gradients are averaged through buckets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from estimator.families.block import Block
from estimator.families.liger import loss_of
from estimator.parallel.hooks import Hooks
from estimator.parallel.placements import trained, unsharded
from estimator.parallel.tensors import model_tensors
from estimator.resident.model import Resident
from estimator.resident.optimizer import Trainable
from estimator.tape.tape import LOGITS, Tape, Tensor
from estimator.values.arithmetic import allocated, elements
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model


def finds_unused(setup: TrainingSetup) -> bool:
    """Whether DDP looks for unused parameters, in which case it copies the model's outputs.

    Trainer sets this unless a model of transformers is checkpointed; a PEFT model does not count as one.

    Source: transformers 5.23, trainer.py, ``create_accelerator_and_postprocess``; torch 2.13,
    nn/parallel/distributed.py, ``_DDPSink``.
    """
    checkpointed = setup.computation.gradient_checkpointing and not setup.adapters.uses_adapters
    return not checkpointed


def plays_as_alone(model: Model, setup: TrainingSetup) -> bool:
    """Whether a step under DDP allocates on the tape what a GPU alone does: no outputs pass through its sink.

    Source: derived, from ``DdpHooks``: a trainer of plain text whose head and loss are fused returns a loss alone.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> setup = TrainingSetup(strategy="ddp", num_gpus=2, loss="standard")
    >>> plays_as_alone(TINY_LLAMA, setup), plays_as_alone(TINY_LLAMA, replace(setup, loss="chunked_trl"))
    (False, True)
    """
    if not setup.mesh.strategy.averages_in_buckets:
        return False
    returns_loss = setup.task.objective.is_causal_lm and not setup.task.smooths_labels
    is_fused = returns_loss and not loss_of(model, setup).takes_whole_logits
    return is_fused or not finds_unused(setup)


def bucket_bytes(tensors: Iterable[Trainable]) -> int:
    """Bytes of DDP's buckets: a second copy of every gradient, as accelerate leaves ``gradient_as_bucket_view`` off.

    Leaves out: rounding each bucket of 25 MiB up to a multiple of 512 bytes.
    Source: torch 2.13, torch/csrc/distributed/c10d/reducer.cpp, ``initialize_buckets``; accelerate 1.15,
    utils/dataclasses.py, ``DistributedDataParallelKwargs``.

    >>> bucket_bytes([Trainable((1024, 1024), 2, 3)]) == 3 * 2 * 1024**2
    True
    """
    return allocated(sum(t.alike * elements(t.shape) * t.width for t in tensors))


def replica(model: Model, structure: TrainingSetup) -> Resident:
    """What a GPU keeps under DDP: the whole model, and the buckets, which include parameters without a gradient."""
    tensors = trained(model_tensors(model, structure.adapters), structure)
    return replace(unsharded(model, structure), communication=bucket_bytes(tensors))


class DdpHooks(Hooks):
    """When DDP looks for unused parameters, the outputs pass through its sink."""

    def __init__(
        self, tape: Tape, model: Model, setup: TrainingSetup, outer: Block, ranks: int
    ) -> None:
        super().__init__(tape, model, setup, outer, ranks)
        self._has_sink = finds_unused(setup)

    def leave_model(self, loss: Tensor, outputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The sink copies the outputs."""
        if outputs is None or not self._has_sink:
            return loss, outputs
        self.tape.operation = "outputs through DDP's sink"
        return loss, self.tape.new(outputs.elements, outputs.width, LOGITS)
