"""Memory while loading: on the GPU while weights arrive, are packed, merged and upcast; on the host before that.

Source: transformers 5.23, core_model_loading.py, ``convert_and_load_state_dict_in_model``; modeling_utils.py,
``caching_allocator_warmup`` (one block of the model's size, freed before the first weight arrives, so it adds nothing).
"""

from __future__ import annotations

from functools import lru_cache

from estimator.families.adapters import is_quantized
from estimator.families.loaded import BEFORE_THE_TEXT, made_modules
from estimator.families.model_tree import gate_up_stacks, outer_modules, tied_head
from estimator.families.modules import Module, weight_shapes
from estimator.families.packed import FLOAT32_BYTES, QUANTIZATION_BLOCK
from estimator.families.weights import tensors_bytes
from estimator.parallel.placements import AS_LOADED, all_buffer_bytes, own_and_added, weight_bytes
from estimator.parallel.strategies import at_rest
from estimator.parallel.tensor_parallel import part_of
from estimator.parallel.tensors import tensors_of
from estimator.step.timeline import structure
from estimator.values.arithmetic import allocated, ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.precision import Precision
from estimator.values.results import Moment
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Dtype, Model, Phase

Modules = tuple[tuple[Module, int], ...]
"""Modules with weights, and their multiplicity."""


def load_moment(model: Model, setup: TrainingSetup, workspace: int) -> Moment:
    """The highest moment from ``from_pretrained`` to the adapters, in bytes on one GPU.

    The maximum of: packing the largest linear while all others are loaded (QLoRA), merging one layer's gates and ups
    while all others are loaded (experts), the upcasts of ``prepare_model_for_kbit_training``, and the loaded model with
    its adapters. The workspace is always counted, although the first product allocates it.

    Leaves out: the order of weights in the files; an adapter's own upcast.
    Source: derived, from ``packing_bytes``, ``merging_bytes`` and ``upcasting_bytes``.
    """
    name, sizes = _highest(part_of(model, setup.mesh.tp_size), at_rest(structure(setup)))
    return Moment(Phase.LOAD, name, {**sizes, Component.WORKSPACE: workspace})


def load_moment_of(
    model: Model, setup: TrainingSetup, modules: Modules, tied: Modules, workspace: int
) -> Moment:
    """The same in bytes on a GPU that holds part of the model: these modules, and perhaps the tied head.

    Source: as ``load_moment``.
    """
    name, sizes = _highest_of(model, setup, modules, tied)
    return Moment(Phase.LOAD, name, {**sizes, Component.WORKSPACE: workspace})


@lru_cache(maxsize=1024)
def _highest(model: Model, setup: TrainingSetup) -> tuple[str, dict[Component, int]]:
    """The highest moment's name and bytes by component, without the workspace."""
    modules, tied = (
        made_modules(model, setup.adapters),
        tuple((head, 1) for head in tied_head(model)),
    )
    return _highest_of(model, setup, modules, tied, all_buffer_bytes(model, setup.adapters))


@lru_cache(maxsize=1024)
def _highest_of(
    model: Model, setup: TrainingSetup, modules: Modules, tied: Modules, beside: int = 0
) -> tuple[str, dict[Component, int]]:
    unprepared = setup.replace(prepare_model_for_kbit_training=False)
    adapters, precision = setup.adapters, setup.precision
    own, added = own_and_added(tensors_of(modules, adapters, tied))
    loaded, ready = (AS_LOADED.bytes(own, given) + beside for given in (unprepared, setup))
    adapted = AS_LOADED.bytes(added, setup)
    moments = [("weights in place", ready, adapted, 0)]
    if adapters.has_packed_base and model.quantization is None:  # else already packed in the files
        packing = packing_bytes(modules, adapters, precision)
        moments.append(("packing the largest linear", loaded, 0, packing))
    if merging := merging_bytes(model, modules, precision):
        moments.append(("merging a layer's experts", loaded, 0, merging))
    if ready > loaded:
        upcasting = upcasting_bytes(model, modules, adapters, precision)
        moments.append(("upcasts", loaded, 0, upcasting))
    name, weights, adapted, beside = max(moments, key=lambda moment: sum(moment[1:]))
    sizes = {
        Component.WEIGHTS: weights,
        Component.ADAPTERS: adapted,
        Component.TEMPORARIES: beside,
    }
    return name, {component: size for component, size in sizes.items() if size}


def packing_bytes(modules: Modules, adapters: Adapters, precision: Precision) -> int:
    """Additional bytes on the GPU while bitsandbytes packs the largest linear of these modules, of n weights.

        n · p  +  2 · 4n/64  with double quantisation     p: 2 for 16-bit weights

    The loaded weight, in ``dtype``, and two float32 copies of its scales: as computed, and minus their mean. One weight
    at a time: transformers loads without threads when it quantises. Into 8 bits: the weight, and a float16 copy of it
    that comes back from the host.

    Source: bitsandbytes 0.50, nn/modules.py, ``Params4bit._quantize`` and ``Int8Params._quantize``, functional.py,
    ``quantize_4bit``; transformers 5.23, integrations/bitsandbytes.py, ``Bnb4bitQuantize`` and ``Bnb8bitQuantize``.

    >>> from estimator.families.modules import Linear
    >>> linear = Linear("q_proj", in_features=8, out_features=8)
    >>> packing_bytes(((linear, 1),), Adapters(method="qlora"), Precision()) == 512 + 2 * 512
    True
    """
    counts = [
        elements(weight_shapes(module)[0])
        for module, _ in modules
        if is_quantized(module, adapters)
    ]
    largest = max(counts, default=0)
    source = allocated(largest * precision.dtype.bytes)
    if adapters.has_8bit_base:
        return source + allocated(largest * Dtype.FLOAT16.bytes)
    scales = allocated(ceil_div(largest, QUANTIZATION_BLOCK) * FLOAT32_BYTES)
    return source + (2 * scales if adapters.bnb_4bit_use_double_quant and largest else 0)


def merging_bytes(model: Model, modules: Modules, precision: Precision) -> int:
    """Additional bytes on the GPU while one layer's gates and ups become a stack: a second copy of the stack.

        experts · 2 · i · h · p     gates and ups are stacked, then joined, and the inputs are still alive

    All other weights may already be loaded, since four threads load ahead.
    Source: transformers 5.23, core_model_loading.py, ``MergeModulelist.convert``, ``Concatenate.convert``.
    """
    stacks, width = gate_up_stacks(model, modules), precision.dtype.bytes
    return max((tensors_bytes([stack], width) for stack in stacks), default=0)


def upcasting_bytes(
    model: Model, modules: Modules, adapters: Adapters, precision: Precision
) -> int:
    """Additional peak bytes on the GPU in ``prepare_model_for_kbit_training``, of some of a model's modules.

        max over tensors  Σ before it (4 - p) · n  +  4 · n     one at a time, in model order

    Each unpacked 16-bit tensor gets a float32 copy, which then replaces it.
    Source: peft 0.21, utils/other.py, ``prepare_model_for_kbit_training``.
    """
    grown = highest = 0
    width = precision.dtype.bytes
    for module, alike in _in_order(model, modules):
        shapes = (
            weight_shapes(module)[1:] if is_quantized(module, adapters) else weight_shapes(module)
        )
        for shape in shapes:
            old, new = tensors_bytes([shape], width), tensors_bytes([shape], FLOAT32_BYTES)
            grown += alike * (new - old)
            highest = max(highest, grown + old)
    return highest


def _in_order(model: Model, modules: Modules) -> list[tuple[Module, int]]:
    """Modules in the order of ``model.parameters()``, with identical layers combined, and their multiplicity."""
    first, *rest = outer_modules(model)

    def place(counted: tuple[Module, int]) -> int:
        module, _ = counted
        in_tower = module.name.startswith(BEFORE_THE_TEXT)
        return 0 if in_tower else 1 if module == first else 3 if module in rest else 2

    return sorted(modules, key=place)


def load_host_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes that loading needs on the host, one process.

    Without a ``device_map``, ``from_pretrained`` puts all weights on the host and Trainer moves them: all their bytes.
    With one they go to the GPU tensor by tensor, so only the largest tensor counts; bitsandbytes sets one for a packed
    base.

    Leaves out: memory-mapped files, which the system can evict; memory of Python and CUDA libraries.
    Source: transformers 5.23, quantizers/quantizer_bnb_4bit.py, ``update_device_map``; core_model_loading.py,
    ``_materialize_copy``; trainer.py, ``_move_model_to_device``.
    """
    if not setup.adapters.has_packed_base and not setup.mesh.strategy.places_layers:
        return weight_bytes(model, setup)
    return max(
        elements(shape) * setup.precision.dtype.bytes
        for module, _ in made_modules(model, setup.adapters)
        for shape in weight_shapes(module)
    )
