"""A recorded tape, split into segments with their heights, at the recorded sizes or at others.

At another batch, length or rank a step runs the same operators on other sizes. So a step is played once with symbols
(``estimator.tape.symbols``) and evaluated again for every new size, some fifty times faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise, zip_longest
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

from estimator.tape.scratch import Card
from estimator.tape.symbols import Recording
from estimator.tape.tape import COMPONENTS, CallMark, Event, HostCopy, Mark, Scratch, Tape

Bytes = list[int]
"""Bytes per component, in the order of ``COMPONENTS``."""


class Segment(NamedTuple):
    """A segment of the step, in bytes relative to what was allocated at its start."""

    mark: Mark
    rise: Bytes
    """At its highest moment."""
    net: Bytes
    """At its end; negative where more was freed than allocated."""
    operation: str
    """The operator at the highest moment."""


class Written(NamedTuple):
    """One GPU's part of the record of a step."""

    events: Sequence[Event]
    marks: Sequence[Mark]
    calls: Sequence[CallMark] = ()
    host_copies: Sequence[HostCopy] = ()
    left_over: int = 0
    scratches: Sequence[Scratch] = ()
    first_products: Mapping[bool, int] = MappingProxyType({})


def written_by(tape: Tape, device: int) -> Written:
    """One GPU's events of a tape, with the marks reindexed (derived: the events' bytes are unchanged)."""
    own = [event.device == device for event in tape.events]
    before = list(accumulate(own, initial=0))
    events = [event for event, is_own in zip(tape.events, own, strict=True) if is_own]
    if not events:  # its modules allocate nothing
        events = [Event(sign, 0, 0, "", device) for sign in (1, -1)]
    return Written(
        events,
        [
            _own(mark, before, after.start if after is not None else len(own))
            for mark, after in zip_longest(tape.marks, tape.marks[1:])
        ],
        scratches=[
            scratch._replace(start=before[scratch.start])
            for scratch in tape.scratches
            if scratch.device == device
        ],
        first_products={key: before[at] for key, at in tape.first_products.items()},
    )


def _own(mark: Mark, before: Sequence[int], end: int) -> Mark:
    start = before[mark.start]
    is_idle = end > mark.start and before[end] == start
    return mark._replace(
        start=start, operation="work on another GPU" if is_idle else mark.operation
    )


Reason = tuple[int, str, int]
"""What groups equal tensors: component, operator and size."""

Changes = Mapping[tuple[int, int], int]
"""By component and slot of the size: tensors allocated less tensors freed."""


class Height(NamedTuple):
    """How far a segment rises above what was allocated at its start, in bytes."""

    before: int
    """Number of events before its highest moment."""
    rise: int
    net: int
    """Bytes that it adds by its end."""
    parts: tuple[tuple[int, int], ...] = ()
    """Alternately between module calls and at each: events before the highest moment, and its rise."""


class Program:
    """The events of one played step, whose sizes can be evaluated for other inputs."""

    def __init__(self, tape: Tape | Written, recording: Recording) -> None:
        self.recording = recording
        self.marks = tape.marks
        self.operations = [event.operation for event in tape.events]
        self.components = [event.component for event in tape.events]
        self.signs = [event.sign for event in tape.events]
        self.storages = [event.storage for event in tape.events]
        places = [recording.position(event.size) for event in tape.events]
        self.places = sorted(set(places))
        """Where each distinct size is found in the recording's table, slot by slot."""
        slot = {place: index for index, place in enumerate(self.places)}
        self.slots = [slot[place] for place in places]
        starts = [*(mark.start for mark in self.marks), len(self.signs)]
        self.spans = list(pairwise(starts))
        """First event of each segment, and the event after its last."""
        self.calls: list[list[CallMark]] = [[] for _ in self.marks]
        """Module calls of each segment."""
        for call in tape.calls:
            self.calls[call.segment].append(call)
        self.host_copies = [
            (copy.segment, recording.position(copy.bytes)) for copy in tape.host_copies
        ]
        """Segment of each tensor that is copied to the host, and where its bytes are found."""
        self.left_over = recording.position(tape.left_over)
        self.scratches: dict[int, list[tuple[Callable[..., tuple[int, ...]], list[int]]]] = {}
        """What kernels allocate for themselves before an event: the rule, and where its numbers are found."""
        self.first_products = list(tape.first_products.values())
        """Number of events before cuBLAS gets each of its workspaces."""
        for scratch in tape.scratches:
            numbers = [recording.position(number) for number in scratch.numbers]
            self.scratches.setdefault(scratch.start, []).append((scratch.rule, numbers))
        self.wholes = {
            whole.key: recording.position(whole.elements)
            for call in tape.calls
            for whole in call.weights
        }
        # allocations and releases of each segment, as indices into sizes: positive allocated, negative freed
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
        """Index of each segment's distinct shape: equal layers are summed once."""
        # zero at each end: the state before the first event, and an itemgetter of one item returns no tuple
        self._deltas = [(itemgetter(0, *shape, 0), cuts) for shape, cuts in shapes]
        self._changes: dict[tuple[int, int], Changes] = {}

    def at(self, inputs: Sequence[int]) -> Sized | None:
        """The program at these sizes; None if a recorded comparison would come out differently."""
        table = self.recording.evaluate(inputs)
        if not self.recording.holds(table):
            return None
        sizes = [table[place] for place in self.places]
        signed = [0, *sizes, *(-size for size in reversed(sizes))]
        heights = []
        for deltas, cuts in self._deltas:
            alive = list(accumulate(deltas(signed)))
            top = max(alive)
            parts = tuple(_parts(alive, cuts)) if self.wholes else ()
            heights.append(Height(alive.index(top), top, alive[-1], parts))
        wholes = {key: table[place] for key, place in self.wholes.items()}
        copies = [(segment, table[place]) for segment, place in self.host_copies]
        return Sized(
            self,
            sizes,
            [heights[shape] for shape in self._shapes],
            wholes,
            copies,
            table[self.left_over],
            table,
        )

    def is_renamed(self, event: int) -> bool:
        """Whether an allocation only counts the bytes released just before it under another component."""
        return (
            event > 0
            and self.signs[event - 1] < 0
            and self.operations[event - 1] == self.operations[event]
            and self.components[event - 1] != self.components[event]
        )

    def is_kept(self, event: int, end: int) -> bool:
        """Whether a release and the allocation after it count one tensor under another component, or as several."""
        return (
            self.signs[event] < 0
            and event + 1 < end
            and self.signs[event + 1] > 0
            and self.storages[event] == self.storages[event + 1]
        )

    def change(self, start: int, stop: int) -> Changes:
        """Net change over a range of events."""
        if (start, stop) not in self._changes:
            changes: Counter[tuple[int, int]] = Counter()
            for event in range(start, stop):
                changes[self.components[event], self.slots[event]] += self.signs[event]
            self._changes[start, stop] = {key: times for key, times in changes.items() if times}
        return self._changes[start, stop]

    def change_of_all(self, ranges: Iterable[tuple[int, int, int]]) -> Changes:
        """Net change over several ranges of events: start, stop, and how many times each runs."""
        total: Counter[tuple[int, int]] = Counter()
        for start, stop, times in ranges:
            for key, count in self.change(start, stop).items():
                total[key] += times * count
        return {key: count for key, count in total.items() if count}


def _parts(alive: Sequence[int], cuts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Highest moment between each two cuts, and the height at each cut."""
    begin = 0
    for cut in cuts:
        yield _highest(alive, begin, cut)
        yield cut, alive[cut]
        begin = cut
    yield _highest(alive, begin, len(alive) - 2)  # the last entry is padding


def _highest(alive: Sequence[int], first: int, last: int) -> tuple[int, int]:
    top = max(range(first, last + 1), key=alive.__getitem__)
    return top, alive[top]


class Sized:
    """A program at one set of sizes: total heights at once, per component on demand."""

    def __init__(
        self,
        program: Program,
        sizes: Sequence[int],
        heights: Sequence[Height],
        wholes: Mapping[str, int],
        host_copies: Sequence[tuple[int, int]],
        left_over: int,
        table: Sequence[int],
    ) -> None:
        self._program = program
        self.sizes = sizes
        """Bytes of the tensors of each slot."""
        self._table = table
        self.heights = heights
        self.wholes = wholes
        """Elements of each weight that module calls need unsharded."""
        self.left_over = left_over
        """Bytes that stay after backward, as ``Tape.left_over``."""
        self.host_copies = host_copies
        """Segment of each tensor that is copied to the host, and its bytes."""
        self.risen: dict[Hashable, int] = {}
        """What ``estimator.step.timeline.risen`` remembers."""

    def top(self, segment: int) -> int:
        """Index of the event after a segment's first highest moment."""
        return self._program.spans[segment][0] + self.heights[segment].before

    def operation(self, segment: int, before: int | None = None) -> str:
        """The operator at a segment's highest moment, or at its ``before``-th event."""
        mark = self._program.marks[segment]
        top = self.top(segment) if before is None else mark.start + before
        return self._program.operations[top - 1] if top > mark.start else mark.operation

    @cached_property
    def segments(self) -> list[Segment]:
        """All segments, by component."""
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
        """A segment's allocations (1) and releases (-1) in order: operator, slot and component, and the bytes."""
        program = self._program
        for event in range(*program.spans[segment]):
            slot = program.slots[event]
            key = program.operations[event], slot, program.components[event]
            yield program.signs[event], key, self.sizes[slot]

    def scratch_before(self, event: int, card: Card) -> Iterator[tuple[int, ...]]:
        """Bytes of what each kernel allocates for itself before an event."""
        for rule, places in self._program.scratches.get(event, ()):
            yield rule(*(self._table[place] for place in places), card)

    def add_held(
        self, held: Counter[Reason], segment: int, times: int, before: int | None = None
    ) -> None:
        """Add a segment's net allocations by ``Reason``, ``times`` over; ``before``: only so many events."""
        program = self._program
        start, end = program.spans[segment]
        for event in range(start, end if before is None else start + before):
            reason = (
                program.components[event],
                program.operations[event],
                self.sizes[program.slots[event]],
            )
            held[reason] += times * program.signs[event]

    def bytes_of(self, changes: Changes) -> Bytes:
        """Bytes of net changes at these sizes, by component."""
        sizes, changed = self.sizes, [0] * len(COMPONENTS)
        for (component, slot), times in changes.items():
            changed[component] += times * sizes[slot]
        return changed
