"""What a process holds on the GPU in addition to the model's tensors: workspaces, CUDA context, allocator slack."""

from __future__ import annotations

from typing import NamedTuple

from estimator.values.facets.mesh import Mesh
from estimator.values.results import Shown
from estimator.values.specs import Gpu, Strategy

MIB = 2**20
HANDLES = 2
"""The forward pass and autograd's thread each have a cuBLAS handle with a workspace of its own."""
WORKSPACE_BYTES = 8 * MIB + 128 * 1024
"""A handle's default, ``:4096:2:16:8``: 2 × 4 MiB + 8 × 16 KiB; torch 2.13, aten/src/ATen/cuda/CublasHandlePool.cpp."""
WORKSPACE_HOPPER_BYTES = 32 * MIB
"""On compute capability 9.0: 8 × 4 MiB; the same file."""

CONTEXT_LOW_BYTES = 100 * MIB
CONTEXT_HIGH_BYTES = 750 * MIB
"""Context and loaded kernels of one process: GPU memory in use minus what torch reserved, from public out-of-memory
messages (data/out_of_memory.csv: 119 MiB on a T4 to 528 on an L40S), rounded outwards, with extra room for newer cards
and the kernels of bitsandbytes, flash attention and Triton. Collected, not measured here.
"""
COMMUNICATOR_LOW_BYTES = 256 * MIB
"""NCCL's buffers of one group of GPUs: 1.06 GB per process on 8 × H100, minus a context of 750 MiB (NVIDIA/nccl
1685)."""
COMMUNICATOR_HIGH_BYTES = ((2, 544 * MIB), (4, 688 * MIB), (65_536, 1600 * MIB))
"""The maximum by GPUs in the group: 544 MB for 2 and 688 for 3 and 4 on A100 with NVLink (NVIDIA/nccl 964), 1.6 GB for
more (864). It grows with the number of channels, so with the link's speed, but not beyond two nodes (986)."""
SLACK_HIGH = (3, 100)
"""Allocator slack at the high end, a fraction of the peak: memory reserved but unallocated, in those messages whose
request was below 1 GiB. Larger requests may fail for other reasons than slack.
"""


class Shares(NamedTuple):
    """What nvidia-smi showed above the allocated peak, in percent of it: minimum, median and maximum over runs."""

    low: int
    middle: int
    high: int


CACHED_ON_ONE = Shares(1, 8, 33)
CACHED_ON_SEVERAL = Shares(5, 26, 55)
"""Cached blocks, context and communication together.
collected: data/measurements.csv, rows with both readings, 2026-11: 19 runs on one GPU, 30 sharded over several.
"""


def workspace_bytes(gpu: Gpu | None) -> int:
    """Bytes of cuBLAS workspaces, which torch's counter includes, the same at every moment.

    Source: torch 2.13, aten/src/ATen/cuda/CublasHandlePool.cpp, ``parseChosenWorkspaceSize``.

    >>> workspace_bytes(None)
    17039360
    """
    hopper = gpu is not None and gpu.compute_capability == "9.0"
    return HANDLES * (WORKSPACE_HOPPER_BYTES if hopper else WORKSPACE_BYTES)


def exchange_bytes(mesh: Mesh) -> tuple[int, int]:
    """Bytes of NCCL's buffers per GPU, low and high, which torch's counter does not include; none in one process.

    A group of replicas of shards (hsdp) has a communicator of its own beside the shards'.

    Source: NVIDIA/nccl issues 864, 964 and 1685, readings on A100 and H100, collected, not measured here.

    >>> exchange_bytes(Mesh())
    (0, 0)
    """
    if mesh.replicas == 1:
        return 0, 0
    groups = [mesh.shard_ranks]
    if mesh.strategy is Strategy.HSDP:
        groups.append(mesh.dp_replicate_size)
    high = sum(
        next(size for most, size in COMMUNICATOR_HIGH_BYTES if ranks <= most) for ranks in groups
    )
    return len(groups) * COMMUNICATOR_LOW_BYTES, high


def need_bytes(
    peak: int,
    paged: int,
    exchange: tuple[int, int] = (0, 0),
    engine: int = 0,
    processes: int = 1,
) -> tuple[int, int]:
    """Bytes that the card must have, low and high: the peak, the CUDA context, NCCL's buffers, the allocator's slack.

    ``engine``: of the peak, what an inference engine took at its start, of which no slack is counted. ``processes``:
    each has a context. Paged optimizer states may be evicted to the host, so they count at the high end only.

    Source: context and slack as collected above; torch 2.13, c10/cuda/CUDACachingAllocator.cpp.
    """
    numerator, denominator = SLACK_HIGH
    return (
        peak + processes * CONTEXT_LOW_BYTES + exchange[0],
        peak
        + processes * CONTEXT_HIGH_BYTES
        + exchange[1]
        + (peak - engine) * numerator // denominator
        + paged,
    )


def shown_bytes(peak: int, need_low: int, gpus: int, gpu: Gpu | None) -> Shown:
    """Bytes that nvidia-smi may show during the run: minimum, median and maximum.

    PyTorch's allocator keeps freed blocks and returns them only when a request would fail, so this reflects how much
    memory was available, not how much is needed. For a run that fits, it is between the need and the card's memory.

    Source: the spread of published runs (``CACHED_ON_ONE``, ``CACHED_ON_SEVERAL``); torch 2.13,
    c10/cuda/CUDACachingAllocator.cpp, ``release_cached_blocks``.

    >>> shown_bytes(100_000, 1000, 1, None)
    Shown(low=101000, middle=108000, high=133000)
    """
    shares = CACHED_ON_ONE if gpus == 1 else CACHED_ON_SEVERAL
    held = [max(need_low, peak * (100 + share) // 100) for share in shares]
    return Shown(*(it if gpu is None else min(it, gpu.memory_bytes) for it in held))
