"""Floats that record their arithmetic and comparisons, as the symbols of a tape do for ints."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from estimator.tape.symbols import Recording
from estimator.values.arithmetic import StandIn
from estimator.values.range import Range


class Recorded(StandIn):
    """A number that records its arithmetic and comparisons; other operations raise ``TypeError``."""

    __slots__ = ("place", "recording", "value")

    def __init__(self, recording: Recording, place: int, value: float) -> None:
        self.recording, self.place, self.value = recording, place, value

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return self._decided(operator.ne, 0)

    def __ceil__(self) -> Recorded:
        return self.recorded(_ceil, self, 0)

    def __neg__(self) -> Recorded:
        return self.recorded(operator.sub, 0, self)

    def recorded(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Recorded:
        """A function of two numbers as one operation."""
        place = self.recording.computed(function, left, right).position
        return Recorded(self.recording, place, function(_value(left), _value(right)))

    def _decided(self, compare: Callable[[Any, Any], bool], other: Any) -> bool:
        outcome = bool(compare(self.value, _value(other)))
        self.recording.decided(compare, self, other, outcome)  # type: ignore[arg-type]  # by its place
        return outcome


def _ceil(number: Any, _: Any) -> Any:
    return np.ceil(number)


def _value(number: Any) -> Any:
    return number.value if isinstance(number, Recorded) else number


def _arithmetic(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    def forward(self: Recorded, other: Any) -> Any:
        if isinstance(other, Range):  # which takes the number end by end
            return NotImplemented
        return self.recorded(function, self, other)

    def backward(self: Recorded, other: Any) -> Any:
        return self.recorded(function, other, self)

    return forward, backward


def _comparison(compare: Callable[[Any, Any], bool]) -> Any:
    return lambda self, other: self._decided(compare, other)


_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod")
}
for _name, _function in _ARITHMETIC.items():
    _forward, _backward = _arithmetic(_function)
    setattr(Recorded, f"__{_name}__", _forward)
    setattr(Recorded, f"__r{_name}__", _backward)
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Recorded, f"__{_name}__", _comparison(getattr(operator, _name)))


class RealRecording(Recording):
    """A recording of floats."""

    def input(self, value: float) -> Recorded:
        """An input. All inputs come before the first operation."""
        self.inputs += 1
        return Recorded(self, self.inputs - 1, value)

    def position(self, number: Any) -> int:
        """Index of a number in the table that ``evaluate`` returns."""
        return number.place if isinstance(number, Recorded) else super().position(number)
