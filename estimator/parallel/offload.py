"""Host memory and NVMe space of offloaded weights, gradients and states, and the bytes that move in a step.

DeepSpeed pins memory for transfers (``pin_memory``, true by default since 0.19), and so does FSDP2's
``CPUOffloadPolicy``. PyTorch rounds a pinned block up to a power of two; DeepSpeed's own estimate uses a factor of 1.5.

Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, stage3.py, offload_config.py and runtime/swap_tensor/, as each
says; accelerate 1.15, accelerator.py, ``_prepare_deepspeed`` (any AdamW becomes ``DeepSpeedCPUAdam``); torch 2.13,
distributed/fsdp/_fully_shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from estimator.families.packed import FLOAT32_BYTES
from estimator.parallel.computed import computed_width
from estimator.parallel.placements import Shard
from estimator.parallel.sharding import SHARDED, sharded_groups
from estimator.parallel.tensors import ModelTensor, model_tensors
from estimator.parallel.zero import rank_parts
from estimator.parallel.zero_partitions import partition, sub_groups, trained_elements
from estimator.tape.symbols import next_power_of_2
from estimator.values.arithmetic import ceil_div, elements
from estimator.values.facets.batch import Batch
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.optimisation import Optimisation
from estimator.values.facets.run import TrainingRun
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Offload

STATES = 2
"""Adam's moments, in float32 even with 16-bit weights: DeepSpeed 0.19.6, ops/adam/cpu_adam.py."""
OPTIMIZER_BUFFERS = 4
"""Pinned buffers as large as the largest sub-group, through which states go to NVMe: offload_config.py,
``DeepSpeedZeroOffloadOptimizerConfig.buffer_count``."""
WEIGHT_BUFFERS, WEIGHT_BUFFER = 5, 10**8
"""Pinned buffers for weights, and elements of each: offload_config.py, ``DeepSpeedZeroOffloadParamConfig``. A rank's
partition of a tensor must fit into one, so ``buffer_size`` may have to be raised to the largest."""
KEPT_FROM_NVME = 10**9
"""Elements of trained weights that stay in host memory despite NVMe offload: the same, ``max_in_cpu``."""
PASSES = 2
"""Gathers of a weight per micro-step: for forward and for backward."""


class Offloaded(NamedTuple):
    """Bytes that one rank offloads."""

    pinned: int
    """Page-locked host memory, as allocated."""
    pageable: int
    """Pageable host memory."""
    nvme: int
    """Files on NVMe."""

    @property
    def host(self) -> int:
        """Host memory, pinned and pageable."""
        return self.pinned + self.pageable


class OffloadTraffic(NamedTuple):
    """What one rank moves in an optimizer step, in bytes, and the elements that its CPU updates."""

    in_micro_steps: int
    """Over the GPU's host link during micro-steps, both directions together."""
    after: int
    """Over that link after the CPU's optimizer step."""
    read: int
    """Bytes read from NVMe."""
    written: int
    """Bytes written to NVMe."""
    stepped: int
    """Elements that the CPU's Adam updates."""


def offloads(mesh: Mesh) -> bool:
    """Whether anything is offloaded.

    Source: DeepSpeed 0.19.6, runtime/zero/offload_config.py; torch 2.13, ``CPUOffloadPolicy``.
    """
    return {mesh.offload_optimizer, mesh.offload_param} != {Offload.NONE}


def ranks_of_a_node(mesh: Mesh) -> int:
    """Ranks that share one machine's memory, CPU and disks (a count).

    Source: derived.

    >>> ranks_of_a_node(Mesh(num_gpus=16, gpus_per_node=8))
    8
    """
    return min(mesh.num_gpus, mesh.gpus_per_node)


def pinned(size: int) -> int:
    """Bytes of a page-locked block: the next power of two.

    Source: torch 2.13, ATen/core/CachingHostAllocator.h, ``allocate``.

    >>> pinned(3 * 2**30) == 2**32
    True
    """
    return next_power_of_2(size) if size else 0


def offloaded(model: Model, setup: TrainingSetup) -> Offloaded:
    """Bytes that the fullest rank offloads during training.

    Leaves out: loading; pinned blocks of weights from ``zero.Init`` that PyTorch keeps for reuse; checkpoints.
    Source: derived, from ``offloaded_by_zero12``, ``offloaded_by_zero3`` and ``offloaded_by_fsdp2``.
    """
    if not offloads(setup.mesh):
        return Offloaded(0, 0, 0)
    if setup.mesh.strategy.is_fsdp:
        return offloaded_by_fsdp2(model, setup)
    if setup.mesh.strategy.shards_weights:
        return offloaded_by_zero3(model, setup)
    return offloaded_by_zero12(model, setup)


def node_bytes(model: Model, setup: TrainingSetup) -> tuple[int, int]:
    """Bytes of host memory and of NVMe that all ranks of one machine offload.

    Source: derived, from ``offloaded`` and ``ranks_of_a_node``.
    """
    rest, ranks = offloaded(model, setup), ranks_of_a_node(setup.mesh)
    return ranks * rest.host, ranks * rest.nvme


def _state_bytes(optimisation: Optimisation) -> int:
    what_if = optimisation.optim_state_dtype
    return STATES * (what_if.bytes if what_if is not None else FLOAT32_BYTES)


def offloaded_by_zero12(model: Model, setup: TrainingSetup) -> Offloaded:
    """Stages 1 and 2: the rank's partition n of the float32 weights, their gradients and states. Bytes.

        pinned    4 n weights,  4 n gradients,  p n weights in transit,  p · the largest tensor
        pageable  8 n states    p: 2 under bf16 or fp16; with accumulation another p n, pinned tensor by tensor

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``__init__`` (``temp_grad_buffer_for_cpu_offload``,
    ``param_buffer_of_bit16_for_cpu_offload_groups``), ``initialize_optimizer_states`` and
    ``async_accumulate_grad_in_cpu_via_gpu``.
    """
    part, size = partition(model, setup), computed_width(setup.precision)
    tensors = trained_elements(model, setup.adapters)
    blocks = (FLOAT32_BYTES * part, FLOAT32_BYTES * part, size * part, size * max(tensors))
    locked = sum(map(pinned, blocks))
    if setup.batch.gradient_accumulation_steps > 1:
        accumulated = sum(pinned(size * count) for count in tensors)
        locked += ceil_div(accumulated, setup.mesh.num_gpus)
    return Offloaded(locked, _state_bytes(setup.optimisation) * part, 0)


def offloaded_by_zero3(model: Model, setup: TrainingSetup) -> Offloaded:
    """Stage 3: a rank's partition n of trained weights, in sub-groups of 10⁹ elements, and of frozen ones. Bytes.

        optimizer, cpu    pinned 4 n float32 gradients and p n incoming ones; pageable 4 n weights, 8 n states, and the
                          16-bit weights of a sub-group before they go to the GPU
        optimizer, nvme   pinned 4 buffers of a sub-group in float32, and p n; on disk 4 n weights, 8 n states, 4 n
                          gradients
        weights, cpu      pinned p n, and the partition of each frozen tensor
        weights, nvme     pinned 5 buffers of 10⁸ elements, p n for n up to 10⁹, else a sub-group too; on disk all

    Leaves out: the alignment of files, and partitions below 1 MiB, which are not written.
    Source: DeepSpeed 0.19.6, runtime/zero/stage3.py, ``_create_fp32_partitions``, ``initialize_optimizer_states``,
    ``_setup_for_real_optimizer``, ``_create_param_groups_fp16_flat_cpu_memory``; partition_parameters.py,
    ``_partition_param``; runtime/swap_tensor/optimizer_utils.py and partitioned_param_swapper.py, ``__init__``.
    """
    size, groups = computed_width(setup.precision), sub_groups(model, setup.adapters, setup.mesh)
    part, largest = sum(groups), max(groups)
    locked = pageable = files = 0
    states = _state_bytes(setup.optimisation)
    if setup.mesh.offload_optimizer is not Offload.NONE:
        locked += pinned(size * part)
    if setup.mesh.offload_optimizer is Offload.CPU:
        locked += sum(pinned(FLOAT32_BYTES * group) for group in groups)
        pageable += (FLOAT32_BYTES + states) * part
        if setup.mesh.offload_param is Offload.NONE and size < FLOAT32_BYTES:
            pageable += size * largest
    elif setup.mesh.offload_optimizer is Offload.NVME:
        locked += OPTIMIZER_BUFFERS * FLOAT32_BYTES * largest
        files += (2 * FLOAT32_BYTES + states) * part
    frozen = rank_parts(model, setup.adapters, setup.mesh.num_gpus, trained=False)
    if setup.mesh.offload_param is Offload.CPU:
        locked += pinned(size * part) + sum(n * pinned(size * t) for t, n in frozen)
    elif setup.mesh.offload_param is Offload.NVME:
        tensors = model_tensors(model, setup.adapters)
        longest = ceil_div(max(tensor.numel for tensor in tensors), setup.mesh.num_gpus)
        locked += WEIGHT_BUFFERS * size * max(WEIGHT_BUFFER, longest)
        locked += pinned(size * min(part, KEPT_FROM_NVME))
        locked += size * largest if part > KEPT_FROM_NVME else 0
        files += size * (part + sum(n * t for t, n in frozen))
    return Offloaded(locked, pageable, files)


def _shards(model: Model, setup: TrainingSetup) -> Iterator[tuple[ModelTensor, int, int]]:
    """Under FSDP 2 each tensor that is offloaded, and of its shard on the first rank the elements and bytes."""
    for tensor in chain.from_iterable(sharded_groups(model, setup.adapters)):
        if isinstance(SHARDED.placement(tensor, setup), Shard):
            shard = SHARDED.held(tensor, setup)
            count = elements(shard.shape)
            yield tensor, count, count * shard.width


def offloaded_by_fsdp2(model: Model, setup: TrainingSetup) -> Offloaded:
    """FSDP2 with ``CPUOffloadPolicy``: every shard and its gradient pinned, its two states pageable. Bytes.

        Σ shards  ⌈s⌉ + (⌈s⌉ + 2 s if trained)     ⌈ ⌉: the next power of two

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``_init_sharded_param`` (``pin_memory``),
    _fsdp_collectives.py, ``foreach_reduce`` (a non-blocking copy to the CPU is pinned); optim/adam.py.
    """
    locked = pageable = 0
    for tensor, count, size in _shards(model, setup):
        locked += tensor.alike * pinned(size) * (2 if tensor.trained else 1)
        if tensor.trained:
            what_if = setup.optimisation.optim_state_dtype
            state = what_if.bytes * count if what_if is not None else size
            pageable += tensor.alike * STATES * state
    return Offloaded(locked, pageable, 0)


def moved(model: Model, setup: TrainingSetup) -> OffloadTraffic:
    """What one rank moves in an optimizer step of m micro-steps, with n its partition: bytes, and elements updated.

        stage 1, 2      4 n down and p n up; stage 2 accumulates on the host, another 2 (m - 1) · p n + p n
        stage 3         m · 2 p n and 4 n, as gradients come back from the host for their norm; p n up unless weights
                        are offloaded, when every gather copies them: m · 2 · p · all
        fsdp            m · 2 · shards up (once with fsdp_grad_op), their gradients down
        nvme            reads 4 n weights, 8 n states, 4 n gradients, writes the same; weights at every gather

    Error: small tensors stay gathered, and FSDP2's head does from forward to backward; both are counted as moved.
    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``copy_grads_in_partition`` and ``step``; stage3.py,
    ``partition_grads`` and ``_reassign_or_swap_out_partitioned_parameters``; partition_parameters.py,
    ``_all_gather_dtype``; torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``all_gather_inputs``.
    """
    if not offloads(setup.mesh):
        return OffloadTraffic(0, 0, 0, 0, 0)
    if setup.mesh.strategy.is_fsdp:
        return _moved_shards(model, setup)
    times, size = setup.batch.gradient_accumulation_steps, computed_width(setup.precision)
    if setup.mesh.strategy.partitions_flat:
        part = partition(model, setup)
        on_host = 1 if setup.mesh.strategy.reduces_after_backward else times
        again = (2 * on_host - 1) * size * part if times > 1 else 0
        return OffloadTraffic(FLOAT32_BYTES * part + again, size * part, 0, 0, part)
    return _moved_parts(model, setup)


def _of_any_batch(setup: TrainingSetup) -> TrainingSetup:
    """The setup without what changes nothing that a rank holds."""
    return replace(setup, batch=Batch(), run=TrainingRun())


@lru_cache(maxsize=256)
def _shards_of_rank(model: Model, setup: TrainingSetup) -> tuple[int, int, int]:
    """Bytes of all shards of a rank, bytes and elements of the trained ones."""
    gathered = trained = stepped = 0
    for tensor, count, size in _shards(model, setup):
        gathered += tensor.alike * size
        if tensor.trained:
            trained += tensor.alike * size
            stepped += tensor.alike * count
    return gathered, trained, stepped


@lru_cache(maxsize=256)
def _parts_of_rank(model: Model, setup: TrainingSetup) -> tuple[int, int]:
    """Elements of a rank's partition of trained and of unpacked frozen weights at stage 3."""
    frozen = rank_parts(model, setup.adapters, setup.mesh.num_gpus, trained=False)
    whole = sum(sub_groups(model, setup.adapters, setup.mesh))
    return whole, sum(count * alike for count, alike in frozen)


def _moved_shards(model: Model, setup: TrainingSetup) -> OffloadTraffic:
    passes = 1 if setup.mesh.strategy.keeps_gathered else PASSES
    gathered, trained, stepped = _shards_of_rank(model, _of_any_batch(setup))
    brought = setup.batch.gradient_accumulation_steps * passes * gathered
    return OffloadTraffic(brought + trained, 0, 0, 0, stepped)


def _moved_parts(model: Model, setup: TrainingSetup) -> OffloadTraffic:
    times, size = setup.batch.gradient_accumulation_steps, computed_width(setup.precision)
    part, frozen = _parts_of_rank(model, _of_any_batch(setup))
    running = after = read = written = stepped = 0
    if setup.mesh.offload_optimizer is not Offload.NONE:
        stepped = part
        running += (2 * times * size + FLOAT32_BYTES) * part
        after += size * part if setup.mesh.offload_param is Offload.NONE else 0
    if setup.mesh.offload_optimizer is Offload.NVME:
        states = (2 * FLOAT32_BYTES + _state_bytes(setup.optimisation)) * part
        read, written = read + states, written + states
    if setup.mesh.offload_param is not Offload.NONE:
        running += times * PASSES * size * (part + frozen)
        after += FLOAT32_BYTES * part if setup.mesh.offload_optimizer is Offload.NONE else 0
    if setup.mesh.offload_param is Offload.NVME:
        away = max(0, part - KEPT_FROM_NVME)
        read += times * PASSES * size * (away + frozen)
        written += size * away
    return OffloadTraffic(running, after, read, written, stepped)
