"""What a process holds on the GPU beside the model's tensors: workspaces, the CUDA context, slack."""

from __future__ import annotations

from estimator.specs import Gpu

MIB = 2**20
HANDLES = 2
"""The forward pass and autograd's thread each have a cuBLAS handle with a workspace of its own."""
WORKSPACE_BYTES = 8 * MIB + 128 * 1024
"""A handle's default, ``:4096:2:16:8``: 2 × 4 MiB + 8 × 16 KiB; torch 2.13, aten/src/ATen/cuda/CublasHandlePool.cpp."""
WORKSPACE_HOPPER_BYTES = 32 * MIB
"""On compute capability 9.0: 8 × 4 MiB; the same file."""

CONTEXT_LOW_BYTES = 256 * MIB
CONTEXT_HIGH_BYTES = 750 * MIB
"""Context and loaded kernels: process total less torch's own, in public out-of-memory messages (0.25 GiB on A10G and
L4 to 0.70 GiB on B200), plus 50 MiB for bitsandbytes, flash attention and Triton modules. Collected, not measured here.
"""
SLACK_HIGH = (3, 100)
"""Allocator slack at the high end, a fraction of the peak: reserved less allocated in the same messages."""


def workspace_bytes(gpu: Gpu | None) -> int:
    """Bytes of cuBLAS workspaces, which torch's counter includes, the same at every moment.

    Source: torch 2.13, aten/src/ATen/cuda/CublasHandlePool.cpp, ``parseChosenWorkspaceSize``.

    >>> workspace_bytes(None)
    17039360
    """
    hopper = gpu is not None and gpu.compute_capability == "9.0"
    return HANDLES * (WORKSPACE_HOPPER_BYTES if hopper else WORKSPACE_BYTES)


def need_bytes(peak: int, paged: int) -> tuple[int, int]:
    """Bytes that the card must have, low and high: the peak, the CUDA context, and the allocator's slack.

    Paged optimizer states may be evicted to the host, so they count at the high end only.

    Source: context and slack as collected above; torch 2.13, c10/cuda/CUDACachingAllocator.cpp.
    """
    numerator, denominator = SLACK_HIGH
    return (
        peak + CONTEXT_LOW_BYTES,
        peak + CONTEXT_HIGH_BYTES + peak * numerator // denominator + paged,
    )
