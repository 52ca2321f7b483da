"""What a tape wrote down, read as stretches with their heights; for the sizes it was played with, or for others.

A model's step does the same things at another batch, length or rank: only the sizes differ. So a step is played once
with symbols (``estimator.tape.symbols``) and read as often as a slider moves, some fifty times as fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise, zip_longest
from operator import itemgetter
from typing import NamedTuple

from estimator.tape.symbols import Recording
from estimator.tape.tape import COMPONENTS, Call, Event, Mark, Tape

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


class Written(NamedTuple):
    """What one GPU of several wrote down of a step."""

    events: Sequence[Event]
    marks: Sequence[Mark]
    calls: Sequence[Call] = ()


def written_by(tape: Tape, device: int) -> Written:
    """The part of a tape that one GPU wrote, its marks set anew (derived: sizes in bytes are the events' own)."""
    own = [event.device == device for event in tape.events]
    before = list(accumulate(own, initial=0))
    events = [event for event, is_own in zip(tape.events, own, strict=True) if is_own]
    if not events:  # it holds a module that makes nothing
        events = [Event(sign, 0, 0, "", device) for sign in (1, -1)]
    return Written(
        events,
        [
            _own(mark, before, after.start if after is not None else len(own))
            for mark, after in zip_longest(tape.marks, tape.marks[1:])
        ],
    )


def _own(mark: Mark, before: Sequence[int], end: int) -> Mark:
    start = before[mark.start]
    is_idle = end > mark.start and before[end] == start
    return mark._replace(
        start=start, operation="work on another GPU" if is_idle else mark.operation
    )


Reason = tuple[int, str, int]
"""Component, operator and size of equal tensors."""

Changes = Mapping[tuple[int, int], int]
"""By component and slot of the size: how many more tensors came than went."""


class Height(NamedTuple):
    """How high a stretch goes above what was alive when it began, in bytes."""

    before: int
    """How many events there are before it is highest."""
    rise: int
    net: int
    """What it adds at its end."""
    parts: tuple[tuple[int, int], ...] = ()
    """Between the calls of modules and at each of them, in turn: events before the highest moment, and its rise."""


class Program:
    """The events of one played step, with sizes that can be computed anew."""

    def __init__(self, tape: Tape | Written, recording: Recording) -> None:
        self.recording = recording
        self.marks = tape.marks
        self.operations = [event.operation for event in tape.events]
        self.components = [event.component for event in tape.events]
        self.signs = [event.sign for event in tape.events]
        places = [recording.position(event.size) for event in tape.events]
        self._places = sorted(set(places))
        slot = {place: index for index, place in enumerate(self._places)}
        self.slots = [slot[place] for place in places]
        starts = [*(mark.start for mark in self.marks), len(self.signs)]
        self.spans = list(pairwise(starts))
        """The first event of each stretch, and the first behind it."""
        self.calls: list[list[Call]] = [[] for _ in self.marks]
        """Of each stretch the modules that were called."""
        for call in tape.calls:
            self.calls[call.segment].append(call)
        self._wholes = {
            whole.key: recording.position(whole.elements)
            for call in tape.calls
            for whole in call.weights
        }
        # what comes and goes in each stretch: indices of sizes, or from behind of what is taken away
        shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        changes = [
            1 + slot if sign > 0 else -1 - slot
            for slot, sign in zip(self.slots, self.signs, strict=True)
        ]
        self._shapes = [
            shapes.setdefault(
                (tuple(changes[start:end]), tuple(call.start - start for call in calls)),
                len(shapes),
            )
            for (start, end), calls in zip(self.spans, self.calls, strict=True)
        ]
        """For each stretch which of the different ones it is: layers that are alike are added up once."""
        # a nothing at each end: before the first event, and because an itemgetter of one gives no tuple
        self._deltas = [(itemgetter(0, *shape, 0), cuts) for shape, cuts in shapes]
        self._changes: dict[tuple[int, int], Changes] = {}

    def at(self, inputs: Sequence[int]) -> Sized | None:
        """The program at these sizes; None where a size would have led another way through the step."""
        table = self.recording.evaluate(inputs)
        if not self.recording.holds(table):
            return None
        sizes = [table[place] for place in self._places]
        signed = [0, *sizes, *(-size for size in reversed(sizes))]
        heights = []
        for deltas, cuts in self._deltas:
            alive = list(accumulate(deltas(signed)))
            top = max(alive)
            parts = tuple(_parts(alive, cuts)) if self._wholes else ()
            heights.append(Height(alive.index(top), top, alive[-1], parts))
        wholes = {key: table[place] for key, place in self._wholes.items()}
        return Sized(self, sizes, [heights[shape] for shape in self._shapes], wholes)

    def change(self, start: int, stop: int) -> Changes:
        """What the events of a range change."""
        if (start, stop) not in self._changes:
            changes: Counter[tuple[int, int]] = Counter()
            for event in range(start, stop):
                changes[self.components[event], self.slots[event]] += self.signs[event]
            self._changes[start, stop] = {key: times for key, times in changes.items() if times}
        return self._changes[start, stop]

    def change_of_all(self, ranges: Iterable[tuple[int, int, int]]) -> Changes:
        """What the events of some ranges change together, those of each from its start to its stop so many times."""
        total: Counter[tuple[int, int]] = Counter()
        for start, stop, times in ranges:
            for key, count in self.change(start, stop).items():
                total[key] += times * count
        return {key: count for key, count in total.items() if count}


def _parts(alive: Sequence[int], cuts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Highest moments between the cuts, and the heights at them."""
    begin = 0
    for cut in cuts:
        yield _highest(alive, begin, cut)
        yield cut, alive[cut]
        begin = cut
    yield _highest(alive, begin, len(alive) - 2)  # the last is a nothing


def _highest(alive: Sequence[int], first: int, last: int) -> tuple[int, int]:
    top = max(range(first, last + 1), key=alive.__getitem__)
    return top, alive[top]


class Sized:
    """A program at one set of sizes: first in bare heights, then by component for those who ask."""

    def __init__(
        self,
        program: Program,
        sizes: Sequence[int],
        heights: Sequence[Height],
        wholes: Mapping[str, int],
    ) -> None:
        self._program = program
        self._sizes = sizes
        self.heights = heights
        self.wholes = wholes
        """Elements of each weight that modules are called with."""

    def top(self, segment: int) -> int:
        """The event before which most of a stretch is alive, the first such."""
        return self._program.spans[segment][0] + self.heights[segment].before

    def operation(self, segment: int, before: int | None = None) -> str:
        """The operator that makes a stretch's highest moment, or the last of so many events."""
        mark = self._program.marks[segment]
        top = self.top(segment) if before is None else mark.start + before
        return self._program.operations[top - 1] if top > mark.start else mark.operation

    @cached_property
    def segments(self) -> list[Segment]:
        """The stretches by component."""
        program = self._program
        return [
            Segment(
                mark,
                self.bytes_of(program.change(mark.start, self.top(segment))),
                self.bytes_of(program.change(*program.spans[segment])),
                self.operation(segment),
            )
            for segment, mark in enumerate(program.marks)
        ]

    def events(self, segment: int) -> Iterator[tuple[int, tuple[str, int, int], int]]:
        """What a stretch makes (1) and frees (-1), one after the other: operator, slot and component, and its bytes."""
        program = self._program
        for event in range(*program.spans[segment]):
            slot = program.slots[event]
            key = program.operations[event], slot, program.components[event]
            yield program.signs[event], key, self._sizes[slot]

    def add_held(
        self, held: Counter[Reason], segment: int, times: int, before: int | None = None
    ) -> None:
        """Add what a stretch makes and frees, by what made it, ``times`` over; up to its end, or so many events."""
        program = self._program
        start, end = program.spans[segment]
        for event in range(start, end if before is None else start + before):
            reason = (
                program.components[event],
                program.operations[event],
                self._sizes[program.slots[event]],
            )
            held[reason] += times * program.signs[event]

    def bytes_of(self, changes: Changes) -> Bytes:
        """What changes come to at these sizes, by component."""
        sizes, changed = self._sizes, [0] * len(COMPONENTS)
        for (component, slot), times in changes.items():
            changed[component] += times * sizes[slot]
        return changed
