"""Whole-number arithmetic on bytes. Rounding up is ``ceil_div``, never a float."""

from __future__ import annotations

import math
from collections.abc import Iterable

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


def real(number: float) -> float:
    """A whole number as a float, as ``float`` makes it; what stands for a number in a record stays one.

    >>> real(3)
    3.0
    """
    return 1.0 * number


def total(numbers: Iterable[float]) -> float:
    """The sum, rounded once, as ``math.fsum``; recorded numbers, which are no floats, are added one by one.

    >>> total([0.1] * 10)
    1.0
    """
    listed = list(numbers)
    try:
        return math.fsum(listed)
    except TypeError:
        return sum(listed)
