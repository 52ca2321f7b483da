"""A model's tensors, one by one, and what a rank has of each: the placements of torch's DTensor, and slices.

Weights, adapters, gradients, states, what is offloaded and what is saved are sums over this one list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from estimator.families.adapters import is_quantized, is_trained_whole, trains_bias
from estimator.families.model_tree import tied_head
from estimator.families.modules import Embedding, Linear, Module, weight_shapes
from estimator.families.towers import made_modules
from estimator.families.weights import (
    FLOAT32_BYTES,
    adapter_shapes,
    adapter_tensor_width,
    copied_shapes,
    packed_bytes,
    scale_bytes,
    weight_width,
)
from estimator.resident.optimizer import Trainable
from estimator.values.arithmetic import allocated, ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, Model

Shape = tuple[int, ...]
MATRIX = 2
"""Axes of a matrix."""
UINT8 = "uint8"
"""bitsandbytes' default dtype for packed 4-bit weights."""


class ModelTensor(NamedTuple):
    """One tensor of a module, whole, and how many equal ones the model has."""

    module: Module
    part: str
    """Which of the module's, as in the suffix of a ``Block`` key: its own from ``0`` on, an adapter's from ``lora0``.
    """
    shape: Shape
    """Elements per axis; of packed weights as they are stored."""
    trained: bool
    alike: int = 1
    is_added: bool = False
    """By PEFT: an adapter's, or of the copy of a module that it trains."""
    packed_width: int = 0
    """Bytes per element of the dtype in which packed weights are stored; 0: not packed."""
    scales: int = 0
    """Bytes of the scales of packed weights, which are no parameter, so that no strategy shards them."""

    @property
    def is_adapter(self) -> bool:
        """Whether it is an adapter's."""
        return self.part.startswith("lora")

    @property
    def is_copy(self) -> bool:
        """Whether it is of a copy that PEFT trains."""
        return self.is_added and not self.is_adapter


Alike = Iterable[tuple[Module, int]]
"""Modules with weights, and the number of equal ones."""


def packed_width(adapters: Adapters) -> int:
    """Bytes per element of the storage dtype of packed weights (``bnb_4bit_quant_storage``).

    Source: bitsandbytes 0.50, functional.py, ``quantize_4bit(quant_storage=…)``.
    """
    storage = adapters.bnb_4bit_quant_storage
    return 1 if storage == UINT8 else Dtype(storage).bytes


def module_tensors(
    module: Module, adapters: Adapters, alike: int = 1, *, is_tied: bool = False
) -> Iterator[ModelTensor]:
    """The tensors of a module: its adapters, its own, its copy; ``is_tied``: a head without a weight of its own.

    Source: derived, from ``weight_shapes``, ``adapter_shapes`` and ``copied_shapes``.
    """
    for place, shape in enumerate(adapter_shapes(module, adapters)):
        yield ModelTensor(module, f"lora{place}", shape, True, alike, is_added=True)
    own = () if is_tied else weight_shapes(module)
    is_whole = not adapters.uses_adapters and is_trained_whole(module, adapters)
    has_bias = trains_bias(module, adapters)
    for place, shape in enumerate(own):
        if place == 0 and is_quantized(module, adapters):
            yield _packed(module, shape, adapters, alike)
        else:
            is_bias = has_bias and place == len(own) - 1
            yield ModelTensor(module, str(place), shape, is_whole or is_bias, alike)
    for place, shape in enumerate(copied_shapes(module, adapters)):
        yield ModelTensor(module, str(place), shape, True, alike, is_added=True)


def _packed(module: Module, shape: Shape, adapters: Adapters, alike: int) -> ModelTensor:
    """A weight that bitsandbytes packs: nn/modules.py, ``Params4bit`` and, with a scale per output, ``Int8Params``."""
    count, width = elements(shape), packed_width(adapters)
    if adapters.has_8bit_base:
        assert isinstance(module, Linear)
        width, scales = 1, allocated(FLOAT32_BYTES * module.out_features)
    else:
        scales = scale_bytes(count, double_quant=adapters.bnb_4bit_use_double_quant)
        count = ceil_div(packed_bytes(count), width)
    return ModelTensor(module, "0", (count,), False, alike, packed_width=width, scales=scales)


def tensors_of(modules: Alike, adapters: Adapters, tied: Alike = ()) -> list[ModelTensor]:
    """The tensors of some modules, and of heads that are tied (derived, likewise)."""
    return [
        *(one for module, n in modules for one in module_tensors(module, adapters, n)),
        *(one for head, n in tied for one in module_tensors(head, adapters, n, is_tied=True)),
    ]


def model_tensors(model: Model, adapters: Adapters) -> list[ModelTensor]:
    """Every tensor of the class that is loaded, with what PEFT adds.

    Source: derived, from ``made_modules`` and ``tied_head``.
    """
    tied = ((head, 1) for head in tied_head(model))
    return tensors_of(made_modules(model, adapters), adapters, tied)


# --- placements -----------------------------------------------------------------------------------


class Replicate(NamedTuple):
    """Whole, on every rank."""

    def of(self, shape: Shape) -> Shape:
        """Elements per axis on one rank."""
        return shape


class Shard(NamedTuple):
    """The first axis in equal parts, the last ones of which may have fewer rows; here the first rank's, the largest.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``_init_sharded_param`` (``_chunk_with_empty``).

    >>> Shard(4).of((10, 4))
    (3, 4)
    """

    ranks: int

    def of(self, shape: Shape) -> Shape:
        """Elements per axis on one rank."""
        return (ceil_div(shape[0], self.ranks), *shape[1:])


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
    return sum(one.alike * allocated(elements(one.shape) * one.width) for one in tensors)


def loaded_width(tensor: ModelTensor, setup: TrainingSetup) -> int:
    """Bytes per element of a tensor as ``from_pretrained`` and PEFT leave it.

    Source: derived, from ``adapter_tensor_width`` and ``weight_width``.
    """
    if tensor.is_adapter:
        return adapter_tensor_width(tensor.module, tensor.shape, setup)
    return weight_width(tensor.module, setup)


AS_LOADED = Layout(lambda *_: Replicate(), loaded_width)
"""Every tensor whole on every GPU."""
