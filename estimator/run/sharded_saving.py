"""What saving a sharded model takes on a GPU, on the hosts and on disk.

Inputs are plain numbers: bytes of weights and states over all ranks, bytes of the largest gathered tensor or module,
and the number of ranks. ``estimator.run.checkpoints`` provides them.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.values.arithmetic import ceil_div
from estimator.values.refusals import InputError, show


class Saving(NamedTuple):
    """Additional bytes that one save takes."""

    gpu_bytes: int
    """On the fullest GPU, in addition to weights and states."""
    rank0_host_bytes: int
    """On the host of rank 0, for that process."""
    other_host_bytes: int
    """On the host, for each other process."""
    disk_bytes: int
    """All files together."""


def fsdp_full(
    gathered: int, largest: int, exported: int, resumed: int, states: int, *, only_model: bool
) -> Saving:
    """FSDP with ``FULL_STATE_DICT``: every tensor is gathered on all GPUs and copied to rank 0's host. Bytes.

        GPU   the largest tensor (version 1: unit), unsharded, in the dtype of its shards (float32 if accelerate upcast
              them)
        host  rank 0: everything ``gathered``, including frozen weights, then all states; other ranks: nothing
        disk  exported (model.safetensors) + resumed (pytorch_model_fsdp.bin) + states; only the first with
        ``only_model``

    Source: torch 2.13, distributed/_state_dict_utils.py, ``_gather_state_dict`` (``cpu_offload``, rank 0 only);
    accelerate 1.15, utils/fsdp_utils.py, ``save_fsdp_model`` and ``save_fsdp_optimizer``, accelerator.py,
    ``get_state_dict``; transformers 5.23, trainer.py, ``save_model`` and ``_save_optimizer_and_scheduler``.

    >>> fsdp_full(gathered=400, largest=50, exported=400, resumed=400, states=800, only_model=False)
    Saving(gpu_bytes=50, rank0_host_bytes=800, other_host_bytes=0, disk_bytes=1600)
    """
    if only_model:
        return Saving(largest, gathered, 0, exported)
    return Saving(largest, max(gathered, states), 0, exported + resumed + states)


def fsdp_sharded(written: int, states: int, ranks: int, gathered: int = 0) -> Saving:
    """FSDP with ``SHARDED_STATE_DICT``: every rank copies its own shards to its host and writes them. Bytes.

        GPU gathered: nothing, except that version 1 gathers its units to shard them again
        host max(written, states) / ranks in every process,  disk written + states

    Source: accelerate 1.15, utils/dataclasses.py, ``set_state_dict_type`` (``offload_to_cpu=True``), and
    utils/fsdp_utils.py, ``_prepare_sd_options``; torch 2.13, distributed/_state_dict_utils.py,
    ``_offload_state_dict_to_cpu``. Trainer's own ``save_model`` then writes nothing.

    >>> fsdp_sharded(written=400, states=800, ranks=4)
    Saving(gpu_bytes=0, rank0_host_bytes=200, other_host_bytes=200, disk_bytes=1200)
    """
    own = ceil_div(max(written, states), ranks)
    return Saving(gathered, own, own, written + states)


def tensor_parallel(weights: int, largest: int) -> Saving:
    """Ranks that divide every layer: each gathers one tensor after the other and copies it to its host. Bytes.

        GPU largest,  host all weights in every process,  disk weights

    ``largest``: a whole tensor; twice, where it is divided by its inputs, since the ranks' parts are joined in a copy.
    Only the weights are saved: Trainer has no checkpoint to resume from.

    Source: transformers 5.23, distributed/tensor_parallel.py, ``gather_state_dict_for_save``; trainer.py, ``__init__``
    (``is_distributed_loading_by_transformers``); torch 2.13, distributed/_functional_collectives.py,
    ``_maybe_view_chunk_cat``.

    >>> tensor_parallel(weights=400, largest=50)
    Saving(gpu_bytes=50, rank0_host_bytes=400, other_host_bytes=400, disk_bytes=400)
    """
    return Saving(largest, weights, weights, weights)


def zero_replicated(weights: int, written: int, states: int, storage: int) -> Saving:
    """DeepSpeed ZeRO 1 and 2: every rank clones the weights to its host and writes its own states. Bytes.

        GPU 0,  host all weights on every rank (accelerate calls all of them),  disk 2 · written + states

    ``states``: float32 master weights and moments of all ranks, 0 with ``save_only_model``; ``storage``: their largest
    flat tensor, which passes through the host separately. Trained weights are written twice: by
    ``save_pretrained`` and in ``mp_rank_00_model_states.pt``.

    Source: accelerate 1.15, accelerator.py, ``get_state_dict``; DeepSpeed 0.19.6, checkpoint/utils.py,
    ``clone_tensors_for_torch_save``, runtime/engine.py, ``save_checkpoint`` (``exclude_frozen_parameters``).

    >>> zero_replicated(weights=200, written=200, states=1200, storage=100)
    Saving(gpu_bytes=0, rank0_host_bytes=200, other_host_bytes=200, disk_bytes=1600)
    """
    own = max(weights, storage)
    return Saving(0, own, own, written + (written + states if states else 0))


def zero3_gathered(written: int, largest_module: int, states: int, storage: int) -> Saving:
    """DeepSpeed ZeRO 3 that gathers 16-bit weights: with ``zero3_save_16bit_model``, and always with PEFT. Bytes.

        GPU   the largest module's own weights, one module at a time
        host  rank 0: what is written; every process: the largest flat tensor of the states
        disk  written + states

    Source: DeepSpeed 0.19.6, runtime/engine.py, ``_zero3_consolidated_16bit_state_dict`` (moved to the host on rank 0);
    transformers 5.23, trainer.py, ``save_model`` (adapters: ``exclude_frozen_parameters``).

    >>> zero3_gathered(written=200, largest_module=50, states=1200, storage=100)
    Saving(gpu_bytes=50, rank0_host_bytes=200, other_host_bytes=100, disk_bytes=1400)
    """
    other = storage if states else 0
    return Saving(largest_module, max(written, other), other, written + states)


def zero3_divided(states: int, storage: int) -> Saving:
    """DeepSpeed ZeRO 3 by default: nothing is gathered, and only float32 partitions are written. Bytes.

        GPU 0,  host the largest flat tensor in every process,  disk states

    ``states`` include the float32 weights, which zero_to_fp32.py turns into a model. ``save_only_model`` changes
    nothing: Trainer falls back to DeepSpeed's full checkpoint.

    Source: transformers 5.23, trainer.py, ``save_model``; DeepSpeed 0.19.6, runtime/zero/stage3.py,
    ``_rigid_state_dict``; torch 2.13, serialization.py, ``_save`` (each storage through the host).

    >>> zero3_divided(states=1200, storage=100)
    Saving(gpu_bytes=0, rank0_host_bytes=100, other_host_bytes=100, disk_bytes=1200)
    """
    return Saving(0, storage, storage, states)


def write_seconds(disk_bytes: int, bytes_per_second: float) -> float:
    """Seconds to write a checkpoint at a disk's speed, at best. Trainer waits meanwhile.

    Raises ``ValueError`` for a speed that is not above 0. Source: derived.

    >>> write_seconds(3 * 10**9, 1.5e9)
    2.0
    """
    if not bytes_per_second > 0:
        raise InputError(
            f"bytes_per_second must be above 0, not {show(bytes_per_second)}; give the disk's speed."
        )
    return disk_bytes / bytes_per_second
