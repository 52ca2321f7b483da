"""A model's tensors, one by one, and their order in ``model.parameters()``.

Weights, adapters, gradients, states, what is offloaded and what is saved are sums over this one list.

The order is that in which the class defines its modules, not that of their calls: Phi-3 defines ``o_proj`` before
``qkv_proj``. DeepSpeed flattens the parameters of a group in this order and cuts them into one partition per rank, so
it determines which rank owns a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from estimator.families.adapters import (
    adapter_shapes,
    copied_shapes,
    is_quantized,
    is_trained_whole,
    trains_bias,
)
from estimator.families.family import NormKind
from estimator.families.loaded import made_modules
from estimator.families.model_tree import At, Located, modules_in_order, tied_head
from estimator.families.modules import (
    ACTIVATION,
    Kernel,
    Linear,
    Module,
    Norm,
    weight_shapes,
)
from estimator.families.packed import FLOAT32_BYTES, packed_bytes, scale_bytes
from estimator.families.registry import family_of
from estimator.families.vision_family import sees
from estimator.values.arithmetic import StandIn, allocated, ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.specs import Dtype, Model, Part

Shape = tuple[int, ...]
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
    def numel(self) -> int:
        """Its elements."""
        return elements(self.shape)

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


@lru_cache(maxsize=64)
def model_tensors(model: Model, adapters: Adapters) -> tuple[ModelTensor, ...]:
    """Every tensor of the class that is loaded, with what PEFT adds.

    Source: derived, from ``made_modules`` and ``tied_head``.
    """
    tied = ((head, 1) for head in tied_head(model))
    return tuple(tensors_of(made_modules(model, adapters), adapters, tied))


# --- trained tensors in order ----------------------------------------------------------------------

LAYER_NORMS = (NormKind.LAYER_NORM, NormKind.LAYER_NORM_PLUS_ONE)

_WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""transformers 5.23, trainer.py, ``get_decay_parameter_names``."""


class Trained(NamedTuple):
    """One trained tensor, where it is."""

    at: At | None
    """None outside the layers."""
    tensor: ModelTensor
    decays: bool
    """Whether it is in the optimizer group with weight decay."""

    @property
    def module(self) -> str:
        """Name of its module within its layer, or outside the layers."""
        return self.tensor.module.name

    @property
    def shape(self) -> Shape:
        """Elements per axis."""
        return self.tensor.shape

    @property
    def key(self) -> tuple[str, str]:
        """Module and tensor name within its layer."""
        return self.module, self.tensor.part


def trained_in_order(model: Model, adapters: Adapters) -> tuple[Trained, ...]:
    """Every trained tensor in the order of ``named_parameters``: weights, or adapters and the copies PEFT trains.

    Source: torch 2.13, nn/modules/module.py, ``named_parameters``; transformers 5.23, trainer.py,
    ``get_decay_parameter_names`` (no decay for ``nn.LayerNorm`` or names with norm or bias).
    """
    if not adapters.uses_adapters:
        return _known(model, without_rank(adapters))
    if isinstance(adapters.lora_r, StandIn):  # a step is being recorded for any rank
        return tuple(_in_order(model, adapters))
    return _known(model, adapters)


def without_rank(adapters: Adapters) -> Adapters:
    """The keys on which the trained tensors depend, equal for all ranks where there are no adapters (derived)."""
    return adapters if adapters.uses_adapters else replace(adapters, lora_r=1)


@lru_cache(maxsize=64)
def _known(model: Model, adapters: Adapters) -> tuple[Trained, ...]:
    """The same, remembered."""
    return tuple(_in_order(model, adapters))


def trainable_modules(model: Model, adapters: Adapters) -> tuple[Located, ...]:
    """The tower's modules, where the model is loaded with one, and the text's (derived, from ``modules_in_order``)."""
    return modules_in_order(model, with_tower=sees(model, adapters))


def _in_order(model: Model, adapters: Adapters) -> Iterator[Trained]:
    heads = tied_head(model)
    found: dict[Module, list[tuple[ModelTensor, bool]]] = {}  # equal layers have equal modules
    for at, module in trainable_modules(model, adapters):
        if module in heads and not adapters.uses_adapters:
            continue
        if module not in found:
            found[module] = [
                (tensor, _decays(tensor, model))
                for tensor in module_tensors(module, adapters)
                if tensor.trained and tensor.is_added == adapters.uses_adapters
            ]
        for tensor, decays in found[module]:
            yield Trained(at, tensor, decays)


def _decays(tensor: ModelTensor, model: Model) -> bool:
    """Whether Trainer's optimizer applies weight decay."""
    if tensor.is_adapter:
        return True
    module, vision = tensor.module, model.vision
    of_text = module.part is Part.TEXT or vision is None
    norms = family_of(model if of_text or vision is None else vision.tower).norm
    if isinstance(module, Norm) and norms in LAYER_NORMS:
        return False
    is_later = tensor.part != "0"
    if isinstance(module, Kernel):  # a tower's bare tensors are no biases
        is_bias = is_later and len(tensor.shape) < len(module.shapes[0])
    else:  # nor is xIELU's second, which is a number like its first
        is_bias = is_later and module.name != ACTIVATION
    return not is_bias and not _WITHOUT_DECAY.search(module.name.lower())
