"""Evaluates a recording for many inputs at once, in integer arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.tape.symbols import Recording, power_of_2_from
from estimator.values.arithmetic import ALLOCATION_BLOCK_BYTES, Operation, allocated_from

Numbers = NDArray[np.int64]
Some = NDArray[np.bool_]
Reals = NDArray[np.float64]
Table = list[Any]
"""Every number of a recording: an array over the cells, or an int shared by all cells."""


def _powers_of_2_from(numbers: Numbers, _: int) -> Numbers:
    bits = np.frexp(np.asarray(numbers, dtype=np.float64) - 1)[1]
    return np.left_shift(np.int64(1), bits.astype(np.int64))


def _allocated(sizes: Numbers, _: int) -> Numbers:
    block = ALLOCATION_BLOCK_BYTES
    return (
        sizes + (block - 1)
    ) & -block  # a block is a power of 2, and a division takes five times as long


IN_ARRAYS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    power_of_2_from: _powers_of_2_from,
    allocated_from: _allocated,
    max: np.maximum,
    min: np.minimum,
}
"""Operations of a recording that arrays spell differently; sums, products and quotients are the same for both."""
_BOUNDS: Mapping[Callable[..., int], Callable[[int, int], int]] = {
    operator.add: operator.add,
    operator.sub: operator.add,
    operator.mul: operator.mul,
    power_of_2_from: lambda left, _: 2 * left,
    allocated_from: allocated_from,
    max: max,
    min: max,
}
LARGEST = 2**63 - 1


def bound(recording: Recording, largest: Sequence[int]) -> int:
    """Upper bound of the absolute value of every number of a recording, in its own unit, for inputs up to these.

    Source: derived: |a ± b| ≤ |a| + |b|, |a // b| ≤ |a| / |b| + 1; a constant has its place from the table's end.

    >>> recording = Recording()
    >>> number = recording.symbol(3) * 5 - 7
    >>> bound(recording, [10])
    57
    """
    table = [*largest, *([0] * len(recording.steps)), *map(abs, reversed(recording.constants))]
    for place, (function, left, right) in enumerate(recording.steps, recording.inputs):
        if function is operator.floordiv:
            table[place] = table[left] // (max(1, table[right]) if right < 0 else 1) + 1
        else:
            most = function.at_most if isinstance(function, Operation) else _BOUNDS[function]
            table[place] = most(table[left], table[right])
    return max(table, default=0)


def evaluate(
    recording: Recording, inputs: Sequence[Any], wanted: Iterable[int] | None = None
) -> Table:
    """Every number of a recording, in its own unit, for many inputs at once; equals ``Recording.evaluate`` for each.

    ``wanted``: places in the table; what these do not depend on stays 0.

    Source: derived.
    """
    steps = list(enumerate(recording.steps, recording.inputs))
    if wanted is not None:
        steps = _leading_to(steps, set(wanted))
    table: Table = [*inputs, *([0] * len(recording.steps)), *reversed(recording.constants)]
    for place, (function, left, right) in steps:
        if isinstance(function, Operation):
            table[place] = _pair_by_pair(function, table[left], table[right])
        else:
            table[place] = IN_ARRAYS.get(function, function)(table[left], table[right])
    return table


def _pair_by_pair(function: Operation, left: Numbers | int, right: Numbers | int) -> Numbers:
    """One call for each pair of numbers; a part of a grid has few ranks, numbers of GPUs, batches and lengths."""
    both = np.stack(np.broadcast_arrays(left, right))
    pairs, places = np.unique(both.reshape(2, -1), axis=1, return_inverse=True)
    found = [function(*pair) for pair in pairs.T.tolist()]
    return np.array(found, np.int64)[places.ravel()].reshape(both.shape[1:])


Step = tuple[int, tuple[Callable[..., Any], int, int]]


def _leading_to(steps: Sequence[Step], wanted: set[int]) -> list[Step]:
    leading = []
    for place, step in reversed(steps):
        if place in wanted:
            wanted.update(step[1:])
            leading.append((place, step))
    return leading[::-1]


def holds(recording: Recording, table: Table, cells: int) -> Some:
    """Whether every comparison comes out as recorded, per cell; no unit.

    Source: derived, as ``Recording.holds``.
    """
    same = np.ones(cells, dtype=np.bool_)
    for (compare, left, right), outcome in recording.guards.items():
        same &= np.asarray(compare(table[left], table[right])) == outcome
    return same
