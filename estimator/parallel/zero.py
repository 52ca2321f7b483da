"""DeepSpeed's ZeRO: what a rank holds at each stage.

Trained weights are kept in 16 bits, and again in float32 as flat partitions, one per rank, which the optimizer updates.
Bucket sizes are Trainer's for ``auto``: reduce h², prefetch 0.9 h², persistence threshold 10 h elements (h: hidden
size).

Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, stage3.py and partitioned_param_coordinator.py, as each says;
transformers 5.23, integrations/deepspeed.py, ``trainer_config_finalize``.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.families.packed import FLOAT32_BYTES
from estimator.families.weights import buffer_bytes
from estimator.parallel.computed import computed_width, sharded_on_init
from estimator.parallel.placements import Layout, Slice
from estimator.parallel.tensors import ModelTensor, model_tensors
from estimator.parallel.zero3_coordinator import Rules
from estimator.parallel.zero_partitions import (
    NORM_WIDTH,
    SUB_GROUP,
    most_kept_bytes,
    partition,
    trained_elements,
)
from estimator.resident.model import Resident, counts
from estimator.resident.optimizer import States, Trainable, optimizer_states, step_transient
from estimator.values.arithmetic import allocated, ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Offload

SWAPPED_BYTES = 2**20
"""Smaller tensors are not written to NVMe: DeepSpeed 0.19.6, runtime/swap_tensor/constants.py, ``MIN_AIO_BYTES``."""


def _width(tensor: ModelTensor, setup: TrainingSetup) -> int:
    """Bytes per element of a weight, in the dtype of the computation (``sharded_on_init``)."""
    is_wide = setup.adapters.autocast_adapter_dtype and sharded_on_init(setup)
    return FLOAT32_BYTES if tensor.is_added and is_wide else computed_width(setup.precision)


STAGE_3 = Layout(lambda _, setup: Slice(setup.mesh.num_gpus), _width)
"""A rank's partition of every tensor. Scales of packed weights are no parameter, so they stay whole: DeepSpeed 0.19.8,
runtime/zero/parameter_offload.py, ``_convert_to_zero_parameters``, and partition_parameters.py, ``_zero_init_param``.
"""


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


def partitioned_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of one rank's weights at stage 3: Σ ⌈n / W⌉ · p, small weights whole beside it, all scales, and buffers.

    With offloaded weights, small weights stay.

    Source: as ``STAGE_3``; DeepSpeed 0.19.6, runtime/zero/stage3.py, ``_create_fp16_partitions_with_defragmentation``;
    for a second model trl 1.16, models/utils.py, ``prepare_deepspeed`` (an engine of its own).
    """
    persistent = 0 if gathers_nothing(setup.mesh) else 10 * model.hidden_size
    tensors = model_tensors(model, setup.adapters)
    return buffer_bytes(model) + sum(t.alike * part_bytes(t, setup, persistent) for t in tensors)


def part_bytes(tensor: ModelTensor, setup: TrainingSetup, persistent: int) -> int:
    """Bytes of a tensor on one rank at stage 3: its partition, all scales, and the whole of a small weight.

    Source: as ``STAGE_3``.
    """
    held = STAGE_3.held(tensor, setup)
    part = elements(held.shape) if setup.mesh.offload_param is Offload.NONE else 0
    small = tensor.numel if tensor.numel <= persistent else 0
    return held.width * (part + small) + tensor.scales


def rank_parts(
    model: Model, adapters: Adapters, gpus: int, *, trained: bool
) -> list[tuple[int, int]]:
    """Elements of one rank's partition, at stage 3, of each tensor that is ``trained``, or of each that is neither
    trained nor packed, and how many alike there are.

    Source: as ``STAGE_3``.
    """
    return [
        (ceil_div(tensor.numel, gpus), tensor.alike)
        for tensor in model_tensors(model, adapters)
        if tensor.trained is trained and not tensor.packed_width
    ]


def _whole_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of all weights, which stages 1 and 2 keep on every rank, and of buffers."""
    total, size = buffer_bytes(model), computed_width(setup.precision)
    for tensor in model_tensors(model, setup.adapters):
        packed = allocated(tensor.numel * tensor.packed_width) + tensor.scales
        total += tensor.alike * (packed if tensor.packed_width else size * tensor.numel)
    return total


class _Part(NamedTuple):
    """What a rank reduces and steps."""

    elements: int
    """Of the trained weights of which it has states."""
    stepped: int
    """Those of them that are stepped together."""
    at_once: int
    """Those of them whose norm is computed at once."""
    gradients: int
    """Bytes at the optimizer step."""
    accumulated: int
    """Bytes of these before a micro-step begins."""


def _sharded(model: Model, setup: TrainingSetup) -> _Part:
    """Of stage 3, whose gradients have a place from the start."""
    parts = rank_parts(model, setup.adapters, setup.mesh.num_gpus, trained=True)
    count = sum(alike * part for part, alike in parts)
    gradients = allocated(computed_width(setup.precision) * count)
    largest = max(part for part, _ in parts)
    return _Part(count, min(count, SUB_GROUP), largest, gradients, gradients)


def _flat(model: Model, setup: TrainingSetup) -> _Part:
    """Of stages 1 and 2: a partition of all trained weights, and the gradients of whole tensors."""
    part, size = partition(model, setup), computed_width(setup.precision)
    trained = trained_elements(model, setup.adapters)
    gradients, accumulated = most_kept_bytes(model, setup), 0
    if setup.batch.gradient_accumulation_steps > 1:
        accumulated = gradients
        if setup.mesh.strategy.reduces_after_backward:
            # stage 1 also frees its bucket after reducing
            accumulated = size * (sum(trained) + model.hidden_size**2)
    # a rank's slice of the largest tensor, which may fill its partition
    return _Part(part, part, min(part, max(trained)), gradients, accumulated)


def zero_part(model: Model, structure: TrainingSetup) -> Resident:
    """What the fullest rank keeps under DeepSpeed.

        stage 1, 2   2 N + (4 + k) N/W + gradients       stage 3   (2 + 2 + 4 + k) N/W + small unsharded weights
        N: trained weights; W: ranks; k: the optimizer's states in float32, 8 for AdamW

    At the step, norms are computed one gradient at a time in float64, 8 bytes per element. The partition's gradients
    are then flattened, 2 N/W, and cast to float32, 4 N/W; at stage 3 in groups of 10⁹ elements.

    With an offloaded optimizer, no states or gradients stay on the GPU. Stages 1 and 2 keep a buffer as large as the
    largest gradient instead; stage 3 with NVMe keeps gradients too small to be written.

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``get_grad_norm_direct``, ``step`` and
    ``temp_grad_buffer_for_gpu_offload``;
    stage3.py, ``_prepare_fp32_grad_for_sub_group`` and ``grad_partitions_flat_buffer``; swap_tensor/optimizer_utils.py,
    ``_swap_out_gradients``.
    """
    mesh, size = structure.mesh, computed_width(structure.precision)
    stage3, bucket = mesh.strategy.shards_weights, size * model.hidden_size**2
    part = (_sharded if stage3 else _flat)(model, structure)
    weights = (partitioned_bytes if stage3 else _whole_bytes)(model, structure)
    of_model = counts(model, structure.adapters)
    if mesh.offload_optimizer is not Offload.NONE:
        beside = bucket if stage3 else size * max(trained_elements(model, structure.adapters))
        if mesh.offload_optimizer is Offload.NVME:
            parts = rank_parts(model, structure.adapters, mesh.num_gpus, trained=True)
            sizes = ((FLOAT32_BYTES * count, alike) for count, alike in parts)
            beside += sum(alike * size for size, alike in sizes if size < SWAPPED_BYTES)
        kept = part.accumulated if mesh.strategy.reduces_after_backward else 0
        return Resident(weights=weights, accumulated=kept, communication=beside, **of_model)
    rule = structure.optimisation.optim, structure.optimisation.optim_state_dtype
    states = optimizer_states([Trainable((part.elements,), FLOAT32_BYTES, 1)], *rule)
    # float32 weights too: _create_fp32_partitions compares the tensor's device with a string, which is never equal
    master = FLOAT32_BYTES * part.elements
    step = step_transient([Trainable((part.stepped,), FLOAT32_BYTES, 1)], *rule)
    return Resident(
        weights=weights,
        gradients=part.gradients,
        accumulated=part.accumulated,
        transient=max(
            NORM_WIDTH * part.at_once,
            part.stepped * (size + (FLOAT32_BYTES if size < FLOAT32_BYTES else 0)),
            part.stepped * FLOAT32_BYTES + step,
        ),
        states=States(
            states.resident_bytes + master, states.paged_bytes, states.from_start + master
        ),
        communication=bucket if stage3 else 0,
        **of_model,
    )
