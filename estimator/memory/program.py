"""What a tape wrote down, read as stretches with their heights; for the sizes it was played with, or for others.

A model's step does the same things at another batch, length or rank: only the sizes differ. So a step is played once
with symbols (``estimator.memory.symbols``) and read as often as a slider moves, some fifty times as fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple

from estimator.memory.symbols import Recording
from estimator.memory.tape import COMPONENTS, Mark, Tape

Bytes = list[int]
"""Bytes, one entry a component, in the order of ``COMPONENTS``."""


class Segment(NamedTuple):
    """A stretch of the step, by what it adds to what was alive when it began."""

    mark: Mark
    rise: Bytes
    """At its highest moment."""
    net: Bytes
    """At its end; negative where more went than came."""
    operation: str
    """The operator that made the highest moment."""


class Program:
    """The events of one played step, with sizes that can be computed anew."""

    def __init__(self, tape: Tape, recording: Recording) -> None:
        self.recording = recording
        self.marks = tape.marks
        self._operations = [event.operation for event in tape.events]
        self._components = [event.component for event in tape.events]
        self._signs = [event.sign for event in tape.events]
        places = [recording.position(event.size) for event in tape.events]
        self._places = sorted(set(places))
        slot = {place: index for index, place in enumerate(self._places)}
        self._slots = [slot[place] for place in places]
        # both signs of every size side by side, so that one itemgetter writes down all events
        negative = len(self._places)
        self._deltas = itemgetter(
            *(
                slot if sign > 0 else negative + slot
                for slot, sign in zip(self._slots, self._signs, strict=True)
            )
        )
        self._ends = [
            *(after.start for _, after in pairwise(self.marks)),
            len(self._signs),
        ]
        self._changes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    def segments(self, inputs: Sequence[int]) -> list[Segment] | None:
        """The stretches at these sizes; None where a size would have led another way through the step."""
        table = self.recording.evaluate(inputs)
        if not self.recording.holds(table):
            return None
        sizes = [table[place] for place in self._places]
        totals = list(accumulate(self._deltas(sizes + [-size for size in sizes]), initial=0))
        return [
            self._segment(mark, end, totals, sizes)
            for mark, end in zip(self.marks, self._ends, strict=True)
        ]

    def _segment(
        self, mark: Mark, end: int, totals: Sequence[int], sizes: Sequence[int]
    ) -> Segment:
        # totals[i] is what is alive before event i
        reached = totals[mark.start : end + 1]
        highest = mark.start + reached.index(max(reached))
        return Segment(
            mark,
            self._between(mark.start, highest, sizes),
            self._between(mark.start, end, sizes),
            self._operations[highest - 1] if highest > mark.start else mark.operation,
        )

    def _between(self, start: int, stop: int, sizes: Sequence[int]) -> Bytes:
        """What the events of a range change, by component."""
        change = [0] * len(COMPONENTS)
        for component, slot, times in self._change(start, stop):
            change[component] += times * sizes[slot]
        return change

    def _change(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        if (start, stop) not in self._changes:
            count: Counter[tuple[int, int]] = Counter()
            for event in range(start, stop):
                count[self._components[event], self._slots[event]] += self._signs[event]
            self._changes[start, stop] = [
                (component, slot, times) for (component, slot), times in count.items() if times
            ]
        return self._changes[start, stop]
