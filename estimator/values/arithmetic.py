"""Whole-number arithmetic on bytes. Rounding up is ``ceil_div``, never a float."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)

ALLOCATION_BLOCK_BYTES = 512
"""CUDA's caching allocator hands out multiples of 512 bytes: torch c10/core/AllocatorConfig.h, ``kMinBlockSize``."""


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient, rounded up.

    >>> ceil_div(1025, 512)
    3
    """
    return -(-dividend // divisor)


class StandIn:
    """What stands for a number while a formula is recorded."""

    def recorded(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        """A function of two numbers, of which this is one, as one operation of the record."""
        raise NotImplementedError


def allocated(size: int) -> int:
    """Bytes that torch's allocator counts for a tensor of ``size`` bytes.

    Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``round_size``.

    >>> allocated(1), allocated(512), allocated(513), allocated(0)
    (512, 512, 1024, 0)
    """
    if isinstance(size, StandIn):
        found: int = size.recorded(allocated_from, size, 0)
        return found
    return allocated_from(size, 0)


def allocated_from(size: int, _: int) -> int:
    """The same as an operation on two numbers, of which the second says nothing (bytes).

    Source: as ``allocated``.
    """
    block = ALLOCATION_BLOCK_BYTES
    return (size + (block - 1)) // block * block


class Operation:
    """A function of two whole numbers that a record holds as one operation; results are remembered.

    For what depends on few numbers and takes thousands of sums: a record that held each sum would take as many to read.

    >>> squares = Operation(lambda left, right: left**2 + right**2, lambda left, right: left**2 + right**2)
    >>> squares.of(3, 4), squares(3, 4)
    (25, 25)
    """

    def __init__(
        self, function: Callable[[int, int], int], at_most: Callable[[int, int], int]
    ) -> None:
        self._function = function
        self.at_most = at_most
        """An upper bound of the absolute result for numbers up to these."""
        self._known: dict[tuple[int, int], int] = {}

    def __call__(self, left: int, right: int) -> int:
        """The result for two numbers."""
        if (left, right) not in self._known:
            self._known[left, right] = self._function(left, right)
        return self._known[left, right]

    def of(self, left: int, right: int) -> int:
        """The same, recorded where one of the two stands for a number."""
        for one in (left, right):
            if isinstance(one, StandIn):
                found: int = one.recorded(self, left, right)
                return found
        return self(left, right)


def larger(left: Number, right: Number) -> Number:
    """``max`` of two numbers, which a record holds as one operation, whichever is the larger.

    >>> larger(2, 3)
    3
    """
    for one in (left, right):
        if isinstance(one, StandIn):
            found: Number = one.recorded(max, left, right)
            return found
    return max(left, right)


def smaller(left: Number, right: Number) -> Number:
    """``min`` of two numbers, likewise.

    >>> smaller(2, 3)
    2
    """
    for one in (left, right):
        if isinstance(one, StandIn):
            found: Number = one.recorded(min, left, right)
            return found
    return min(left, right)


def root(number: float) -> float:
    """The square root of a number, which a record holds as one operation.

    >>> root(9.0)
    3.0
    """
    if isinstance(number, StandIn):
        found: float = number.recorded(power, number, 0.5)
        return found
    return power(number, 0.5)


def power(number: float, exponent: float) -> float:
    """A number raised to a power, as floats and arrays of floats are (no unit).

    Source: derived.
    """
    found: float = number**exponent
    return found


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


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements of a shape.

    >>> elements((4096, 1024))
    4194304
    """
    product = 1
    for size in shape:
        product *= size
    return product
