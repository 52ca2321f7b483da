"""A part of the frozen answers, in every run of the tests; ``python -m tests.corpus check`` asks for all."""

from __future__ import annotations

from tests.corpus.answers import PARTS, answer, digests, read
from tests.corpus.draw import drawn, setup_of
from tests.rows import for_each

COUNT = 150
"""Our choice: they take seven seconds."""


@for_each("line", read(COUNT))
def test_an_answer_is_what_it_was(line):
    """If it changed on purpose, ``python -m tests.corpus write`` and the changelog say so."""
    written = {part: digest for part, digest in line.items() if part != "setup"}
    assert digests(answer(setup_of(line))) == written


def test_the_frozen_answers_cover_what_can_be_asked():
    """Expected: every word of the three lists that shape a run, and four in five answered."""
    lines = read()
    setups = [setup_of(line) for line in lines]
    for key, words in {"objective": 9, "strategy": 8, "method": 3}.items():
        assert len({setup[key] for setup in setups if key in setup}) >= words
    answered = [line for line in lines if "memory" in line]
    assert len(lines) >= 5_000
    assert len(answered) > 0.75 * len(lines)


def test_a_digest_changes_with_a_byte_and_not_with_the_last_digit_of_a_float():
    whole = {"peak_bytes": 1, "total_hours_low": 0.1 + 0.2, "assumptions": ["One."]}
    assert digests(whole) == digests({**whole, "total_hours_low": 0.3})
    changed = digests({**whole, "peak_bytes": 2})
    assert [part for part in PARTS if changed.get(part) != digests(whole).get(part)] == ["memory"]


def test_a_number_draws_the_same_setup_again():
    assert drawn(7) == drawn(7) != drawn(8)
