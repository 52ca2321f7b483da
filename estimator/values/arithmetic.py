"""Whole-number arithmetic on bytes. Rounding up is ``ceil_div``, never a float."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

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


class StandIn:
    """What stands for a number while a formula is recorded. It knows the arithmetic of numbers, and these two."""

    def larger(self, other: Any) -> Any:
        """The larger of two, as one operation of the record."""
        raise NotImplementedError

    def smaller(self, other: Any) -> Any:
        """The smaller of two, likewise."""
        raise NotImplementedError


def larger(left: float, right: float) -> float:
    """``max`` of two numbers, which a record holds as one operation, whichever is the larger.

    >>> larger(2, 3)
    3
    """
    for one, other in ((left, right), (right, left)):
        if isinstance(one, StandIn):
            found: float = one.larger(other)
            return found
    return max(left, right)


def smaller(left: float, right: float) -> float:
    """``min`` of two numbers, likewise.

    >>> smaller(2, 3)
    2
    """
    for one, other in ((left, right), (right, left)):
        if isinstance(one, StandIn):
            found: float = one.smaller(other)
            return found
    return min(left, right)


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
