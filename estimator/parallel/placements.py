"""What a rank has of a tensor: the placements of torch's DTensor, and slices of flat buffers.

A GPU alone, each one under DDP, and one of a device map have whole tensors (derived).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from estimator.families.loaded import idle_modules
from estimator.families.modules import Embedding, Linear, Module
from estimator.families.weights import (
    adapter_tensor_width,
    buffer_bytes,
    tower_buffers,
    weight_width,
)
from estimator.parallel.tensors import ModelTensor, Shape, model_tensors, module_tensors
from estimator.resident.model import Resident, counts, stepped
from estimator.resident.optimizer import Trainable
from estimator.values.arithmetic import ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

MATRIX = 2
"""Axes of a matrix."""


class Replicate(NamedTuple):
    """Whole, on every rank."""

    def of(self, shape: Shape) -> Shape:
        """Elements per axis on one rank."""
        return shape


class Shard(NamedTuple):
    """The first axis in equal parts. The last ranks may have fewer rows, or none.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``_init_sharded_param`` (``_chunk_with_empty``).

    >>> Shard(4).of((10, 4)), [Shard(4).of((5,), rank) for rank in range(4)]
    ((3, 4), [(2,), (2,), (1,), (0,)])
    """

    ranks: int

    def of(self, shape: Shape, rank: int = 0) -> Shape:
        """Elements per axis on one rank; the first has the most."""
        rows = ceil_div(shape[0], self.ranks)
        if rank > 0:
            rows = min(rows, max(0, shape[0] - rank * rows))
        return (rows, *shape[1:])


class Slice(NamedTuple):
    """An equal part of all elements in a row, padded.

    Source: DeepSpeed 0.19.6, runtime/zero/partition_parameters.py, ``_partition_param``.

    >>> Slice(4).of((10, 4)), Slice(3).of((10, 4))
    ((10,), (14,))
    """

    ranks: int

    def of(self, shape: Shape) -> Shape:
        """Elements per axis on one rank."""
        return (ceil_div(elements(shape), self.ranks),)


Placement = Replicate | Shard | Slice


class Layout(NamedTuple):
    """What a strategy makes of each tensor between the steps, on the fullest rank."""

    placement: Callable[[ModelTensor, TrainingSetup], Placement]
    width: Callable[[ModelTensor, TrainingSetup], int]
    """Bytes per element of the tensor and its gradient; of packed weights ``packed_width`` holds."""

    def held(self, tensor: ModelTensor, setup: TrainingSetup) -> Trainable:
        """What a rank holds of a tensor, as an optimizer sees it."""
        module, is_adapter = tensor.module, tensor.is_adapter
        is_matrix = isinstance(module, Linear) and not module.conv1d
        return Trainable(
            self.placement(tensor, setup).of(tensor.shape),
            tensor.packed_width or self.width(tensor, setup),
            tensor.alike,
            isinstance(module, Embedding) and not is_adapter,
            len(tensor.shape) == MATRIX and (is_matrix or is_adapter),
        )

    def bytes(self, tensors: Sequence[ModelTensor], setup: TrainingSetup) -> int:
        """Bytes that a rank holds of some tensors, each as allocated, with the scales of packed ones."""
        scales = sum(tensor.alike * tensor.scales for tensor in tensors)
        return scales + gradient_bytes(self.held(tensor, setup) for tensor in tensors)


def gradient_bytes(tensors: Iterable[Trainable]) -> int:
    """Bytes of all gradients, one for each trained tensor in its dtype.

    Source: torch 2.13, torch/csrc/autograd/functions/accumulate_grad.h.
    """
    return sum(one.alike * one.bytes for one in tensors)


def loaded_width(tensor: ModelTensor, setup: TrainingSetup) -> int:
    """Bytes per element of a tensor as ``from_pretrained`` and PEFT leave it.

    Source: derived, from ``adapter_tensor_width`` and ``weight_width``.
    """
    if tensor.is_adapter:
        return adapter_tensor_width(tensor.module, tensor.shape, setup)
    return weight_width(tensor.module, setup)


AS_LOADED = Layout(lambda *_: Replicate(), loaded_width)
"""Every tensor whole on every GPU."""


# --- a rank that holds the whole model --------------------------------------------------------------


def weight_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of all weights except adapters, and of buffers, per GPU.

        Σ tensors  count · bytes  +  Σ buffers  count · bytes

    Source: derived, from ``Layout.bytes`` and ``buffers``.
    """
    own, _ = own_and_added(model_tensors(model, setup.adapters))
    return AS_LOADED.bytes(own, setup) + all_buffer_bytes(model, setup.adapters)


def all_buffer_bytes(model: Model, adapters: Adapters) -> int:
    """Bytes of the buffers of the class that is loaded, with its towers'.

    Source: derived, from ``buffers`` and ``tower_buffers``.
    """
    beside = sum(buffer.copies * buffer.bytes for buffer in tower_buffers(model, adapters))
    return buffer_bytes(model) + beside


def adapter_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes that PEFT adds, per GPU: adapters, and the copies of ``modules_to_save``.

        Σ adapted linears  (r · (in + out) + out with DoRA) · p  +  Σ copied modules  elements · w
        p: bytes per element of an adapter, 4 by PEFT's default; w: of a weight, as loaded

    Source: derived, from ``module_tensors``; peft 0.21, tuners/tuners_utils.py, ``cast_adapter_dtype`` (adapters
    become float32, copies do not).
    """
    _, added = own_and_added(model_tensors(model, setup.adapters))
    return AS_LOADED.bytes(added, setup)


def module_bytes(module: Module, setup: TrainingSetup) -> int:
    """Bytes of one module's own weights, with bias and without adapters.

    Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp (each tensor rounded up to 512 bytes).
    """
    own, _ = own_and_added(module_tensors(module, setup.adapters))
    return AS_LOADED.bytes(own, setup)


def own_and_added(
    tensors: Iterable[ModelTensor],
) -> tuple[list[ModelTensor], list[ModelTensor]]:
    """The weights of the model as it is loaded, and what PEFT adds."""
    parted: tuple[list[ModelTensor], list[ModelTensor]] = [], []
    for tensor in tensors:
        parted[tensor.is_added].append(tensor)
    return parted


def trainable_tensors(model: Model, setup: TrainingSetup) -> list[Trainable]:
    """Every tensor that gets a gradient: all weights, or the adapters and PEFT's copies (derived, likewise).

    Modules that a step on text does not run get no gradient, and optimizers skip them: ``idle_tensors``.
    """
    idle = _idle(model, setup)
    return trained(
        (one for one in model_tensors(model, setup.adapters) if one.module not in idle), setup
    )


def idle_tensors(model: Model, setup: TrainingSetup) -> list[Trainable]:
    """Trained tensors without gradients or states: those of towers that a step on text does not run.

    Source: torch 2.13, optim/adamw.py and optim/optimizer.py (``if p.grad is None``); bitsandbytes 0.50,
    optim/optimizer.py, ``Optimizer8bit.step``; derived, likewise.
    """
    if not (idle := _idle(model, setup)):
        return []
    return trained(
        (one for one in model_tensors(model, setup.adapters) if one.module in idle), setup
    )


def _idle(model: Model, setup: TrainingSetup) -> Collection[Module]:
    return {module for module, _ in idle_modules(model, setup.adapters, setup.images)}


def module_adapters(module: Module, setup: TrainingSetup) -> list[Trainable]:
    """The tensors of a module's adapter, as PEFT leaves them (derived, likewise)."""
    tensors = module_tensors(module, setup.adapters)
    return [AS_LOADED.held(tensor, setup) for tensor in tensors if tensor.is_adapter]


def trained(tensors: Iterable[ModelTensor], setup: TrainingSetup) -> list[Trainable]:
    """Those that are trained, as an optimizer sees them: PEFT's copies first."""
    found = [tensor for tensor in tensors if tensor.trained]
    found.sort(key=lambda tensor: not tensor.is_copy)
    return [AS_LOADED.held(tensor, setup) for tensor in found]


def unsharded(model: Model, structure: TrainingSetup) -> Resident:
    """What a GPU keeps if nothing is sharded.

    Source: derived, from the bytes of each tensor.
    """
    tensors, idle = model_tensors(model, structure.adapters), _idle(model, structure)
    return whole(model, structure, tensors, all_buffer_bytes(model, structure.adapters), idle)


def whole(
    model: Model,
    structure: TrainingSetup,
    tensors: Sequence[ModelTensor],
    buffers: int,
    idle: Collection[Module] = (),
) -> Resident:
    """What a GPU keeps that holds these tensors unsharded, and so many bytes of buffers.

    ``idle``: modules that get no gradient.

    Source: derived, from ``gradient_bytes`` and the optimizer's rules.
    """
    own, added = own_and_added(tensors)
    grown = trained((tensor for tensor in tensors if tensor.module not in idle), structure)
    gradients, step = gradient_bytes(grown), stepped(grown, structure.optimisation)
    if structure.optimisation.optimizer_in_bwd:  # each is freed, and stepped, in backward
        gradients, step["transient"] = 0, 0
    return Resident(
        weights=AS_LOADED.bytes(own, structure) + buffers,
        adapters=AS_LOADED.bytes(added, structure),
        gradients=gradients,
        accumulated=gradients,
        **step,
        **counts(model, structure.adapters),
    )
