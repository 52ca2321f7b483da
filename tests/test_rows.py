"""A test over rows runs for each, and fails with all that fail."""

from __future__ import annotations

import pytest

from tests.rows import for_each


def test_a_failing_row_is_named_and_the_others_still_run():
    seen = []

    @for_each("number, word", [(1, "one"), (2, "three"), (3, "three"), (4, "three")])
    @for_each("twice", [2])
    def claim(number: int, word: str, twice: int) -> None:
        seen.append(number * twice)
        assert len(word) == {1: 3, 2: 3}.get(number, 5)

    with pytest.raises(ExceptionGroup, match="1 of 4 rows") as failed:
        claim()
    assert seen == [2, 4, 6, 8]
    assert failed.value.exceptions[0].__notes__ == ["for (2, 'three')"]


def test_no_row_is_no_test():
    with pytest.raises(AssertionError, match="tests nothing"):
        for_each("it", [])(lambda one: None)()
