"""A quantity known by its two ends, with the arithmetic that keeps them apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from estimator.values.arithmetic import Number, larger, total

End_co = TypeVar("End_co", covariant=True)


@dataclass(frozen=True, slots=True, init=False)
class Range(Generic[End_co]):
    """The low and the high end of a quantity that is not negative.

    Ends are numbers, what stands for a number in a record, arrays of numbers, or a record of them such as ``Work``. The
    low end of seconds is the fast one and that of a rate the slow one, so a quotient takes opposite ends.

    >>> Range(6.0, 8.0) / Range(2.0, 4.0)
    Range(low=1.5, high=4.0)
    >>> 1 + 2 * Range(1.0, 2.0) * Range(1.0, 3.0)
    Range(low=3.0, high=13.0)
    """

    low: End_co
    high: End_co

    __array_ufunc__ = None  # an array leaves the arithmetic to the range, as a number does

    def __init__(self, low: End_co, high: End_co) -> None:
        _set_low(self, low)
        _set_high(self, high)

    def __iter__(self) -> Iterator[End_co]:
        return iter((self.low, self.high))

    def __add__(self: Range[Number], other: Range[Number] | Number) -> Range[Number]:
        if isinstance(other, Range):
            return Range(self.low + other.low, self.high + other.high)
        return Range(self.low + other, self.high + other)

    __radd__ = __add__

    def __mul__(self: Range[Number], other: Range[Number] | Number) -> Range[Number]:
        if isinstance(other, Range):
            return Range(self.low * other.low, self.high * other.high)
        return Range(self.low * other, self.high * other)

    __rmul__ = __mul__

    def __truediv__(self: Range[float], other: Range[float] | float) -> Range[float]:
        if isinstance(other, Range):
            return Range(self.low / other.high, self.high / other.low)
        return Range(self.low / other, self.high / other)

    def __rtruediv__(self: Range[float], other: float) -> Range[float]:
        return Range(other / self.high, other / self.low)

    def __contains__(self: Range[float], number: float) -> bool:
        return self.low <= number <= self.high

    def at_least(self: Range[Number], least: Number) -> Range[Number]:
        """Both ends, raised to a minimum.

        >>> Range(1.0, 3.0).at_least(2.0)
        Range(low=2.0, high=3.0)
        """
        return Range(larger(least, self.low), larger(least, self.high))

    @classmethod
    def of(cls, both: Any) -> Range[Any]:
        """A quantity that is known: both ends are the same.

        >>> Range.of(2.0)
        Range(low=2.0, high=2.0)
        """
        return cls(both, both)

    @property
    def middle(self: Range[float]) -> float:
        """As far from the one end as from the other by ratio.

        >>> Range(1.0, 4.0).middle
        2.0
        """
        return math.sqrt(self.low * self.high)


_set_low, _set_high = (vars(Range)[name].__set__ for name in ("low", "high"))
"""Twice as fast as the ``__init__`` that a frozen dataclass gets, which is most of the time of an operation."""


def by_end(function: Callable[..., Any], *ranges: Range[Any]) -> Range[Any]:
    """A function of several quantities, at all their low ends and at all their high ends.

    >>> by_end(lambda host, gpu: max(0.0, host - gpu), Range(3.0, 5.0), Range(1.0, 9.0))
    Range(low=2.0, high=0.0)
    """
    return Range(*map(function, *ranges))


def summed(ranges: Iterable[Range[float]]) -> Range[float]:
    """The sum of ranges, each end as ``total`` adds.

    >>> summed([Range(1.0, 2.0), Range(0.5, 4.0)])
    Range(low=1.5, high=6.0)
    """
    listed = list(ranges)
    return Range(total([part.low for part in listed]), total([part.high for part in listed]))
