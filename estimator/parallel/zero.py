"""DeepSpeed's ZeRO: what a rank holds at each stage.

Trained weights are kept in 16 bits, and again in float32 as flat partitions, one per rank, which the optimizer updates.
Bucket sizes are Trainer's for ``auto``: reduce h², prefetch 0.9 h², persistence threshold 10 h elements (h: hidden
size).

Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, stage3.py and partitioned_param_coordinator.py, as each says;
transformers 5.23, integrations/deepspeed.py, ``trainer_config_finalize``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from estimator.families.adapters import adapter_shapes, is_quantized, is_trained_whole
from estimator.families.model_tree import layer_groups, layer_modules, outer_modules, vision_modules
from estimator.families.modules import Module, weight_shapes
from estimator.families.packed import FLOAT32_BYTES, packed_bytes, quantized_bytes, scale_bytes
from estimator.families.vision_family import sees
from estimator.families.weights import buffer_bytes
from estimator.parallel.computed import computed_width, sharded_on_init
from estimator.parallel.tensors import packed_width
from estimator.parallel.zero3_coordinator import Rules
from estimator.parallel.zero_partitions import (
    NORM_WIDTH,
    SUB_GROUP,
    most_kept_bytes,
    partition,
    trained_elements,
)
from estimator.resident.optimizer import States, Trainable, optimizer_states, step_transient
from estimator.values.arithmetic import allocated, ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Offload

SWAPPED_BYTES = 2**20
"""Smaller tensors are not written to NVMe: DeepSpeed 0.19.6, runtime/swap_tensor/constants.py, ``MIN_AIO_BYTES``."""


class Counted(NamedTuple):
    """The size of one tensor, and whether it is trained."""

    elements: int
    trained: bool


def trained_width(setup: TrainingSetup) -> int:
    """Bytes per element of the trained weights, in the dtype of the computation.

    Source: as ``sharded_on_init``.
    """
    wide = (
        setup.adapters.uses_adapters
        and setup.adapters.autocast_adapter_dtype
        and sharded_on_init(setup)
    )
    return FLOAT32_BYTES if wide else computed_width(setup.precision)


def gathers_nothing(mesh: Mesh) -> bool:
    """Whether stage 3 needs no gather: on one GPU, whose partition is the whole model.

    Source: DeepSpeed 0.19.6, runtime/zero/partition_parameters.py, ``_no_gather_coalesced`` and ``NoGatherHandle``.
    """
    alone = mesh.strategy.gathers_modules and mesh.num_gpus == 1
    return alone and mesh.offload_param is Offload.NONE


def gathering(
    model: Model, adapters: Adapters, mesh: Mesh, *, trained: bool = True
) -> Rules | None:
    """Stage 3's gather settings, in elements: 0.9 h² prefetched, tensors up to 10 h persistent; None if it gathers
    nothing.

    Source: transformers 5.23, integrations/deepspeed.py, ``stage3_prefetch_bucket_size`` and
    ``stage3_param_persistence_threshold``.
    """
    if not mesh.strategy.gathers_modules or gathers_nothing(mesh):
        return None
    hidden = model.hidden_size
    return Rules(
        prefetched=9 * hidden**2 // 10,
        persistent=10 * hidden,
        is_offloaded=mesh.offload_param is not Offload.NONE,
        alone=mesh.num_gpus == 1,
        is_wrapped=adapters.uses_adapters and trained,
        is_frozen=not trained,
    )


def _modules(model: Model, adapters: Adapters) -> Iterable[tuple[Module, int]]:
    if sees(model, adapters):
        yield from vision_modules(model)
    for module in outer_modules(model):
        yield module, 1
    for lowest, count in layer_groups(model):
        for module in layer_modules(model, lowest):
            yield module, count


def _tensors(module: Module, adapters: Adapters) -> list[Counted]:
    """One module's own unpacked weights, and its adapters."""
    own = weight_shapes(module)[1 if is_quantized(module, adapters) else 0 :]
    trained = not adapters.uses_adapters and is_trained_whole(module, adapters)
    return [
        *(Counted(elements(shape), trained) for shape in own),
        *(Counted(elements(shape), True) for shape in adapter_shapes(module, adapters)),
    ]


def whole_tensors(model: Model, adapters: Adapters) -> list[tuple[Counted, int]]:
    """Every unpacked tensor, including adapters, with its elements and multiplicity.

    Source: derived, from ``weight_shapes`` and ``adapter_shapes``.
    """
    modules = _modules(model, adapters)
    return [(t, n) for module, n in modules for t in _tensors(module, adapters)]


class RankBytes(NamedTuple):
    """Bytes that one rank holds, by category."""

    weights: int
    gradients: int
    """Gradients at the optimizer step."""
    accumulated: int
    """The part of ``gradients`` that exists before a micro-step begins."""
    transient: int
    states: States
    """Including the float32 weights that the optimizer updates."""
    communication: int


def rank_bytes(model: Model, setup: TrainingSetup) -> RankBytes:
    """Bytes of the fullest rank under ZeRO.

        stage 1, 2   2 N + (4 + k) N/W + gradients       stage 3   (2 + 2 + 4 + k) N/W + small unsharded weights
        N: trained weights; W: ranks; k: the optimizer's states in float32, 8 for AdamW

    At the step, norms are computed one gradient at a time in float64, 8 bytes per element. The partition's gradients
    are then flattened, 2 N/W, and cast to float32, 4 N/W; at stage 3 in groups of 10⁹ elements.

    With an offloaded optimizer, no states or gradients stay on the GPU. Stages 1 and 2 keep a buffer as large as the
    largest gradient instead; stage 3 with NVMe keeps gradients too small to be written. With offloaded weights, small
    weights stay.

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``get_grad_norm_direct``, ``step`` and
    ``temp_grad_buffer_for_gpu_offload``;
    stage3.py, ``_prepare_fp32_grad_for_sub_group``, ``grad_partitions_flat_buffer`` and
    ``_create_fp16_partitions_with_defragmentation``; swap_tensor/optimizer_utils.py, ``_swap_out_gradients``.
    """
    ranks, size = setup.mesh.num_gpus, computed_width(setup.precision)
    bucket, optimisation = size * model.hidden_size**2, setup.optimisation
    whole = whole_tensors(model, setup.adapters)
    stage3 = setup.mesh.strategy.shards_weights
    held = (_sharded_weights if stage3 else _whole_weights)(model, setup, whole)
    if setup.mesh.offload_optimizer is not Offload.NONE:
        on_the_gpu = held.accumulated if setup.mesh.strategy.reduces_after_backward else 0
        beside = bucket if stage3 else size * max(trained_elements(model, setup.adapters))
        if setup.mesh.offload_optimizer is Offload.NVME:
            beside += FLOAT32_BYTES * _too_small_to_swap(whole, ranks)
        return RankBytes(held.weights, 0, on_the_gpu, 0, States(0, 0), beside)
    flat = [Trainable((held.part,), FLOAT32_BYTES, 1)]
    of_step = [Trainable((held.stepped,), FLOAT32_BYTES, 1)]
    states = optimizer_states(flat, optimisation.optim, optimisation.optim_state_dtype)
    # float32 weights too: _create_fp32_partitions compares the tensor's device with a string, which is never equal
    master = FLOAT32_BYTES * held.part
    at_once = max(ceil_div(t.elements, ranks) for t, _ in whole if t.trained)
    if not stage3:  # a rank's slice of the largest tensor, which may fill its partition
        at_once = min(held.part, max(trained_elements(model, setup.adapters)))
    transient = max(
        NORM_WIDTH * at_once,
        held.stepped * (size + (FLOAT32_BYTES if size < FLOAT32_BYTES else 0)),
        held.stepped * FLOAT32_BYTES
        + step_transient(of_step, optimisation.optim, optimisation.optim_state_dtype),
    )
    return RankBytes(
        weights=held.weights,
        gradients=held.gradients,
        accumulated=held.accumulated,
        transient=transient,
        states=States(
            states.resident_bytes + master, states.paged_bytes, states.from_start + master
        ),
        communication=bucket if stage3 else 0,
    )


class _Held(NamedTuple):
    """What a rank holds of weights and gradients."""

    part: int
    """Elements of trained weights of which it has states."""
    stepped: int
    """Those of them that are stepped together."""
    weights: int
    """Bytes."""
    gradients: int
    accumulated: int


Wholes = Sequence[tuple[Counted, int]]
"""All tensors, with their multiplicity."""


def _sharded_weights(model: Model, setup: TrainingSetup, whole: Wholes) -> _Held:
    """Of stage 3: a part of every weight, and the small ones whole."""
    ranks, size, few = setup.mesh.num_gpus, computed_width(setup.precision), 10 * model.hidden_size
    part = sum(n * ceil_div(t.elements, ranks) for t, n in whole if t.trained)
    rest = sum(n * ceil_div(t.elements, ranks) for t, n in whole if not t.trained)
    of_trained = trained_width(setup)
    weights = sum(
        n * packed_part(module, setup, few) for module, n in _modules(model, setup.adapters)
    )
    if not gathers_nothing(setup.mesh):
        weights += sum(
            n * t.elements * (of_trained if t.trained else size)
            for t, n in whole
            if t.elements <= few
        )
    if setup.mesh.offload_param is Offload.NONE:
        weights += of_trained * part + size * rest
    gradients = allocated(size * part)
    return _Held(part, min(part, SUB_GROUP), weights, gradients, gradients)


def _whole_weights(model: Model, setup: TrainingSetup, whole: Wholes) -> _Held:
    """Of stages 1 and 2: all weights, and the gradients of whole tensors."""
    part, size = partition(model, setup), computed_width(setup.precision)
    packed = sum(
        n * _packed(module, setup.adapters) for module, n in _modules(model, setup.adapters)
    )
    weights = size * sum(n * t.elements for t, n in whole) + packed
    gradients, accumulated = most_kept_bytes(model, setup), 0
    if setup.batch.gradient_accumulation_steps > 1:
        accumulated = gradients
        if setup.mesh.strategy.reduces_after_backward:
            # stage 1 also frees its bucket after reducing
            trained = sum(n * t.elements for t, n in whole if t.trained)
            accumulated = size * (trained + model.hidden_size**2)
    return _Held(part, part, weights, gradients, accumulated)


def frozen_part_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of one rank's part of a model of which nothing is trained, at stage 3: Σ ⌈n / W⌉ · p, small weights whole.

    Source: as ``rank_bytes``; trl 1.16, models/utils.py, ``prepare_deepspeed`` (an engine of its own).
    """
    ranks, size, persistent = (
        setup.mesh.num_gpus,
        computed_width(setup.precision),
        10 * model.hidden_size,
    )
    whole = whole_tensors(model, setup.adapters)
    small = sum(n * t.elements for t, n in whole if t.elements <= persistent)
    small = 0 if gathers_nothing(setup.mesh) else small
    parts = sum(n * ceil_div(t.elements, ranks) for t, n in whole)
    if setup.mesh.offload_param is not Offload.NONE:
        parts = 0
    modules = _modules(model, setup.adapters)
    packed = sum(n * packed_part(module, setup, persistent) for module, n in modules)
    return size * (parts + small) + packed + buffer_bytes(model)


def _too_small_to_swap(whole: Iterable[tuple[Counted, int]], ranks: int) -> int:
    """Elements of a rank's partitions whose float32 gradients stay on the GPU until the step."""
    parts = ((ceil_div(t.elements, ranks), n) for t, n in whole if t.trained)
    return sum(n * part for part, n in parts if FLOAT32_BYTES * part < SWAPPED_BYTES)


def _packed(module: Module, adapters: Adapters) -> int:
    if not is_quantized(module, adapters):
        return 0
    count = elements(weight_shapes(module)[0])
    return quantized_bytes(count, double_quant=adapters.bnb_4bit_use_double_quant)


def packed_part(module: Module, setup: TrainingSetup, persistent: int) -> int:
    """Bytes of a packed weight on one rank at stage 3: its partition, or the whole of a small weight, plus all scales.

    bitsandbytes keeps the scales outside the parameter, so DeepSpeed does not shard them.
    Source: DeepSpeed 0.19.8, runtime/zero/parameter_offload.py, ``_convert_to_zero_parameters``, and
    partition_parameters.py, ``_zero_init_param``.
    """
    if not is_quantized(module, setup.adapters):
        return 0
    count = elements(weight_shapes(module)[0])
    scales = scale_bytes(count, double_quant=setup.adapters.bnb_4bit_use_double_quant)
    stored = packed_width(setup.adapters)
    whole = ceil_div(packed_bytes(count), stored)
    part = ceil_div(whole, setup.mesh.num_gpus)
    small = whole if whole <= persistent and not gathers_nothing(setup.mesh) else 0
    return stored * (part + small) + scales
