"""Counts the work of an answer, which is steadier than a clock on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from estimator.parallel.zero3_coordinator import Coordinator
from estimator.step.blocks import Log, Plays
from estimator.tape.program import Program

A_SECOND = 100_000
"""Units of work that take a second of a processor, at 10 microseconds each (measured: 5 to 15)."""
REQUESTS = 100
"""Requests to the simulated allocator that take as long as a unit (measured: 0.05 to 0.1 microseconds each)."""


class Work:
    """What has been done so far."""

    def __init__(self) -> None:
        self.events = 0
        """Allocations and releases of played steps."""
        self.calls = 0
        """Calls of modules whose weights ZeRO-3 gathers."""
        self.requests = 0
        """To the simulated allocator."""

    @property
    def units(self) -> int:
        """All of these together."""
        return self.events + self.calls + self.requests // REQUESTS


@contextmanager
def counted() -> Iterator[Work]:
    """The work inside the block; what is remembered from before costs none."""
    work = Work()
    play, trace, ask = Program.__init__, Coordinator._stretch, Plays._play

    def played(self: Program, tape: Any, recording: Any) -> None:
        work.events += len(tape.events)
        play(self, tape, recording)

    def traced(self: Coordinator, module_calls: Any) -> Any:
        work.calls += len(module_calls)
        return trace(self, module_calls)

    def asked(self: Plays, log: Log, limit: int) -> Any:
        work.requests += log.length
        return ask(self, log, limit)

    with (
        patch.object(Program, "__init__", played),
        patch.object(Coordinator, "_stretch", traced),
        patch.object(Plays, "_play", asked),
    ):
        yield work
