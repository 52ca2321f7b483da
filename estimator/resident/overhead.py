"""What a process holds on the GPU in addition to the model's tensors: workspaces, CUDA context, allocator slack."""

from __future__ import annotations

from typing import NamedTuple

from estimator.values.facets.mesh import Mesh
from estimator.values.range import Range
from estimator.values.results import Shown
from estimator.values.specs import Gpu

MIB = 2**20
HANDLES = 2
"""The forward pass and autograd's thread each have a cuBLAS handle with a workspace of its own."""
WORKSPACE_BYTES = 8 * MIB + 128 * 1024
"""A handle's default, ``:4096:2:16:8``: 2 × 4 MiB + 8 × 16 KiB; torch 2.13, aten/src/ATen/cuda/CublasHandlePool.cpp."""
WORKSPACE_HOPPER_BYTES = 32 * MIB
"""On compute capability 9.0: 8 × 4 MiB; the same file."""

STACK_BYTES = 1024
"""A thread's stack in local memory: the default of ``cudaLimitStackSize``. A context reserves one for each thread that
the card can hold; NVIDIA, CUDA C++ Programming Guide, "Local Memory", and CUDA Driver API, ``cuCtxSetLimit``."""
THREADS_PER_MULTIPROCESSOR = {
    **dict.fromkeys(("6.0", "6.1", "6.2", "7.0", "7.2", "8.0", "9.0", "10.0", "10.3"), 2048),
    **dict.fromkeys(("8.6", "8.7", "8.9", "11.0", "12.0", "12.1"), 1536),
    "7.5": 1024,
}
"""The most resident threads by compute capability; NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities",
table "Technical Specifications per Compute Capability"."""
CONTEXT_OF_STACKS = ((7, 4), (11, 4))
"""A context as fractions of the stacks of all threads, low and high.
collected: data/out_of_memory.csv, the rows whose card is known.
"""
CONTEXT_MEDIAN = (5, 2)
"""The median of the same rows, of a context and its kernels together, as a fraction of the stacks."""
KERNELS_HIGH_BYTES = 200 * MIB
"""Loaded kernels of torch, cuBLAS and the libraries beside them, at most, beyond the fraction above; the same rows."""
CONTEXT_UNKNOWN = Range(100 * MIB, 750 * MIB)
"""A context where the multiprocessors are unknown or the card is another vendor's: the messages' whole
range, rounded outwards."""
COMMUNICATOR_LOW_BYTES = 256 * MIB
"""NCCL's buffers of one group of GPUs: 1.06 GB per process on 8 × H100, minus a context of 750 MiB (NVIDIA/nccl
1685)."""
COMMUNICATOR_HIGH_BYTES = ((2, 544 * MIB), (4, 688 * MIB), (65_536, 1600 * MIB))
"""The maximum by GPUs in the group: 544 MB for 2 and 688 for 3 and 4 on A100 with NVLink (NVIDIA/nccl 964), 1.6 GB for
more (864). It grows with the number of channels, so with the link's speed, but not beyond two nodes (986)."""
NOTHING = Range(0, 0)
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


def context_bytes(gpu: Gpu | None, processes: int = 1) -> Range[int]:
    """Bytes of the CUDA context and the loaded kernels of a card's processes, outside torch's counter.

    It grows with the card: the driver reserves the stack of every thread that the card can hold.

    Source: ``CONTEXT_OF_STACKS``, collected, not measured here.

    >>> context_bytes(Gpu(name="card", memory_bytes=2**34, compute_capability="7.5", multiprocessors=40))
    Range(low=73400320, high=325058560)
    >>> context_bytes(None, 2)
    Range(low=209715200, high=1572864000)
    """
    stacks = _stack_bytes(gpu)
    if stacks is None:
        return processes * CONTEXT_UNKNOWN
    low, high = (stacks * above // below for above, below in CONTEXT_OF_STACKS)
    return processes * Range(low, high + KERNELS_HIGH_BYTES)


def median_context_bytes(gpu: Gpu | None, processes: int = 1) -> int:
    """Bytes of the same as most often read; half-way between low and high where the multiprocessors are unknown.

    Source: ``CONTEXT_MEDIAN``, collected, not measured here.

    >>> median_context_bytes(Gpu(name="card", memory_bytes=2**34, compute_capability="7.5", multiprocessors=40))
    104857600
    """
    above, below = CONTEXT_MEDIAN
    stacks = _stack_bytes(gpu)
    return processes * (sum(CONTEXT_UNKNOWN) // 2 if stacks is None else stacks * above // below)


def _stack_bytes(gpu: Gpu | None) -> int | None:
    threads = THREADS_PER_MULTIPROCESSOR.get(gpu.compute_capability) if gpu else None
    if gpu is None or gpu.multiprocessors is None or threads is None:
        return None
    return gpu.multiprocessors * threads * STACK_BYTES


def exchange_bytes(mesh: Mesh) -> Range[int]:
    """Bytes of NCCL's buffers per GPU, which torch's counter does not include; none in one process.

    Ranks of a layer (``tp_size``) and replicas of shards (hsdp) have communicators of their own beside the shards'.

    Source: NVIDIA/nccl issues 864, 964 and 1685, readings on A100 and H100, collected, not measured here.

    >>> exchange_bytes(Mesh())
    Range(low=0, high=0)
    """
    if mesh.replicas * mesh.tp_size == 1:
        return NOTHING
    groups = [of for of in (mesh.shard_ranks, mesh.tp_size, mesh.dp_replicate_size) if of > 1]
    high = sum(
        next(size for most, size in COMMUNICATOR_HIGH_BYTES if ranks <= most) for ranks in groups
    )
    return Range(len(groups) * COMMUNICATOR_LOW_BYTES, high)


def need_bytes(
    peak: int,
    paged: int,
    context: Range[int],
    exchange: Range[int] = NOTHING,
    engine: int = 0,
) -> Range[int]:
    """Bytes that the card must have: the peak, the CUDA context, NCCL's buffers, the allocator's slack.

    ``context``: ``context_bytes`` of the card. ``engine``: of the peak, what an inference engine took at its start, of
    which no slack is counted. Paged optimizer states may be evicted to the host, so they count at the high end only.

    Source: context and slack as collected above; torch 2.13, c10/cuda/CUDACachingAllocator.cpp.
    """
    numerator, denominator = SLACK_HIGH
    slack = (peak - engine) * numerator // denominator
    return peak + context + exchange + Range(0, slack + paged)


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
    return Shown(*(shown if gpu is None else min(shown, gpu.memory_bytes) for shown in held))
