"""A recording evaluated with other inputs gives what the computation itself would give."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from estimator.tape.symbols import Recording
from estimator.values.arithmetic import allocated

SIZE = st.integers(0, 10**6)


def computation(a, b):
    rows = a * b
    largest = max(rows, b**2 + 7)
    return allocated(rows * 3), (largest - a) // 5 - b, -(-rows // 64), min(a, 100), 10 - a


@given(a=SIZE, b=SIZE, c=SIZE, d=SIZE)
def test_a_recording_matches_the_computation_or_says_it_does_not_hold(a, b, c, d):
    recording = Recording()
    results = computation(recording.symbol(a), recording.symbol(b))
    table = recording.evaluate([c, d])
    turned_alike = ((a * b < b**2 + 7), a <= 100) == ((c * d < d**2 + 7), c <= 100)
    assert recording.holds(table) or not turned_alike
    assume(recording.holds(table))
    assert [table[recording.position(result)] for result in results] == list(computation(c, d))


def test_a_symbol_equals_its_number_and_cannot_be_hashed():
    symbol = Recording().symbol(3)
    assert symbol == 3
    assert symbol + 1 == 4
    with pytest.raises(TypeError):
        hash(symbol)


@pytest.mark.parametrize(
    "operation",
    [float, str, abs, round, lambda n: n / 2, lambda n: n % 2, lambda n: n * 0.5, lambda n: n**3],
    ids=["float", "str", "abs", "round", "quotient", "remainder", "times a float", "cube"],
)
def test_operations_that_cannot_be_recorded_raise(operation):
    with pytest.raises(TypeError):
        operation(Recording().symbol(8))
