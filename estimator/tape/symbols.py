"""Integers that record their arithmetic, so that a computation can be replayed for other inputs.

A :class:`Symbol` is an ``int`` that records every sum, product, quotient and comparison it takes part in. A
:class:`Recording` computes the results for other inputs (``evaluate``), provided every comparison still comes out the
same (``holds``). An operation that cannot be recorded raises instead of returning a plain int. Python hides two from
it, ``range`` and a float on the left, so tests compare each program's replay with a fresh run. torch.compile treats
dynamic shapes the same way: a trace and guards.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, SupportsIndex

from estimator.values.arithmetic import StandIn

Arithmetic = Callable[[int, int], int]
Comparison = Callable[[int, int], bool]


class Recording:
    """The operations and comparisons of one computation, in order."""

    def __init__(self) -> None:
        self.inputs = 0
        self.steps: dict[tuple[Arithmetic, int, int], int] = {}
        """Each operation, on two places of the table, and the place of its result; in order."""
        self._results: dict[tuple[Arithmetic, int, int], Symbol] = {}
        self.constants: dict[int, int] = {}
        self.guards: dict[tuple[Comparison, int, int], bool] = {}
        """Each comparison of two places of the table, and how it came out."""

    def symbol(self, value: int) -> Symbol:
        """An input. All inputs come before the first operation."""
        assert not self.steps
        self.inputs += 1
        return Symbol(value, self, self.inputs - 1)

    def position(self, number: int) -> int:
        """Index of a number in the table that ``evaluate`` returns; constants have negative indices, from its end."""
        if isinstance(number, Symbol):
            return number.position
        return self.constants.setdefault(number, -1 - len(self.constants))

    def computed(
        self, function: Arithmetic, left: int, right: int, plain: Arithmetic | None = None
    ) -> Symbol:
        """Record an operation and return its result; equal operations share one entry.

        ``plain``: what computes the number itself from symbols or numbers; None: the record has no numbers of its own.
        """
        key = (
            function,
            left.position if left.__class__ is Symbol else self.position(left),
            right.position if right.__class__ is Symbol else self.position(right),
        )
        found = self._results.get(key)
        if found is None:
            place = self.steps.setdefault(key, self.inputs + len(self.steps))
            value = 0 if plain is None else plain(left, right)
            found = self._results[key] = Symbol(value, self, place)
        return found

    def close(self) -> None:
        """Nothing more is recorded: the results, which hold the recording as it holds them, are not needed."""
        self._results = {}

    def decided(self, compare: Comparison, left: int, right: int, outcome: bool) -> bool:
        """Record the outcome of a comparison and return it."""
        key = (compare, self.position(left), self.position(right))
        if key[1] != key[2]:
            self.guards[key] = outcome
        return outcome

    def evaluate(self, inputs: Sequence[int]) -> list[int]:
        """Every number of the recording, for these inputs."""
        table = [*inputs, *([0] * len(self.steps)), *reversed(self.constants)]
        for place, (function, left, right) in enumerate(self.steps, self.inputs):
            table[place] = function(table[left], table[right])
        return table

    def holds(self, table: Sequence[int]) -> bool:
        """Whether every comparison comes out as recorded."""
        return all(
            compare(table[left], table[right]) == outcome
            for (compare, left, right), outcome in self.guards.items()
        )


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least ``number`` (a count from 1 up); recorded like a sum.

    Source: triton 3.6, ``triton.next_power_of_2``.

    >>> [next_power_of_2(number) for number in (1, 2, 3, 4096, 4097)]
    [1, 2, 4, 4096, 8192]
    """
    if isinstance(number, Symbol):
        return number.recorded(power_of_2_from, number, 0)
    return power_of_2_from(number, 0)


def power_of_2_from(number: int, _: int) -> int:
    """The same as an operation on two numbers, of which the second says nothing (a count).

    Source: triton 3.6, ``triton.next_power_of_2``.
    """
    return 1 << (number - 1).bit_length()


class Symbol(int, StandIn):
    """An int that knows its place in a recording."""

    recording: Recording
    position: int

    def __new__(cls, value: int, recording: Recording, position: int) -> Symbol:
        """Attach a recording and a position to a number."""
        symbol = super().__new__(cls, value)
        symbol.recording = recording
        symbol.position = position
        return symbol

    def recorded(self, function: Arithmetic, left: int, right: int) -> Symbol:
        """A function of two numbers as one operation."""
        return self.recording.computed(
            function, left, right, lambda x, y: function(int.__add__(x, 0), int.__add__(y, 0))
        )

    def __add__(self, other: int) -> Symbol:
        return self.recording.computed(operator.add, self, other, int.__add__)

    def __radd__(self, other: int) -> Symbol:
        return self.recording.computed(operator.add, other, self, int.__add__)

    def __sub__(self, other: int) -> Symbol:
        return self.recording.computed(operator.sub, self, other, int.__sub__)

    def __rsub__(self, other: int) -> Symbol:
        return self.recording.computed(operator.sub, other, self, int.__sub__)

    def __mul__(self, other: int) -> Symbol:
        return self.recording.computed(operator.mul, self, other, int.__mul__)

    def __rmul__(self, other: int) -> Symbol:
        return self.recording.computed(operator.mul, other, self, int.__mul__)

    def __floordiv__(self, other: int) -> Symbol:
        return self.recording.computed(operator.floordiv, self, other, int.__floordiv__)

    def __rfloordiv__(self, other: int) -> Symbol:
        return self.recording.computed(operator.floordiv, other, self, int.__floordiv__)

    def __neg__(self) -> Symbol:
        return self.recording.computed(operator.sub, 0, self, int.__sub__)

    def __pow__(self, exponent: int, _modulo: None = None) -> Symbol:  # type: ignore[override]
        if exponent != 2:
            self._refuse()
        return self * self

    def _decided(self, compare: Comparison, other: object, outcome: object) -> bool:
        assert isinstance(other, int)
        assert isinstance(outcome, bool)
        return self.recording.decided(compare, self, other, outcome)

    def __eq__(self, other: object) -> bool:
        return self._decided(operator.eq, other, int.__eq__(self, other))

    def __ne__(self, other: object) -> bool:
        return self._decided(operator.ne, other, int.__ne__(self, other))

    def __lt__(self, other: int) -> bool:
        return self._decided(operator.lt, other, int.__lt__(self, other))

    def __le__(self, other: int) -> bool:
        return self._decided(operator.le, other, int.__le__(self, other))

    def __gt__(self, other: int) -> bool:
        return self._decided(operator.gt, other, int.__gt__(self, other))

    def __ge__(self, other: int) -> bool:
        return self._decided(operator.ge, other, int.__ge__(self, other))

    def __bool__(self) -> bool:
        return self._decided(operator.ne, 0, int.__ne__(self, 0))

    __hash__ = None  # type: ignore[assignment]  # a cache must not mistake a symbol for its number

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            "This operation on a size is not recorded; add it to estimator.tape.symbols."
        )

    __index__: Callable[[SupportsIndex], int] = _refuse  # type: ignore[assignment]
    __int__ = __float__ = __str__ = __format__ = _refuse
    __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __divmod__ = _refuse
    __rdivmod__ = __rpow__ = __lshift__ = __rshift__ = __and__ = __or__ = __round__ = __abs__ = (
        _refuse
    )
