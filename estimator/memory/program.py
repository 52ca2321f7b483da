"""What a tape wrote down, read as stretches with their heights; for the sizes it was played with, or for others.

A model's step does the same things at another batch, length or rank: only the sizes differ. So a step is played once
with symbols (``estimator.memory.symbols``) and read as often as a slider moves, some fifty times as fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
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


Reason = tuple[int, str, int]
"""Component, operator and size of equal tensors."""


class Program:
    """The events of one played step, with sizes that can be computed anew."""

    def __init__(self, tape: Tape, recording: Recording) -> None:
        self.recording = recording
        self.marks = tape.marks
        self.operations = [event.operation for event in tape.events]
        self.components = [event.component for event in tape.events]
        self.signs = [event.sign for event in tape.events]
        places = [recording.position(event.size) for event in tape.events]
        self._places = sorted(set(places))
        slot = {place: index for index, place in enumerate(self._places)}
        self.slots = [slot[place] for place in places]
        # both signs of every size side by side, so that one itemgetter writes down all events
        negative = len(self._places)
        self._deltas = itemgetter(
            *(
                slot if sign > 0 else negative + slot
                for slot, sign in zip(self.slots, self.signs, strict=True)
            )
        )
        self.ends = [
            *(after.start for _, after in pairwise(self.marks)),
            len(self.signs),
        ]
        self._changes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    def at(self, inputs: Sequence[int]) -> Sized | None:
        """The program at these sizes; None where a size would have led another way through the step."""
        table = self.recording.evaluate(inputs)
        if not self.recording.holds(table):
            return None
        sizes = [table[place] for place in self._places]
        alive = accumulate(self._deltas(sizes + [-size for size in sizes]), initial=0)
        return Sized(self, sizes, list(alive))

    def change(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """What the events of a range change: component, slot of the size, and how many more come than go."""
        if (start, stop) not in self._changes:
            count: Counter[tuple[int, int]] = Counter()
            for event in range(start, stop):
                count[self.components[event], self.slots[event]] += self.signs[event]
            self._changes[start, stop] = [
                (component, slot, times) for (component, slot), times in count.items() if times
            ]
        return self._changes[start, stop]


class Sized:
    """A program at one set of sizes: first in bare heights, then by component for those who ask."""

    def __init__(self, program: Program, sizes: Sequence[int], alive: Sequence[int]) -> None:
        self._program = program
        self._sizes = sizes
        self._tops: list[int] = []
        """For each stretch the event before which most is alive."""
        self.heights: list[tuple[int, int]] = []
        """For each stretch what it adds at its highest and at its end, in bytes."""
        for mark, end in zip(program.marks, program.ends, strict=True):
            # alive[i] is what is alive before event i
            reached = alive[mark.start : end + 1]
            top = max(reached)
            self._tops.append(mark.start + reached.index(top))
            self.heights.append((top - reached[0], reached[-1] - reached[0]))

    @cached_property
    def segments(self) -> list[Segment]:
        """The stretches by component."""
        program = self._program
        return [
            Segment(
                mark,
                self._between(mark.start, top),
                self._between(mark.start, end),
                program.operations[top - 1] if top > mark.start else mark.operation,
            )
            for mark, end, top in zip(program.marks, program.ends, self._tops, strict=True)
        ]

    def add_held(self, held: Counter[Reason], segment: int, times: int, *, to_top: bool) -> None:
        """Add what a stretch makes and frees, by what made it, ``times`` over; to its highest moment or to its end."""
        program = self._program
        stop = self._tops[segment] if to_top else program.ends[segment]
        for event in range(program.marks[segment].start, stop):
            reason = (
                program.components[event],
                program.operations[event],
                self._sizes[program.slots[event]],
            )
            held[reason] += times * program.signs[event]

    def _between(self, start: int, stop: int) -> Bytes:
        change = [0] * len(COMPONENTS)
        for component, slot, times in self._program.change(start, stop):
            change[component] += times * self._sizes[slot]
        return change
