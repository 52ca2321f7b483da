"""Live bytes and segments of a tape, for tests that play one themselves."""

from __future__ import annotations

from estimator.tape.program import Program, Segment
from estimator.tape.symbols import Recording
from estimator.tape.tape import COMPONENTS, Tape


def played(tape: Tape) -> list[Segment]:
    """The segments of a tape at the sizes it was played with."""
    sized = Program(tape, Recording()).at(())
    return sized.segments


def alive(tape: Tape) -> list[int]:
    """Live bytes of a tape, by component."""
    sizes = [0] * len(COMPONENTS)
    for sign, size, component, *_ in tape.events:
        sizes[component] += sign * size
    return sizes
