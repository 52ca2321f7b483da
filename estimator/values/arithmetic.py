"""Whole-number arithmetic on bytes. Rounding up is ``ceil_div``, never a float."""

from __future__ import annotations

ALLOCATION_BLOCK_BYTES = 512
"""CUDA's caching allocator hands out multiples of 512 bytes: torch c10/core/AllocatorConfig.h, ``kMinBlockSize``."""


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient, rounded up.

    >>> ceil_div(1025, 512)
    3
    """
    return -(-dividend // divisor)


def allocated(size: int) -> int:
    """Bytes that torch's allocator counts for a tensor of ``size`` bytes.

    Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``round_size``.

    >>> allocated(1), allocated(512), allocated(513), allocated(0)
    (512, 512, 1024, 0)
    """
    block = ALLOCATION_BLOCK_BYTES
    return (size + (block - 1)) // block * block
