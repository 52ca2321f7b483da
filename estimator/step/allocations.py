"""What a run asks PyTorch's allocator for, in order: loading, its first steps with their optimizer, an evaluation.

The tape gives a step's tensors and their order. Loading and the optimizer's step follow the parameters in the order of
the model's classes. A release frees the block that was taken for its tensor: tensors of equal layers share a key, and
backward frees the newest of a key first.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, groupby
from typing import NamedTuple

from estimator.parallel.strategies import resident_memory
from estimator.parallel.tensor_parallel import part_of
from estimator.resident.optimizer import RULES
from estimator.resident.overhead import HANDLES, THREADS_PER_MULTIPROCESSOR, workspace_bytes
from estimator.step.blocks import (
    EMPTY,
    GIVE,
    GIVE_ALL,
    GIVE_BEFORE,
    GIVE_OLDEST,
    TAKE,
    TAKE_ONCE,
    WAIT,
    Log,
    Request,
    log_of,
)
from estimator.step.ddp_requests import buckets
from estimator.step.evaluation import evaluation_plan
from estimator.step.loading_requests import in_module_order, load_requests, trained_groups
from estimator.step.optimizer_requests import flat_step, norms, optimizer_step
from estimator.step.request_keys import (
    BUCKETS,
    COMPUTE,
    FREE_KEYS,
    HELD,
    KEPT,
    OLD,
    OLD_ROOT,
    STEPPED,
    WARM_UP,
    WORKSPACES,
    Keys,
    StorageKey,
    scratch,
    taken,
)
from estimator.step.strategy_requests import (
    Left,
    Waiting,
    gathering,
    keeps_parts,
    of_rank,
    on_streams_of_fsdp1,
    on_streams_of_fsdp2,
    places,
    reduces_after_backward,
    reducing,
    unreduced,
    waits_whole,
    without_reduction,
)
from estimator.step.timeline import Plan, Run, Schedule, Sizes, Steps, plan, structure
from estimator.step.zero_requests import (
    by_size,
    has_partitions,
    has_shards,
    kept_bytes,
    reduced,
    stepped,
    stepped_in_groups,
)
from estimator.tape.program import Program
from estimator.tape.scratch import Card
from estimator.tape.tape import (
    ACTIVATIONS,
    GRADIENTS,
    TEMPORARIES,
)
from estimator.values.arithmetic import allocated
from estimator.values.facets.allocator import Allocator
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.optimisation import Optimisation
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Phase

STEPS = 3
"""Steps played: in the second, the optimizer's states are in blocks that activations had left; from then on every
request finds the same block again, unless the card is nearly full."""
BEFORE_BACKWARD = -1
"""Stands among a pass's stretches where Trainer may empty the cache."""
MOST_ALIKE = 512
"""Equal tensors of a loop that are requested one by one; more count as one, for the cost of a replay."""


class Hardware(NamedTuple):
    """What a run's requests depend on of a card."""

    workspace: int
    """Bytes of one cuBLAS workspace."""
    card: Card


def hardware_of(gpu: Gpu | None) -> Hardware:
    """That of a card; an A100's where it is unknown."""
    card = Card()
    threads = THREADS_PER_MULTIPROCESSOR.get(gpu.compute_capability) if gpu else None
    if gpu is not None and gpu.multiprocessors is not None and threads is not None:
        card = Card(gpu.multiprocessors, threads)
    return Hardware(workspace_bytes(gpu) // HANDLES, card)


class PassPiece(NamedTuple):
    """Consecutive repetitions of one part of a pass, or of anything else that runs."""

    stretch: int
    times: int = 1
    of_pass: int = -1
    """Number of the pass; -1 outside of one."""
    run: int = -1
    """Index of the run in its schedule; -1 beside these."""
    place: int = 0
    """The first of the run's repetitions."""


class WrittenPass(NamedTuple):
    """A pass that was written."""

    schedule: Schedule
    micro_step: int
    is_evaluation: bool


class Trace:
    """What a run's requests belong to."""

    def __init__(self) -> None:
        self.events: dict[int, Sequence[int]] = {}
        """The event of the tape of each request, of the stretches of passes."""
        self.passes: list[WrittenPass] = []
        self.ran: list[tuple[int, PassPiece]] = []
        """Step, 0 for loading, and piece of each entry of the order."""
        self.optimizers: list[int] = []
        """The stretches of the optimizer's steps; the last stands for all later ones."""


class Writer:
    """Collects stretches of requests and their order, and what they belong to."""

    def __init__(self) -> None:
        self._stretches: list[list[Request]] = []
        self._order: list[tuple[int, int]] = []
        self.trace = Trace()

    def stretch(self, requests: Iterable[Request]) -> int:
        """A stretch that may run several times."""
        self._stretches.append(list(requests))
        return len(self._stretches) - 1

    def traced(self, requests: Iterable[tuple[Request, int]]) -> int:
        """The same of requests with their events."""
        found = list(requests)
        self.trace.events[len(self._stretches)] = array("q", (at for _, at in found))
        return self.stretch(request for request, _ in found)

    def run(self, step: int, piece: PassPiece) -> None:
        """Run a piece next."""
        if self._stretches[piece.stretch]:
            self._order.append((piece.stretch, piece.times))
            self.trace.ran.append((step, piece))

    def once(self, step: int, requests: Iterable[Request]) -> None:
        """Run requests next."""
        self.run(step, PassPiece(self.stretch(requests)))

    @property
    def sizes(self) -> Iterator[int]:
        """Bytes of each request, in the order of the log's."""
        return (request.size for stretch in self._stretches for request in stretch)

    def log(self) -> Log:
        """The requests as ``play`` reads them."""
        first = next(iter(self._stretches[0]), None)
        warms_up = first is not None and first.key == WARM_UP
        return log_of(self._stretches, self._order)._replace(warms_up=warms_up)


@lru_cache(maxsize=32)
def allocations(
    model: Model,
    hardware: Hardware,
    setup: TrainingSetup,
    rank: int,
    *,
    on_host: bool,
) -> tuple[Log, Trace]:
    """The requests of a run: loading, three steps, and an evaluation before the third where one is planned; and what
    they belong to.

    ``rank``: under ZeRO 1 and 2, where each keeps other gradients; see ``ranks_played``. ``on_host``: their weights
    become flat on the host. What an objective keeps beside the model is taken in as many equal pieces as there are
    tensors, and so is everything under offloading.

    Source: derived from the tape; torch 2.13, optim/adam.py, nn/utils/clip_grad.py; transformers 5.23, trainer.py,
    ``_inner_training_loop``; traces of PyTorch's allocator (``tests/verify``).
    """
    same, workspace = structure(setup), hardware.workspace
    steps, evaluated = _passes_at(model, hardware.card, setup)
    every, card = [*steps, *evaluated], _card_of_step(hardware.card, setup.optimisation)
    fixed = _fixed(model, card, same, bool(setup.optimisation.max_grad_norm), rank, on_host=on_host)
    if setup.mesh.strategy.is_zero:  # whose gathers and parts have sizes of their own
        written = _written(model, setup, fixed, steps, evaluated, workspace, rank)
        return written.log(), written.trace
    unsized = replace(setup, batch=same.batch, task=same.task, run=same.run)
    pattern = tuple(pass_at.pattern for pass_at in every)
    values = [size for pass_at in every for size in pass_at.values]
    templates = _templates(model, workspace, card, unsized, len(evaluated))
    template = templates.get(pattern)
    if template is None:
        named, first = [_Named.of(values, place) for place in range(len(values))], 0
        for pass_at in every:
            first = pass_at.name(named, first)
        written = _written(model, setup, fixed, steps, evaluated, workspace, rank)
        template = _Template.of(written, values)
        if len(templates) >= MOST_PATTERNS:
            templates.clear()
        templates[pattern] = template
    return template.at(values), template.trace


def _passes_at(
    model: Model, card: Card, setup: TrainingSetup
) -> tuple[list[_PassAt], list[_PassAt]]:
    """The micro-steps of a step, and an evaluation where one is planned."""
    here = Sizes.of(setup)
    steps = [_PassAt(micro_step, here, card) for micro_step in _micro_steps(model, setup)]
    if setup.run.eval_strategy == "no":
        return steps, []
    sizes = Sizes.of(setup, setup.run.per_device_eval_batch_size)
    return steps, [_PassAt(evaluation_plan(model, structure(setup)), sizes, card)]


def _card_of_step(card: Card, optimisation: Optimisation) -> Card:
    """The card on which the optimizer's step depends: any where it sums no rows."""
    return card if RULES[optimisation.optim].sums_rows else Card()


class _Named(int):
    """Bytes of a tensor of the tape, which know their place among a run's values."""

    place: int

    @classmethod
    def of(cls, values: Sequence[int], place: int) -> _Named:
        """One of the values."""
        named = cls(values[place])
        named.place = place
        return named


class _Template(NamedTuple):
    """The log of all runs that differ in the bytes of their tensors alone."""

    log: Log
    """Without bytes."""
    trace: Trace
    places: Sequence[int]
    """Where the bytes of each request are found: among a run's values, or after them in ``others``."""
    others: Sequence[int]

    @classmethod
    def of(cls, written: Writer, values: Sequence[int]) -> _Template:
        """That of one of these runs, whose values are named."""
        others, places = array("q"), array("q")
        for size in written.sizes:
            places.append(size.place if isinstance(size, _Named) else len(values) + len(others))
            if not isinstance(size, _Named):
                others.append(size)
        log = written.log()
        whats, keys, _, streams = log.requests
        unsized = log._replace(requests=[whats, keys, array("q"), streams])
        return cls(unsized, written.trace, places, others)

    def at(self, values: Sequence[int]) -> Log:
        """The log of the run with these values."""
        whats, keys, _, streams = self.log.requests
        sizes = map([*values, *self.others].__getitem__, self.places)
        return self.log._replace(requests=[whats, keys, array("q", sizes), streams])


MOST_PATTERNS = 4
"""Patterns of one structure that are remembered: ours."""


@lru_cache(maxsize=24)
def _templates(
    model: Model,
    workspace: int,
    card: Card,
    unsized: TrainingSetup,
    evaluates: int,
) -> dict[Hashable, _Template]:
    """The templates of one structure, by what decides the order of their requests; empty at first."""
    return {}


class _PassAt:
    """A pass at its sizes."""

    def __init__(self, steps: Steps, sizes: Sizes, card: Card) -> None:
        self.sized, self.schedule = steps.step(sizes)
        self.program = self.schedule.program
        self.sizes: Sequence[int] = self.sized.sizes
        """Bytes of the tensors of each slot."""
        self.temporaries = {
            at: [taken(temporary) for temporary in self.sized.scratch_before(at, card)]
            for at in self.program.scratches
        }
        """Bytes of what the kernels before an event allocate for themselves, kernel by kernel."""

    @property
    def values(self) -> Iterator[int]:
        """All of its bytes, in order."""
        yield from self.sizes
        for kernels in self.temporaries.values():
            yield from chain.from_iterable(kernels)

    @property
    def pattern(self) -> Hashable:
        """What decides the order of its requests: the program, what is empty, and how many tensors stand for one."""
        sizes = self.sizes
        return (
            self.program,
            bytes(map(bool, sizes)),
            tuple(sizes[one] and sizes[slot] // sizes[one] for slot, one in _stands(self.program)),
            tuple(map(len, chain.from_iterable(self.temporaries.values()))),
        )

    def name(self, named: Sequence[_Named], first: int) -> int:
        """Take its bytes from named values, which begin with ``first``; returns where they end."""
        place = first + len(self.sizes)
        self.sizes = named[first:place]
        for kernels in self.temporaries.values():
            for number, kernel in enumerate(kernels):
                kernels[number] = [*named[place : place + len(kernel)]]
                place += len(kernel)
        return place


@lru_cache(maxsize=32)
def _stands(played: Program) -> Sequence[tuple[int, int]]:
    """Slots of tensors that stand for several, each with the slot of one of these."""
    keys = _keys(played)
    found = {
        (slot, keys[number].slot)
        for slot, number in zip(played.slots, played.storages, strict=True)
        if keys[number].key >= 0
    }
    return sorted((slot, one) for slot, one in found if slot != one)


def _written(
    model: Model,
    setup: TrainingSetup,
    fixed: _Fixed,
    steps: Sequence[_PassAt],
    evaluated: Sequence[_PassAt],
    workspace: int,
    rank: int,
) -> Writer:
    writer, keys = Writer(), Keys(fixed.keys)
    writer.once(0, fixed.load)
    left = Left([], [])

    def passes(*, records: bool = False) -> list[PassPiece]:
        waiting, found = Waiting(), list[PassPiece]()
        for number, micro_step in enumerate(steps):
            others = _Others(waiting, left, records and number == 0, rank, number)
            found += _pass(writer, keys, model, micro_step, setup, workspace, others)
            waiting.collects = False
            found.append(PassPiece(writer.stretch(_waited(setup.mesh))))
        return found

    step = passes()
    first_step = passes(records=True) if setup.mesh.strategy.gathers_modules else step
    after: list[Request] = []
    if reduces_after_backward(setup.mesh):
        after += reduced(model, setup, rank, by_size(left.gradients), KEPT, STEPPED)
        after += (Request(GIVE_ALL, key) for key in left.buckets)
    elif setup.batch.gradient_accumulation_steps > 1 and keeps_parts(setup.mesh):
        after.append(Request(GIVE, KEPT))  # the last micro-step's were added to the first one's
    for requests in fixed.optimizer:
        writer.trace.optimizers.append(writer.stretch([*after, *requests, Request(GIVE_ALL, KEPT)]))
    released = writer.stretch(Request(GIVE_ALL, key) for key in range(fixed.keys, keys.first))
    emptied = PassPiece(writer.stretch([Request(EMPTY, HELD)]))
    evaluation: list[PassPiece] = []
    for pass_at in evaluated:
        evaluation = _pass(writer, keys, model, pass_at, setup, workspace)
    for number in range(1, 1 + STEPS):
        if number == 2:
            writer.once(number, fixed.before_second)
        for piece in step if number > 1 else first_step:
            if piece.stretch != BEFORE_BACKWARD:
                writer.run(number, piece)
            elif _empties(setup.allocator, number):
                writer.run(number, emptied)
        own = writer.trace.optimizers[min(number, len(writer.trace.optimizers)) - 1]
        writer.run(number, PassPiece(own))
        writer.run(number, PassPiece(released))
        if number == STEPS - 1:
            for piece in evaluation:
                writer.run(number, piece)
    return writer


def _empties(allocator: Allocator, step: int) -> bool:
    """Whether Trainer empties the cache in a step, counted from 1. The last one played stands for all later ones.

    Source: transformers 5.23, trainer.py, ``training_step`` (between ``compute_loss`` and ``backward``).
    """
    every = allocator.torch_empty_cache_steps
    return every is not None and ((step - 1) % every == 0 or step == STEPS)


def _waited(mesh: Mesh) -> Iterator[Request]:
    """The CPU reads the loss of each micro-step, so that what FSDP 1 frees late is free by then.

    Source: transformers 5.23, trainer.py, ``_run_epoch`` (``torch.isnan(tr_loss_step)``).
    """
    if mesh.uses_fsdp1:
        yield Request(WAIT, HELD)


class _Fixed(NamedTuple):
    """What batch and length do not change: loading, the optimizer's step, and the first key that is not in use."""

    load: list[Request]
    optimizer: list[list[Request]]
    """Step by step, where they differ."""
    keys: int
    before_second: list[Request]
    """Requests before the second step."""


@lru_cache(maxsize=32)
def _fixed(
    model: Model,
    card: Card,
    same: TrainingSetup,
    clips: bool,
    rank: int,
    *,
    on_host: bool,
) -> _Fixed:
    resident, keys = resident_memory(model, same), Keys(FREE_KEYS)
    later: list[list[Request]] = []
    part = part_of(model, same.mesh.tp_size)
    load = load_requests(keys, part, same, resident, on_host=on_host)
    if has_partitions(same.mesh):
        optimizer = [*stepped(model, same, rank, STEPPED, keys.new)]
    elif has_shards(same.mesh):
        optimizer = [*stepped_in_groups(model, same, STEPPED, keys.new)]
    elif same.mesh.strategy.is_zero:
        optimizer = [*flat_step(resident)]
    else:
        trained = trained_groups(part, same)
        clipped = [*norms(chain(*trained))] if clips else []
        first = keys.first
        optimizer = [*clipped, *optimizer_step(keys, trained, same.optimisation, resident, card)]
        if RULES[same.optimisation.optim].steps_differ:
            later = [
                [
                    *clipped,
                    *optimizer_step(Keys(first), trained, same.optimisation, resident, card, step),
                ]
                for step in range(2, 1 + STEPS)
            ]
    if RULES[same.optimisation.optim].starts_with_states and not same.mesh.strategy.is_zero:
        load += (request for request in optimizer if request.what == TAKE_ONCE)
    again: list[Request] = []
    if same.mesh.strategy.averages_in_buckets:
        _, rebuilt = buckets(in_module_order(model, same), same)
        if rebuilt is not None:
            again = [Request(GIVE_ALL, BUCKETS)]
            again += (Request(TAKE, BUCKETS, allocated(size)) for size in rebuilt)
    return _Fixed(load, [optimizer, *later], keys.first, again)


def _micro_steps(model: Model, setup: TrainingSetup) -> Iterator[Plan]:
    """The step; before it one whose gradients are the first, where gradients are accumulated."""
    same = structure(setup)
    if setup.batch.gradient_accumulation_steps > 1:
        # ZeRO-3 has a place for gradients from the start
        has_place = same.mesh.strategy.has_gradient_buffer
        yield plan(model, same if has_place else same.replace(gradient_accumulation_steps=1))
    yield plan(model, same)


def _pass(
    writer: Writer,
    keys: Keys,
    model: Model,
    here: _PassAt,
    setup: TrainingSetup,
    workspace: int,
    others: _Others | None = None,
) -> list[PassPiece]:
    """The pieces of one played pass, in order."""
    schedule, number = here.schedule, len(writer.trace.passes)
    micro_step = others.micro_step if others else 0
    writer.trace.passes.append(WrittenPass(schedule, micro_step, is_evaluation=others is None))
    segments = _Segments(keys, model, here, setup, workspace, others)
    known: dict[tuple[int, int], int] = {}
    order: list[PassPiece] = []
    phases = [run.phase for run in schedule.runs]
    for index, run in enumerate(schedule.runs):
        if run.phase is Phase.BACKWARD and run.phase not in phases[:index]:
            order.append(PassPiece(BEFORE_BACKWARD))
        place = 0
        for pattern, alike in groupby(segments.patterns(index)):
            if (run.segment, pattern) not in known:
                known[run.segment, pattern] = writer.traced(segments.requests(run, pattern))
            times = len(list(alike))
            order.append(PassPiece(known[run.segment, pattern], times, number, index, place))
            place += times
    order += (
        PassPiece(writer.stretch(Request(GIVE_ALL, key) for key in freed))
        for freed in segments.freed_after()
    )
    if others is not None:
        others.left.add(here.sized, here.program, segments.keys, segments.first)
    return order


class _Segments:
    """The requests of a pass, one segment after another."""

    def __init__(
        self,
        keys: Keys,
        model: Model,
        here: _PassAt,
        setup: TrainingSetup,
        workspace: int,
        others: _Others | None,
    ) -> None:
        self._model, self._here, self._setup, self._others = model, here, setup, others
        self._workspace = workspace
        self.keys = _keys(here.program)
        self.first = keys.new(max(storage.key for storage in self.keys) + 1)
        """The first key of the pass's tensors."""
        records = others is not None and others.records
        self._gathers = here.schedule.gathers(here.sized, setup.mesh.shard_ranks, records=records)
        self._amounts = {of: keys.new(len(made.sizes)) for of, made in self._gathers.items()}
        """The first key of what is gathered of each model."""
        self._ends = keys.first
        self._rank = others.rank if others is not None and keeps_parts(setup.mesh) else None
        """The rank, where each keeps its own gradients."""

    def patterns(self, index: int) -> Sequence[int]:
        """For each repetition of a run, what tells its requests from another's."""
        run = self._here.schedule.runs[index]
        if self._rank is not None:
            runs = self._here.schedule.runs
            return [
                *places(
                    self._model, self._setup.adapters, self._setup.mesh, self._rank, runs, index
                )
            ]
        gathered = self._gathers.get(run.model)
        return gathered.runs[index] if gathered else [0] * run.length

    def requests(self, run: Run, pattern: int) -> Iterable[tuple[Request, int]]:
        """Those of a repetition of a run, each with its event."""
        others, played = self._others, self._here.program
        waits = others.waiting.of(played.marks[run.segment]) if others else []
        requests = self._of_strategy(
            _segment(self._here, run.segment, self.keys, self.first, self._workspace, waits),
            run,
            pattern,
        )
        if waits_whole(self._setup) and others is not None and others.waiting.collects:
            return unreduced(requests, played, waits)
        return requests

    def _of_strategy(
        self, requests: Iterable[tuple[Request, int]], run: Run, pattern: int
    ) -> Iterable[tuple[Request, int]]:
        """The same with what the strategy gathers, reduces and keeps, on its streams."""
        mesh, played = self._setup.mesh, self._here.program
        if mesh.uses_fsdp1:
            return on_streams_of_fsdp1(requests, played, OLD if run.layers else OLD_ROOT)
        if mesh.strategy.is_fsdp:
            return on_streams_of_fsdp2(requests, played)
        if reduces_after_backward(mesh):
            return without_reduction(requests, played)
        if self._rank is not None:
            own_bytes = kept_bytes(self._model, self._setup, self._rank)
            return of_rank(requests, played, pattern, own_bytes)
        if gathered := self._gathers.get(run.model):
            starts = (call.start for call in played.calls[run.segment])
            changes = zip(starts, gathered.patterns[pattern], strict=True)
            requests = gathering(requests, changes, gathered.sizes, self._amounts[run.model])
            requests = reducing(requests, played)
            if mesh.overlap_comm is False:
                # DeepSpeed 0.19.8, runtime/zero/parameter_offload.py and stage3.py: the default stream
                return ((request._replace(stream=COMPUTE), at) for request, at in requests)
        return requests

    def freed_after(self) -> Iterator[Iterable[int]]:
        """Keys of what goes with the pass: nothing stays gathered between two, nor in its graph."""
        if self._gathers:
            yield range(min(self._amounts.values()), self._ends)
        if self._setup.mesh.strategy.keeps_whole:
            yield (self.first + key for key in _left(self._here.program))


@lru_cache(maxsize=32)
def _left(played: Program) -> Sequence[int]:
    """Keys of what a pass leaves beside gradients: a leaf that is no parameter, and its gradient, go with the graph.

    Source: transformers 5.23, trainer.py, ``training_step`` (``loss.detach()`` is all that it returns).
    """
    keys, alive = _keys(played), dict[int, int]()
    for start, end in played.spans:
        for at in range(start, end):
            if played.signs[at] > 0:
                alive[played.storages[at]] = played.components[at]
            else:
                alive.pop(played.storages[at], None)
    found = {keys[storage].key for storage, of in alive.items() if of in (ACTIVATIONS, TEMPORARIES)}
    return sorted(
        found - {-1} - {keys[storage].key for storage, of in alive.items() if of == GRADIENTS}
    )


@lru_cache(maxsize=32)
def _keys(played: Program) -> Sequence[StorageKey]:
    """The key of each storage of a played step, by its number: equal for equal tensors of repeated layers.

    The n-th tensor that an operator makes of one size in a layer corresponds to the n-th in any other.
    """
    known: dict[tuple[str, int, int], int] = {}
    found = [StorageKey(-1, 0)] * (1 + max(played.storages))
    for start, end in played.spans:
        seen: Counter[tuple[str, int]] = Counter()
        for at in range(start, end):
            number = played.storages[at]
            if played.signs[at] > 0 and found[number].key < 0:
                kind = played.operations[at], played.slots[at]
                key = known.setdefault((*kind, seen[kind]), len(known))
                found[number] = StorageKey(key, played.slots[at])
                seen[kind] += 1
    return found


def _segment(
    here: _PassAt,
    segment: int,
    keys: Sequence[StorageKey],
    first: int,
    workspace: int,
    left: list[int],
) -> Iterator[tuple[Request, int]]:
    """The requests of one segment, each with its event; storages have keys from ``first`` on.

    ``left``: keys of an earlier micro-step's gradients that are freed here, in order. A tensor that only changes its
    component stays where it is; one that comes to stand for several equal ones is joined by these.
    """
    played, sizes = here.program, here.sizes
    at, end = played.spans[segment]
    signs, slots, storages = played.signs, played.slots, played.storages
    made: dict[int, set[int]] = {}
    while at < end:
        if at in played.first_products:
            handle = played.first_products.index(at)
            yield Request(TAKE_ONCE, WORKSPACES + handle, workspace), at
        for temporaries in here.temporaries.get(at, ()):
            yield from ((request, at) for request in scratch(temporaries))
        sign, size, number = signs[at], sizes[slots[at]], storages[at]
        key, slot = keys[number]
        if not size or key < 0:
            if left and not number and sign < 0 and played.components[at] == GRADIENTS:
                yield Request(GIVE_OLDEST, left.pop(0)), at
            at += 1
            continue
        key, one = first + key, sizes[slot]
        alive = made.setdefault(key, set())
        if sign < 0 and played.is_kept(at, end):
            joined = sizes[slots[at + 1]]
            if joined // one > MOST_ALIKE:
                yield Request(GIVE, key), at
                yield Request(TAKE, key, joined), at
            else:
                for _ in range(joined // one - size // one):
                    yield Request(TAKE, key, one), at
            at += 2
            continue
        if sign > 0:
            alive.add(number)
            yield Request(TAKE, key, size), at
        else:
            what = GIVE_BEFORE if alive - {number} and number not in alive else GIVE
            alive.discard(number)
            for _ in range(1 if size // one > MOST_ALIKE else size // one):
                yield Request(what, key), at
        at += 1


class _Others(NamedTuple):
    """What a training pass has to do with others."""

    waiting: Waiting
    left: Left
    """Where what it leaves is added."""
    records: bool
    """Whether it comes before ZeRO-3 knows the order of modules."""
    rank: int
    micro_step: int
