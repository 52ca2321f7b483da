"""Which weights ZeRO's stage 3 holds whole, from call to call of the model's modules.

DeepSpeed hooks every module. Before it works its weights are gathered, and then those that come next in the recorded
trace of a micro-step, at every call some more; after it they go, unless they are wanted again soon. A module without
weights gathers ahead too, so that gathering runs away from computing until the limit of live weights is reached.

Source: DeepSpeed 0.19.6, runtime/zero/partitioned_param_coordinator.py (``fetch_sub_module``,
``release_sub_module``, ``__params_to_release``), parameter_offload.py (``_register_deepspeed_module``) and
partition_parameters.py (``_all_gather_sequential``, ``_all_gather_dtype``, ``AllGatherCoalescedHandle.wait``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from estimator.tape.tape import Call, WholeWeight
from estimator.values.arithmetic import allocated, ceil_div

REUSE_DISTANCE = 10**9
"""Elements within which a gathered weight that is used again is kept: DeepSpeed 0.19.6, runtime/zero/config.py,
``max_reuse_distance``."""
LIVE = 10**9
"""Elements of gathered weights above which nothing is gathered ahead: the same file, ``max_live_parameters``."""


OUTSIDE = -1
"""The layer of what lies outside the layers."""


class Rules(NamedTuple):
    """How one model's weights are gathered."""

    prefetched: int
    """Elements that are gathered ahead at once; the last may exceed it."""
    persistent: int
    """Weights of at most so many elements stay whole."""
    rests_on_host: bool
    """A rank's parts are brought from the host for each gather."""
    alone: bool
    """One rank: nothing is sent around."""
    is_wrapped: bool
    """The model is PEFT's: two modules more are around it."""


class ModuleCall(NamedTuple):
    """One call of a module in the real step."""

    owner: tuple[int, str]
    """The layer and the module."""
    weights: tuple[int, ...]
    """Indices of the weights that do not persist."""
    begins: bool
    is_forward: bool
    replays: bool
    """Of a checkpoint, in backward."""
    steps: tuple[int, ...]
    """Indices in the trace: of the modules without weights that are entered on the way, then its own."""


def containers(layer: int, module: str, *, is_wrapped: bool) -> tuple[str, ...]:
    """Modules without weights around one, outermost first; those that hold the whole model, too."""
    whole = ("", "base_model", "causal") if is_wrapped else ("causal",)
    if layer == OUTSIDE:
        return whole if module == "lm_head" else (*whole, "model")
    inside = accumulate(module.split(".")[:-1], "{}.{}".format)
    return (*whole, "model", f"layer {layer}", *inside)


Stretches = Iterable[Sequence[tuple[int, bool, Sequence[Call]]]]
"""Runs of stretches of a step, in order: each stretch's layer, whether it is backward, and its calls."""


class CallTrace:
    """A whole step's calls with numbered weights, and the trace that DeepSpeed has recorded of them."""

    def __init__(self, step: Stretches, sizes: Mapping[str, int], rules: Rules) -> None:
        self.elements: list[int] = []
        self.widths: list[int] = []
        """Bytes per element of each."""
        self.trained: list[bool] = []
        self._known: dict[tuple[int, str], int] = {}
        self.trace: list[tuple[int, ...]] = []
        """The weights of each module, in the order in which modules are called."""
        self.stretches: list[list[list[ModuleCall]]] = []
        around: tuple[str, ...] = ()
        began_backward = False
        for run in step:
            stretches = []
            for layer, is_backward, calls in run:
                deeds = []
                for call in calls:
                    if is_backward and not began_backward:
                        around, began_backward = (), True
                    weights = tuple(
                        self._index(layer, whole, sizes[whole.key])
                        for whole in call.weights
                        if sizes[whole.key] > rules.persistent
                    )
                    steps: tuple[int, ...] = ()
                    if call.begins:
                        inside = containers(layer, call.module, is_wrapped=rules.is_wrapped)
                        entered = sum(name not in around for name in inside)
                        around = inside
                        steps = tuple(range(len(self.trace), len(self.trace) + entered + 1))
                        self.trace += [*([()] * entered), weights]
                    replays = is_backward and call.is_forward
                    deeds.append(
                        ModuleCall(
                            (layer, call.module),
                            weights,
                            call.begins,
                            call.is_forward,
                            replays,
                            steps,
                        )
                    )
                stretches.append(deeds)
            self.stretches.append(stretches)
        if not began_backward:  # an evaluation, between steps that went back as well
            self.trace += self.trace[::-1]

    def _index(self, layer: int, whole: WholeWeight, elements: int) -> int:
        known = self._known.setdefault((layer, whole.key), len(self.elements))
        if known == len(self.elements):
            self.elements.append(elements)
            self.widths.append(whole.width)
            self.trained.append(whole.trained)
        return known


@dataclass(slots=True)
class Handle:
    """Weights that were sent around together."""

    buffer: int
    """The amount that they come in."""
    waiting: int
    """How many have not had their turn; with the last one's the buffer goes."""
    inside: list[int]
    """The weights, until the first one's turn, when all are copied out."""


class Amount(NamedTuple):
    """Bytes that come or go together, for any number of ranks."""

    weights: tuple[tuple[int, int], ...]
    """Elements and bytes per element of each."""
    part: bool
    """Of one rank alone; else what all of them send, a buffer for each dtype."""
    padded: bool
    """To the same size on every rank."""

    def of(self, ranks: int) -> int:
        """Bytes on so many ranks."""
        if self.part:
            return sum(allocated(width * ceil_div(count, ranks)) for count, width in self.weights)
        alike: defaultdict[int, int] = defaultdict(int)
        for count, width in self.weights:
            alike[width] += width * (ceil_div(count, ranks) * ranks if self.padded else count)
        return sum(map(allocated, alike.values()))


class Coordinator:
    """Gathers and lets go as DeepSpeed does, and writes down what comes and goes."""

    def __init__(self, script: CallTrace, rules: Rules) -> None:
        self.script = script
        self.rules = rules
        self._numbers: dict[Amount, int] = {}
        """Of each amount its number from 1 up; what goes is written as its negative."""
        self._changes: list[int] = []
        self._data: dict[int, int] = {}
        """The amount of each weight that is there."""
        self._live = 0
        self._step = 0
        self._handles: dict[int, Handle] = {}
        """Of each weight that came or comes with others, until its own turn."""
        self._users: defaultdict[int, set[tuple[int, str]]] = defaultdict(set)
        self._in_backward: dict[tuple[int, str], tuple[int, ...]] = {}
        self._replayed: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
        """Frozen weights that a replay gathered, by the module whose backward it serves."""
        self._next = 0
        """In the queue: the trace weight by weight."""
        trace = script.trace
        self._queue = [(w, step) for step, weights in enumerate(trace) for w in weights]
        self._seen = [-1] * len(script.elements)
        """For each weight the last step that the queue has passed."""
        self._passed = [0, *accumulate(sum(script.elements[w] for w in ws) for ws in trace)]
        self._uses: list[list[int]] = [[] for _ in script.elements]
        for step, weights in enumerate(trace):
            for weight in weights:
                self._uses[weight].append(step)

        self.runs = [[self._stretch(deeds) for deeds in run] for run in script.stretches]
        """Of every run, of every stretch, what changes at each call."""

    def _stretch(self, deeds: Iterable[ModuleCall]) -> list[list[int]]:
        changes = []
        for deed in deeds:
            self._changes = []
            if deed.begins:
                self._begin(deed)
            else:
                self._end(deed)
            changes.append(self._changes)
        return changes

    def levels(self, ranks: int) -> Iterator[list[list[int]]]:
        """For every run, of every stretch the bytes before its first call, and the most at and those after each."""
        amounts = [amount.of(ranks) for amount in self._numbers]
        signed = [0, *amounts, *(-amount for amount in reversed(amounts))]
        level = 0
        for run in self.runs:
            stretches = []
            for calls in run:
                levels = [level]
                for changes in calls:
                    highest = level
                    for change in changes:
                        level += signed[change]
                        highest = max(highest, level)
                    levels += [highest, level]
                stretches.append(levels)
            yield stretches

    def _amount(self, weights: Iterable[int], *, part: bool = False, padded: bool = False) -> int:
        sizes = tuple((self.script.elements[w], self.script.widths[w]) for w in weights)
        return self._numbers.setdefault(Amount(sizes, part, padded), len(self._numbers) + 1)

    # -- a module's call ----------------------------------------------------------------------------------------

    def _begin(self, deed: ModuleCall) -> None:
        if not deed.is_forward:
            self._in_backward[deed.owner] = deed.weights
        for step in deed.steps[:-1]:
            self._prefetch(step + 1)
        step = deed.steps[-1]
        self._gather([w for w in deed.weights if not self._is_here(w)])
        for weight in deed.weights:
            self._users[weight].add(deed.owner)
            if deed.replays and self._in_backward and not self.script.trained[weight]:
                served = next(reversed(self._in_backward))
                self._replayed[served].add(weight)
                self._users[weight].add(served)
            self._wait(weight)
        while self._next < len(self._queue) and any(self._seen[w] < step for w in deed.weights):
            weight, used = self._queue[self._next]
            self._seen[weight] = used
            self._next += 1
        self._prefetch(step + 1)

    def _end(self, deed: ModuleCall) -> None:
        owner, weights = deed.owner, set(deed.weights)
        step = self._step
        going = {w for w in weights if not self._is_wanted(w, step)}
        if not deed.is_forward:
            self._in_backward.pop(owner, None)
            replayed = self._replayed.pop(owner, set())
            weights |= replayed
            going |= replayed
        for weight in weights:
            self._users[weight].discard(owner)
            if weight in going:
                self._release(weight)

    def _is_wanted(self, weight: int, step: int) -> bool:
        if self._seen[weight] > step:
            return True
        uses = self._uses[weight]
        place = bisect_left(uses, step)
        if place == len(uses):
            return False
        return self._passed[uses[place]] - self._passed[step] < REUSE_DISTANCE

    # -- gathering ----------------------------------------------------------------------------------------------

    def _is_here(self, weight: int) -> bool:
        return weight in self._data or weight in self._handles

    def _prefetch(self, step: int) -> None:
        """Gather ahead what comes next in the queue; from now on it is the turn of this step."""
        self._step = step
        room = min(LIVE - self._live, self.rules.prefetched)
        chosen: list[int] = []
        elements = 0
        while self._next < len(self._queue) and elements < room:
            weight, used = self._queue[self._next]
            self._next += 1
            self._seen[weight] = max(self._seen[weight], used)
            if not self._is_here(weight) and weight not in chosen:
                chosen.append(weight)
                elements += self.script.elements[weight]
        self._gather(chosen)

    def _gather(self, weights: Sequence[int]) -> None:
        if not weights:
            return
        self._live += sum(self.script.elements[w] for w in weights)
        if self.rules.alone:  # _no_gather_coalesced: each comes by itself
            for weight in weights:
                self._data[weight] = self._amount((weight,))
                self._changes.append(self._data[weight])
            return
        buffer = self._amount(weights, padded=True)
        self._changes.append(buffer)
        if self.rules.rests_on_host:
            brought = self._amount(weights, part=True)
            self._changes += [brought, -brought]
        if len(weights) == 1:
            self._data[weights[0]] = buffer
            return
        handle = Handle(buffer, len(weights), list(weights))
        for weight in weights:
            self._handles[weight] = handle

    def _wait(self, weight: int) -> None:
        """What came in one buffer is copied out at the first's turn; the buffer goes at the last's."""
        handle = self._handles.pop(weight, None)
        if handle is None:
            return
        for other in handle.inside:
            self._data[other] = self._amount((other,))
            self._changes.append(self._data[other])
        handle.inside.clear()
        handle.waiting -= 1
        if handle.waiting == 0:
            self._changes.append(-handle.buffer)

    def _release(self, weight: int) -> None:
        if weight in self._data and weight not in self._handles and not self._users[weight]:
            self._changes.append(-self._data.pop(weight))
            self._live -= self.script.elements[weight]
