"""What saving takes where several ranks share a model: on a GPU, on the hosts, on the disk.

Plain numbers go in: bytes of the whole model's weights and states as they are kept over all ranks, the bytes of the
largest tensor or module that is gathered, and the number of ranks. Whoever knows the strategy knows these.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.arithmetic import ceil_div

COPIED_AHEAD_BYTES = 10_000_000
"""Torch 2.13, distributed/checkpoint/filesystem.py, ``FileSystemWriter(per_thread_copy_ahead=10_000_000)``."""


class ShardedSave(NamedTuple):
    """What one save takes beside what a step leaves there. All in bytes."""

    gpu_bytes: int
    """On the fullest GPU, beside its weights and states."""
    rank0_host_bytes: int
    """On the host of rank 0, for that process."""
    other_host_bytes: int
    """On the host, for each other process."""
    disk_bytes: int
    """Of all files together."""


def fsdp_full(weights: int, largest: int, states: int, ranks: int) -> ShardedSave:
    """FSDP with ``FULL_STATE_DICT``: every tensor is gathered on all GPUs, and goes to rank 0's host. Bytes.

        GPU   the largest tensor whole, in the dtype of its shards (float32 where accelerate has upcast them)
        host  weights, then all states, on rank 0; nothing on the others
        disk  2 · weights + states: Trainer writes model.safetensors and, to go on from, pytorch_model_fsdp.bin

    A single rank gathers without the host: all weights a second time on the GPU, and then all states.
    Source: torch 2.13, distributed/_state_dict_utils.py, ``_gather_state_dict`` (``cpu_offload``, rank 0 only);
    accelerate 1.15, utils/fsdp_utils.py, ``save_fsdp_model`` and ``save_fsdp_optimizer`` (offload where
    ``num_processes > 1``), accelerator.py, ``get_state_dict``; transformers 5.23, trainer.py, ``save_model`` and
    ``_save_optimizer_and_scheduler``.

    >>> fsdp_full(weights=400, largest=50, states=800, ranks=4)
    ShardedSave(gpu_bytes=50, rank0_host_bytes=800, other_host_bytes=0, disk_bytes=1600)
    """
    disk = 2 * weights + states
    if ranks == 1:
        return ShardedSave(max(weights, states), min(largest, weights), 0, disk)
    return ShardedSave(largest, max(weights, states), 0, disk)


def fsdp_sharded(weights: int, states: int) -> ShardedSave:
    """FSDP with ``SHARDED_STATE_DICT``: every rank writes its own shards, a little copied ahead. Bytes.

        GPU 0,  host 10 MB a process,  disk weights + states

    Source: torch 2.13, distributed/checkpoint/filesystem.py, ``_OverlappingCpuLoader``.
    """
    return ShardedSave(0, COPIED_AHEAD_BYTES, COPIED_AHEAD_BYTES, weights + states)


def zero_replicated(weights: int, states: int, ranks: int) -> ShardedSave:
    """DeepSpeed ZeRO 1 and 2: every rank clones the weights to its host, each writes its states. Bytes.

        GPU 0,  host weights on every rank (accelerate asks all of them),  disk 2 · weights + states

    ``states`` are float32 master weights and moments of all ranks. Weights are written twice: by ``save_pretrained``
    and in ``mp_rank_00_model_states.pt``.
    Source: accelerate 1.15, accelerator.py, ``get_state_dict``; DeepSpeed 0.19, checkpoint/utils.py,
    ``clone_tensors_for_torch_save``, runtime/engine.py, ``save_checkpoint``.
    """
    own = max(weights, ceil_div(states, ranks))
    return ShardedSave(0, own, own, 2 * weights + states)


def zero3(
    weights: int, largest_module: int, states: int, ranks: int, *, gathers_16bit: bool
) -> ShardedSave:
    """DeepSpeed ZeRO 3. Bytes.

        ``stage3_gather_16bit_weights_on_model_save``   on                              off (the default)
        GPU     the largest module's own weights, gathered                              0
        host    the 16-bit weights on rank 0, states / ranks on the others              states / ranks
        disk    weights + states                                                        states

    Without it a checkpoint holds the float32 master weights among its states, and zero_to_fp32.py makes a model of it.
    Source: DeepSpeed 0.19, runtime/engine.py, ``_zero3_consolidated_16bit_state_dict`` (one module after another,
    moved to the host on rank 0); transformers 5.23, trainer.py, ``save_model``.

    >>> zero3(weights=200, largest_module=50, states=1200, ranks=4, gathers_16bit=True)
    ShardedSave(gpu_bytes=50, rank0_host_bytes=300, other_host_bytes=300, disk_bytes=1400)
    """
    own = ceil_div(states, ranks)
    if not gathers_16bit:
        return ShardedSave(0, own, own, states)
    return ShardedSave(largest_module, max(weights, own), own, weights + states)


def write_seconds(disk_bytes: int, bytes_per_second: float) -> float:
    """Seconds to write a checkpoint at a disk's speed, at best: nothing else is done meanwhile by Trainer.

    Raises ``ValueError`` for a speed that is not above 0. Source: derived.

    >>> write_seconds(3 * 10**9, 1.5e9)
    2.0
    """
    if not bytes_per_second > 0:
        raise ValueError(
            f"bytes_per_second must be above 0, not {bytes_per_second!r}; give the disk's speed."
        )
    return disk_bytes / bytes_per_second
