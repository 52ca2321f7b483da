"""Which candidates no other beats: the Pareto front, and what the brackets of two say of each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.grid.arrays import Numbers, Some
from estimator.grid.runs import Reals


def front_of(dollars: Reals, hours: Reals, headroom: Reals) -> Numbers:
    """Places of the points that no other beats: none is as cheap, as fast and as roomy, and better in one of them.

    Cheapest first, then fastest, then roomiest. Points that are equal in all three stay together; NaN is left out.
    In this order the first of those that remain is always of the front, and takes with it what it beats.

    Source: derived; the order makes one pass per point of the front enough (Kung, Luccio, Preparata, JACM 22, 1975).

    >>> front_of(np.array([1.0, 2, 2, 3]), np.array([5.0, 4, 6, 4]), np.array([0.1, 0.1, 0.5, 0.1])).tolist()
    [0, 1, 2]
    """
    known = np.flatnonzero(~(np.isnan(dollars) | np.isnan(hours) | np.isnan(headroom)))
    order = np.lexsort((-headroom[known], hours[known], dollars[known]))
    left = known[order]
    cost = np.stack([dollars[left], hours[left], -headroom[left]])
    found: list[Numbers] = []
    while len(left):
        first = cost[:, 0]
        same = (cost == first[:, None]).all(axis=0)
        found.append(left[same])
        # every other costs at least as many dollars
        stays = (cost[1] < first[1]) | (cost[2] < first[2])
        left, cost = left[stays], cost[:, stays]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def stairs_of(front: Numbers, hours: Reals) -> Numbers:
    """Of a front, cheapest first, the points that are faster than every cheaper one; places in the same arrays.

    Source: derived.

    >>> stairs_of(np.array([0, 1, 2]), np.array([5.0, 4.0, 6.0])).tolist()
    [0, 1]
    """
    found = []
    fastest = np.inf
    for place in front.tolist():
        if hours[place] < fastest:
            found.append(place)
            fastest = hours[place]
    return np.array(found, np.int64)


def overlap(low: Reals, high: Reals, place: int) -> Some:
    """Whose bracket has a number in common with that of one.

    Source: derived.

    >>> overlap(np.array([1.0, 2, 4]), np.array([2.0, 3, 5]), 0).tolist()
    [True, True, False]
    """
    met: Some = (low <= high[place]) & (high >= low[place])
    return met


def equal_to(ends: Sequence[Reals], place: int) -> Some:
    """Which points cannot be told from one: the brackets of hours and those of dollars both overlap.

    ``ends``: hours low and high, dollars low and high. The brackets are as wide as published runs of unlike setups
    differ; two setups of one card differ by less, so their middles still say which is likely better.

    Source: derived.

    >>> one = [np.array([1.0, 2, 9])] * 2
    >>> equal_to([*one, *one], 1).tolist()
    [False, True, False]
    """
    hours_low, hours_high, dollars_low, dollars_high = ends
    return overlap(hours_low, hours_high, place) & overlap(dollars_low, dollars_high, place)
