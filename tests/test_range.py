"""A range keeps its two ends apart, whatever they are made of."""

from __future__ import annotations

import operator
from itertools import product

import numpy as np
import pytest

from estimator.grid.reals import RealRecording
from estimator.values.range import Range, by_end, summed

BYTES, RATE = Range(6.0, 10.0), Range(2.0, 4.0)


@pytest.mark.parametrize("does", [operator.add, operator.mul, operator.truediv])
@pytest.mark.parametrize("other", [RATE, 3.0], ids=["range", "number"])
def test_what_is_in_two_ranges_is_in_their_result_and_its_ends_are_reached(does, other):
    ends = other if isinstance(other, Range) else (other, other)
    found = [does(one, another) for one, another in product(BYTES, ends)]
    assert does(BYTES, other) == Range(min(found), max(found))
    assert all(one in does(BYTES, other) for one in found)


def test_a_number_over_a_range_is_slow_where_the_rate_is():
    assert Range(2.0, 4.0) == 8 / RATE
    assert 8 + RATE == RATE + 8 == Range(10.0, 12.0)
    assert 8 * RATE == RATE * 8 == Range(16.0, 32.0)


def test_ends_may_be_arrays_or_what_stands_for_a_number():
    many = np.array([1.0, 2.0])
    for found in (many * RATE, RATE * many):
        assert [one.tolist() for one in found] == [[2.0, 4.0], [4.0, 8.0]]
    assert (np.float64(8) / RATE).high == 4.0
    recorded = RealRecording().input(8.0)
    assert [one.value for one in recorded / RATE] == [2.0, 4.0]
    assert [one.value for one in (recorded + RATE).at_least(11.0)] == [11.0, 12.0]


def test_low_ends_meet_low_ends_only():
    assert by_end(operator.sub, BYTES, RATE) == Range(4.0, 6.0)
    assert summed([BYTES, RATE, RATE]) == Range(10.0, 18.0)
    assert summed([]) == Range(0.0, 0.0)


def test_a_range_is_not_changed_and_equal_ones_are_one_key():
    with pytest.raises(AttributeError):
        BYTES.low = 7.0
    assert {BYTES, Range(6.0, 10.0)} == {BYTES}
    assert Range.of(2.0) == Range(2.0, 2.0)
