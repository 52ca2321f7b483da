"""DDP: every GPU holds the whole model, and gradients are averaged through buckets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from estimator.families.block import Block
from estimator.families.weights import elements
from estimator.parallel.hooks import Hooks
from estimator.resident.model import Resident, idle_tensors, trainable_tensors, unsharded
from estimator.resident.optimizer import Trainable
from estimator.tape.tape import LOGITS, Tape, Tensor
from estimator.values.arithmetic import allocated
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model


def finds_unused(setup: TrainingSetup) -> bool:
    """Whether DDP looks for unused parameters, in which case it copies the model's outputs.

    Trainer sets this unless a model of transformers is checkpointed; a PEFT model does not count as one.

    Source: transformers 5.23, trainer.py, ``create_accelerator_and_postprocess``; torch 2.13,
    nn/parallel/distributed.py, ``_DDPSink``.
    """
    checkpointed = setup.gradient_checkpointing and not setup.uses_adapters
    return not checkpointed


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
    tensors = (*trainable_tensors(model, structure), *idle_tensors(model, structure))
    bucket = bucket_bytes(tensors)
    return replace(unsharded(model, structure), communication=bucket)


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
