"""Which candidates no other beats: the Pareto front, and what the brackets of two say of each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.grid.arrays import Numbers, Reals, Some
from estimator.values.range import Range


def front_of(dollars: Reals, hours: Reals, headroom: Reals) -> Numbers:
    """Places of the points that no other beats: none is as cheap, as fast and as roomy, and better in one of them.

    Cheapest first, then fastest, then roomiest. Points that are equal in all three stay together; NaN is left out.

    Source: derived. Only a point that costs no more can beat another (Kung, Luccio, Preparata, JACM 22, 1975); so
    blocks of points that double in size, cheapest first, are compared with the staircase of hours and headroom before.

    >>> front_of(np.array([1.0, 2, 2, 3]), np.array([5.0, 4, 6, 4]), np.array([0.1, 0.1, 0.5, 0.1])).tolist()
    [0, 1, 2]
    """
    cost = (dollars, hours, -headroom)
    known = np.flatnonzero(~(np.isnan(dollars) | np.isnan(hours) | np.isnan(headroom)))
    places = known[np.argsort(dollars[known], kind="stable")]
    kept = np.empty(0, np.int64)
    begin, size = 0, BLOCK
    while begin < len(places):
        block = places[begin : begin + size]
        _, *others = cost
        beaten = _beaten([column[block] for column in others], [column[kept] for column in others])
        kept = np.concatenate([kept, _unbeaten(cost, block[~beaten])])
        begin, size = begin + size, 2 * size
    return _unbeaten(cost, kept)


BLOCK = 1024
"""Points of the first block: ours."""


def _beaten(cost: Sequence[Reals], before: Sequence[Reals]) -> Some:
    """Which points an earlier one surely beats: as low in both of two costs, and lower in one.

    Points that are equal to an earlier one in both are left: they may be equal to it in all.
    """
    rising = np.argsort(before[0], kind="stable")
    first = before[0][rising]
    least = np.concatenate([[np.inf], np.minimum.accumulate(before[1][rising])])
    lower = least[np.searchsorted(first, cost[0], "left")] <= cost[1]
    as_low = least[np.searchsorted(first, cost[0], "right")] < cost[1]
    beaten: Some = lower | as_low
    return beaten


def _unbeaten(costs: Sequence[Reals], places: Numbers) -> Numbers:
    """Those of some places that no other of them beats, in the order of ``front_of``.

    In this order the first of those that remain is always one of them, and takes with it what it beats.
    """
    cost = np.stack([column[places] for column in costs])
    order = np.lexsort(cost[::-1])
    left, cost = places[order], cost[:, order]
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


def overlap(ends: Range[Reals], place: int) -> Some:
    """Whose bracket has a number in common with that of one.

    Source: derived.

    >>> overlap(Range(np.array([1.0, 2, 4]), np.array([2.0, 3, 5])), 0).tolist()
    [True, True, False]
    """
    low, high = ends
    met: Some = (low <= high[place]) & (high >= low[place])
    return met


def equal_to(hours: Range[Reals], dollars: Range[Reals], place: int) -> Some:
    """Which points cannot be told from one: the brackets of hours and those of dollars both overlap.

    The brackets are as wide as published runs of unlike setups
    differ; two setups of one card differ by less, so their middles still say which is likely better.

    Source: derived.

    >>> one = Range.of(np.array([1.0, 2, 9]))
    >>> equal_to(one, one, 1).tolist()
    [False, True, False]
    """
    return overlap(hours, place) & overlap(dollars, place)
