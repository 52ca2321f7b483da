"""A recording gives for other inputs what the computation would have given."""

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
def test_it_evaluates_to_what_the_same_steps_give_or_says_that_they_would_differ(a, b, c, d):
    recording = Recording()
    results = computation(recording.symbol(a), recording.symbol(b))
    table = recording.evaluate([c, d])
    turned_alike = ((a * b < b**2 + 7), a <= 100) == ((c * d < d**2 + 7), c <= 100)
    assert recording.holds(table) or not turned_alike
    assume(recording.holds(table))
    assert [table[recording.position(result)] for result in results] == list(computation(c, d))


def test_a_symbol_is_equal_to_its_number_and_never_a_key():
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
def test_what_cannot_be_noted_raises_rather_than_forgets(operation):
    with pytest.raises(TypeError):
        operation(Recording().symbol(8))
