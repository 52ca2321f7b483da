"""Which weights ZeRO stage 3 holds unsharded, after each module call.

DeepSpeed hooks every module. Before a module runs, its weights are gathered, and some of the next ones in the recorded
trace are prefetched. After it runs, its weights are released, unless they are needed again soon. Modules without
weights prefetch too, so prefetching gets further and further ahead until the limit of live weights is reached.

Source: DeepSpeed 0.19.6, runtime/zero/partitioned_param_coordinator.py (``fetch_sub_module``,
``release_sub_module``, ``__params_to_release``), parameter_offload.py (``_register_deepspeed_module``) and
partition_parameters.py (``_all_gather_sequential``, ``_all_gather_dtype``, ``AllGatherCoalescedHandle.wait``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate
from typing import NamedTuple

from estimator.tape.tape import CallMark, WholeWeight
from estimator.values.arithmetic import allocated, ceil_div

REUSE_DISTANCE = 10**9
"""A gathered weight is kept if it is used again within this many elements: DeepSpeed 0.19.6, runtime/zero/config.py,
``max_reuse_distance``."""
LIVE = 10**9
"""Elements of gathered weights above which nothing is prefetched: the same file, ``max_live_parameters``."""


STEPS_TO_REPEAT = 3
"""Micro-steps with several passes of a model after which they repeat: one to record, one to find the trace worthless,
and the one that is told."""


OUTSIDE = -1
"""The layer index of modules outside the layers."""
IN_TOWER = 10**6
"""Added to the index of a layer of the vision tower."""


class Rules(NamedTuple):
    """How one model's weights are gathered."""

    prefetched: int
    """Elements prefetched at once; the last weight may exceed it."""
    persistent: int
    """Weights with at most this many elements are never sharded."""
    is_offloaded: bool
    """Whether a rank's partitions are copied from the host for each gather."""
    alone: bool
    """A single rank: nothing is communicated."""
    is_wrapped: bool
    """Whether PEFT wraps the model in two further modules."""
    is_frozen: bool = False
    """The model never goes backward: no step that its engine has traced did."""


Owner = tuple[int, str]
"""A layer and one of its modules."""


class ModuleCall(NamedTuple):
    """One call of a module in the real step."""

    owner: Owner
    weights: tuple[int, ...]
    """Indices of the weights that are not persistent."""
    begins: bool
    is_forward: bool
    replays: bool
    """Whether this is recomputation of a checkpoint, in backward."""
    entered: tuple[Owner, ...]
    """Modules without weights that are entered on the way."""
    restarts: bool
    """The first call of a forward pass: the root's hook has the coordinator begin its trace anew."""
    number: int
    """Of the pass."""


class Stretch(NamedTuple):
    """One repetition of a run, as a trace is made of it."""

    layer: int
    is_backward: bool
    calls: Sequence[CallMark]
    number: int = 0
    """Of the pass."""


class Repeated(NamedTuple):
    """A run's layers, all with the same calls; equal runs are traced alike."""

    layers: tuple[int, ...]
    is_backward: bool
    calls: tuple[CallMark, ...]
    number: int
    """Of the pass."""

    @property
    def stretches(self) -> list[Stretch]:
        """One for each layer, in order of time."""
        return [Stretch(layer, *self[1:]) for layer in self.layers]


def containers(layer: int, module: str, *, is_wrapped: bool) -> tuple[str, ...]:
    """Weightless modules around a module, outermost first, including those that contain the whole model."""
    whole = ("", "base_model", "causal") if is_wrapped else ("causal",)
    if layer >= IN_TOWER:
        stack, _, name = module.partition("|")
        around = accumulate(stack.split(".")[:-1], "{}.{}".format)  # a list of layers is not called
        inside = accumulate(name.split(".")[:-1], "{}.{}".format)
        return (*whole, "model", *around, f"{stack} {layer - IN_TOWER}", *inside)
    if layer == OUTSIDE:
        if module.startswith("|"):  # of a tower
            return (*whole, "model", *accumulate(module[1:].split(".")[:-1], "{}.{}".format))
        return whole if module == "lm_head" else (*whole, "model")
    inside = accumulate(module.split(".")[:-1], "{}.{}".format)
    return (*whole, "model", f"layer {layer}", *inside)


class CallTrace:
    """A whole micro-step's calls of one model, with numbered weights."""

    def __init__(
        self, step: Iterable[Sequence[Stretch]], sizes: Mapping[str, int], rules: Rules
    ) -> None:
        self.elements: list[int] = []
        self.sizes: list[tuple[int, int]] = []
        """Elements and bytes per element of each."""
        self.trained: list[bool] = []
        self._known: dict[tuple[int, str], int] = {}
        self._elements, self._rules = sizes, rules
        self._around: tuple[str, ...] = ()
        self._part: tuple[bool, int] | None = None
        self._owners: dict[Owner, tuple[Owner, tuple[str, ...]]] = {}
        """Each module of a layer, with those around it."""
        self.stretches = [list(self._called(run)) for run in step]
        called = [call for run in self.stretches for module_calls in run for call in module_calls]
        self.forwards = sum(call.restarts for call in called)
        self.goes_back = {call.number for call in called if not call.is_forward and call.begins}
        """The passes with gradients."""
        self.trace: list[Traced] = []
        """What DeepSpeed records of a micro-step with one forward pass: each module and its weights, in order."""
        if self.forwards <= 1:
            for module_call in called:
                if module_call.begins:
                    self.trace += ((container, ()) for container in module_call.entered)
                    self.trace.append((module_call.owner, module_call.weights))
            if not rules.is_frozen and all(call.is_forward for call in called):
                # an evaluation, between training steps
                self.trace += self.trace[::-1]

    def _called(self, run: Sequence[Stretch]) -> Iterator[list[ModuleCall]]:
        """The calls of each repetition of a run."""
        gathered: Sequence[Sequence[WholeWeight]] = ()
        """At each call of the run's layers, the weights that are sharded."""
        known: Sequence[CallMark] | None = None
        for stretch in run:
            if known is not stretch.calls:
                known, least = stretch.calls, self._rules.persistent
                gathered = [
                    [whole for whole in call.weights if self._elements[whole.key] > least]
                    for call in known
                ]
            yield [
                self._module_call(stretch, call, wholes)
                for call, wholes in zip(stretch.calls, gathered, strict=True)
            ]

    def _module_call(
        self, stretch: Stretch, call: CallMark, wholes: Sequence[WholeWeight]
    ) -> ModuleCall:
        layer, is_backward, _, number = stretch
        restarts = False
        if self._part != (is_backward, number):
            self._around, self._part, restarts = (), (is_backward, number), not is_backward
        key = layer, call.module
        if key not in self._owners:
            inside = containers(layer, call.module, is_wrapped=self._rules.is_wrapped)
            self._owners[key] = key, inside
        owner, inside = self._owners[key]
        entered: tuple[Owner, ...] = ()
        if call.begins and inside != self._around:
            entered = tuple((OUTSIDE, name) for name in inside if name not in self._around)
            self._around = inside
        return ModuleCall(
            owner,
            tuple([self._index(layer, whole, self._elements[whole.key]) for whole in wholes]),
            call.begins,
            call.is_forward,
            is_backward and call.is_forward,
            entered,
            restarts,
            number,
        )

    def _index(self, layer: int, whole: WholeWeight, elements: int) -> int:
        known = self._known.setdefault((layer, whole.key), len(self.elements))
        if known == len(self.elements):
            self.elements.append(elements)
            self.sizes.append((elements, whole.width))
            self.trained.append(whole.trained)
        return known


Traced = tuple[Owner, tuple[int, ...]]
"""A module in a trace, and its weights that do not persist."""


@dataclass(slots=True)
class Handle:
    """Weights gathered by one all-gather."""

    buffer: int
    """The amount of the buffer that they arrive in."""
    waiting: int
    """Number of weights not used yet. The buffer is freed when the last one is used."""
    inside: list[int]
    """Weights not yet copied out of the buffer. The first use copies all of them."""


class Amount(NamedTuple):
    """Bytes allocated or freed together, for any number of ranks."""

    weights: tuple[tuple[int, int], ...]
    """Elements and bytes per element of each."""
    part: bool
    """One rank's partition; else the gathered weights of all ranks, in one buffer per dtype."""
    padded: bool
    """Whether partitions are padded to the same size on every rank."""

    def of(self, ranks: int) -> int:
        """Bytes with this number of ranks."""
        return sum(self.pieces(ranks))

    def pieces(self, ranks: int) -> list[int]:
        """Bytes of each tensor with this number of ranks."""
        if self.part:
            return [allocated(width * ceil_div(count, ranks)) for count, width in self.weights]
        alike: defaultdict[int, int] = defaultdict(int)
        for count, width in self.weights:
            alike[width] += width * (ceil_div(count, ranks) * ranks if self.padded else count)
        # in the order of the dtypes' names, bfloat16 before float32 before uint8: ``sort_dtypes``
        widths = sorted(alike, key=lambda width: (width == 1, width))
        return [allocated(alike[width]) for width in widths]


Pattern = tuple[tuple[int, ...], ...]
"""What comes and goes at each call of a stretch: numbers of amounts, negative where they are freed."""


class Gathers(NamedTuple):
    """What comes and goes at the calls of a step."""

    sizes: list[list[int]]
    """Bytes of each amount's tensors; the first amount has the number 1."""
    patterns: list[Pattern]
    runs: list[list[int]]
    """For every run, the pattern of each repetition."""


def _levels(pattern: Pattern, signed: Sequence[int]) -> list[int]:
    """Bytes above those before a stretch: before its first call, then the maximum during and after each call."""
    level = 0
    levels = [level]
    for changes in pattern:
        highest = level
        for change in changes:
            level += signed[change]
            highest = max(highest, level)
        levels += [highest, level]
    return levels


class Mode(Enum):
    """What a coordinator does with the calls of modules: DeepSpeed's ``ZeRoTraceMode``."""

    COMPLETE = auto()
    """It follows a recorded trace."""
    RECORD = auto()
    INVALID = auto()
    """It neither follows nor records, until the next forward pass begins."""


class Coordinator:
    """Gathers and lets go as DeepSpeed does, and writes down what comes and goes.

    A step with one forward pass is traced whole; ``records``: in the first one, which gathers nothing ahead. Each
    further pass of the same model ends the recording at what came before it; that trace is found too short, or another,
    and is dropped: from there on nothing is gathered ahead, and weights go as soon as a module has returned. So it goes
    in every step.

    A module counts the inputs whose gradients are still to come, and every forward call begins the count anew. So in
    the backward of any pass but the last, a module's weights stay until the step, unless a checkpoint replays it.

    Leaves out: small weights, which DeepSpeed also lets go where it follows no trace.
    Source: as the module's; ``reset_step``, ``trace_prologue`` and ``_invalidate_trace``; parameter_offload.py,
    ``_post_backward_module_hook`` (``ds_grads_remaining``) and ``release_backward_leftovers``.
    """

    def __init__(self, call_trace: CallTrace, rules: Rules, *, records: bool = False) -> None:
        self.call_trace = call_trace
        self.rules = rules
        self._numbers: dict[Amount, int] = {}
        """The index of each amount, from 1; a free is recorded as the negative index."""
        self._changes: list[int] = []
        self._data: dict[int, int] = {}
        """The amount of each gathered weight."""
        self._live = 0
        self._step = 0
        self._handles: dict[int, Handle] = {}
        """The handle of each weight gathered with others, until its first use."""
        self._users: defaultdict[int, set[Owner]] = defaultdict(set)
        self._in_backward: dict[Owner, tuple[int, ...]] = {}
        self._replayed: defaultdict[Owner, set[int]] = defaultdict(set)
        """Frozen weights gathered by recomputation, by the module whose backward needs them."""
        self._awaited: dict[Owner, int] = {}
        """Inputs of each module whose gradients are still to come."""
        self._mode = Mode.COMPLETE
        self._trace: list[Traced] = []
        """That it follows, or records."""
        self._next = 0
        """Position in the prefetch queue, which is the trace weight by weight."""
        self._queue: list[tuple[int, int]] = []
        self._seen: list[int] = []
        """For each weight, the last step that the queue has passed."""
        self._passed: list[int] = []
        self._uses: list[list[int]] = []
        self._amounts: dict[tuple[tuple[int, ...], bool, bool], int] = {}
        """The index of the amount of some weights, a part of them or padded."""
        self._patterns: dict[Pattern, int] = {}
        """The index of each stretch's changes: equal layers change alike."""
        micro_steps = 1
        if call_trace.forwards > 1:
            self._mode, micro_steps = Mode.INVALID, STEPS_TO_REPEAT
        elif records:
            self._mode = Mode.RECORD
        else:
            self._follow(call_trace.trace)
        self.runs: list[list[int]] = []
        """For every run, the pattern of each stretch."""
        for _ in range(micro_steps):
            for kept in (self._data, self._handles, self._users, self._in_backward, self._replayed):
                kept.clear()
            self.runs = [
                [self._stretch(module_calls) for module_calls in run]
                for run in call_trace.stretches
            ]
            if self._mode is Mode.INVALID:  # as it began: the next micro-step is the same
                break

    def _stretch(self, module_calls: Iterable[ModuleCall]) -> int:
        pattern = []
        for module_call in module_calls:
            self._changes = []
            if module_call.restarts:
                self._restart()
            if module_call.begins:
                self._begin(module_call)
            elif module_call.is_forward or self._has_come_back(module_call.owner):
                self._end(module_call)
            pattern.append(tuple(self._changes))
        return self._patterns.setdefault(tuple(pattern), len(self._patterns))

    def _has_come_back(self, owner: Owner) -> bool:
        """Whether DeepSpeed sees that a module's backward has ended."""
        if self.call_trace.forwards <= 1:
            return True
        self._awaited[owner] = self._awaited.get(owner, 0) - 1
        return self._awaited[owner] == 0

    # -- traces -------------------------------------------------------------------------------------------------

    def _follow(self, trace: list[Traced]) -> None:
        """Follow a trace from its beginning."""
        elements = self.call_trace.elements
        self._trace, self._step, self._next, self._live = trace, 0, 0, 0
        self._queue = [(w, step) for step, (_, weights) in enumerate(trace) for w in weights]
        self._seen = [-1] * len(elements)
        self._passed = [0, *accumulate(sum(elements[w] for w in ws) for _, ws in trace)]
        self._uses = [[] for _ in elements]
        for step, (_, weights) in enumerate(trace):
            for weight in weights:
                self._uses[weight].append(step)

    def _restart(self) -> None:
        """A forward pass begins: what was recorded is complete, and what was invalid is recorded anew."""
        if self.call_trace.forwards <= 1:
            return
        self._clean()
        if self._mode is Mode.INVALID:
            self._mode, self._trace, self._live = Mode.RECORD, [], 0
        else:
            self._mode = Mode.COMPLETE
            self._follow(self._trace)

    def _clean(self) -> None:
        """What is still on its way arrives, and goes."""
        for weight in list(self._handles):
            self._wait(weight)
            self._release(weight)

    def _enter(self, owner: Owner, weights: tuple[int, ...]) -> None:
        """A module is called: as the trace has it, or the trace is worth nothing from here on."""
        if self._mode is Mode.RECORD:
            self._trace.append((owner, weights))
        elif self._mode is Mode.COMPLETE and (
            self._step >= len(self._trace) or self._trace[self._step][0] != owner
        ):
            self._mode = Mode.INVALID
            self._clean()

    def levels(self, ranks: int, *, is_offloaded: bool = False) -> Iterator[list[list[int]]]:
        """For every run and stretch: bytes before its first call, then the maximum during and the bytes after each
        call. Only partitions that are offloaded are copied from the host.
        """
        amounts = [
            0 if amount.part and not is_offloaded else amount.of(ranks) for amount in self._numbers
        ]
        signed = [0, *amounts, *(-amount for amount in reversed(amounts))]
        patterns = [_levels(pattern, signed) for pattern in self._patterns]
        level = 0
        for run in self.runs:
            stretches = []
            for pattern in run:
                stretches.append([level + change for change in patterns[pattern]])
                level = stretches[-1][-1]
            yield stretches

    def gathers(self, ranks: int, *, is_offloaded: bool = False) -> Gathers:
        """What comes and goes at every call, in bytes, as ``levels``."""
        sizes = [
            [] if amount.part and not is_offloaded else amount.pieces(ranks)
            for amount in self._numbers
        ]
        return Gathers(sizes, list(self._patterns), self.runs)

    def _amount(self, weights: Sequence[int], *, part: bool = False, padded: bool = False) -> int:
        key = tuple(weights), part, padded
        if key not in self._amounts:
            sizes = self.call_trace.sizes
            amount = Amount(tuple([sizes[w] for w in weights]), part, padded)
            self._amounts[key] = self._numbers.setdefault(amount, len(self._numbers) + 1)
        return self._amounts[key]

    # -- a module's call ----------------------------------------------------------------------------------------

    def _begin(self, module_call: ModuleCall) -> None:
        if module_call.is_forward:
            awaited = module_call.replays or module_call.number in self.call_trace.goes_back
            self._awaited[module_call.owner] = int(awaited)
        else:
            self._in_backward[module_call.owner] = module_call.weights
        for container in module_call.entered:
            self._enter(container, ())
            self._prefetch()
        self._enter(module_call.owner, module_call.weights)
        self._gather([w for w in module_call.weights if not self._is_here(w)])
        for weight in module_call.weights:
            self._users[weight].add(module_call.owner)
            if module_call.replays and self._in_backward and not self.call_trace.trained[weight]:
                served = next(reversed(self._in_backward))
                self._replayed[served].add(weight)
                self._users[weight].add(served)
            self._wait(weight)
        if self._mode is Mode.COMPLETE:
            step = self._step
            while self._next < len(self._queue) and any(
                self._seen[w] < step for w in module_call.weights
            ):
                weight, used = self._queue[self._next]
                self._seen[weight] = used
                self._next += 1
        self._prefetch()

    def _end(self, module_call: ModuleCall) -> None:
        owner, weights = module_call.owner, set(module_call.weights)
        going = {w for w in weights if not self._is_wanted(w, self._step)}
        if not module_call.is_forward:
            self._in_backward.pop(owner, None)
            replayed = self._replayed.pop(owner, set())
            weights |= replayed
            going |= replayed
        for weight in weights:
            self._users[weight].discard(owner)
            if weight in going:
                self._release(weight)

    def _is_wanted(self, weight: int, step: int) -> bool:
        if self._mode is not Mode.COMPLETE:
            return False
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

    def _prefetch(self) -> None:
        """Gather ahead what comes next in the queue; from now on it is the next step's turn."""
        self._step += 1
        if self._mode is not Mode.COMPLETE:
            return
        room = min(LIVE - self._live, self.rules.prefetched)
        chosen: list[int] = []
        elements = 0
        while self._next < len(self._queue) and elements < room:
            weight, used = self._queue[self._next]
            self._next += 1
            self._seen[weight] = max(self._seen[weight], used)
            if not self._is_here(weight) and weight not in chosen:
                chosen.append(weight)
                elements += self.call_trace.elements[weight]
        self._gather(chosen)

    def _gather(self, weights: Sequence[int]) -> None:
        if not weights:
            return
        self._live += sum(self.call_trace.elements[w] for w in weights)
        if self.rules.alone:  # _no_gather_coalesced: each weight is handled separately
            for weight in weights:
                self._data[weight] = self._amount((weight,))
                self._changes.append(self._data[weight])
            return
        buffer = self._amount(weights, padded=True)
        self._changes.append(buffer)
        brought = self._amount(weights, part=True)
        self._changes += [brought, -brought]
        if len(weights) == 1:
            self._data[weights[0]] = buffer
            return
        handle = Handle(buffer, len(weights), list(weights))
        for weight in weights:
            self._handles[weight] = handle

    def _wait(self, weight: int) -> None:
        """The first use of a buffer copies all its weights out; the last use frees it."""
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
            self._live -= self.call_trace.elements[weight]
