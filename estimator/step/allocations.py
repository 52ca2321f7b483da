"""What a run asks PyTorch's allocator for, in order: loading, its first steps with their optimizer, an evaluation.

The tape gives a step's tensors and their order. Loading and the optimizer's step follow the parameters in the order of
the model's classes. A release frees the block that was taken for its tensor: tensors of equal layers share a key, and
backward frees the newest of a key first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, groupby
from typing import NamedTuple

from estimator.families.adapters import is_trained_whole
from estimator.families.counts import tied_head
from estimator.families.modules import Module, is_quantized, weight_shapes
from estimator.families.towers import made_modules
from estimator.families.weights import (
    FLOAT32_BYTES,
    NESTED_BLOCK,
    QUANTIZATION_BLOCK,
    AdapterTensor,
    adapter_tensors,
    elements,
    module_bytes,
    packed_bytes,
    weight_width,
)
from estimator.parallel.parameter_order import (
    At,
    Located,
    modules_as_loaded,
    modules_in_order,
    stepped_in_order,
    trained_in_order,
)
from estimator.parallel.strategies import resident_memory
from estimator.parallel.zero import SUB_GROUP, packed_part, trained_width, whole_tensors
from estimator.parallel.zero import width as zero_width
from estimator.resident.model import (
    Resident,
    gradient_bytes,
    idle_tensors,
    trainable_tensors,
    trained_of,
)
from estimator.resident.optimizer import RULES, Trainable, state_tensors
from estimator.resident.overhead import HANDLES, THREADS_PER_MULTIPROCESSOR, workspace_bytes
from estimator.step.blocks import (
    EMPTY,
    GIVE,
    GIVE_ALL,
    GIVE_BEFORE,
    GIVE_LATE,
    GIVE_OLDEST,
    TAKE,
    TAKE_ONCE,
    WAIT,
    Log,
    Request,
    log_of,
)
from estimator.step.ddp_requests import IN_FLIGHT, buckets, made_equal
from estimator.step.evaluation import evaluation_plan
from estimator.step.timeline import Plan, Run, Sizes, plan, structure
from estimator.step.wrapping import (
    Shards,
    flattened,
    stepped_pieces,
    stepped_shards,
    wrapped,
    wraps_in_groups,
)
from estimator.step.zero_requests import (
    by_size,
    flat_weights,
    has_partitions,
    has_shards,
    kept_bytes,
    reached,
    reduced,
    sharded,
    stepped,
    stepped_in_groups,
)
from estimator.tape.program import Program, Sized
from estimator.tape.scratch import Card, rows_summed
from estimator.tape.tape import (
    ACTIVATIONS,
    GRADIENTS,
    SUM_OF_GRADIENTS,
    TEMPORARIES,
    WEIGHTS,
    Mark,
)
from estimator.values.arithmetic import allocated, ceil_div
from estimator.values.facets.mesh import Mesh
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Loss, Model, Objective, Optimizer, Phase, Strategy

STEPS = 3
"""Steps played: in the second, the optimizer's states are in blocks that activations had left; from then on every
request finds the same block again, unless the card is nearly full."""
STATES = 2
"""Flat states of DeepSpeed's optimizer."""
NORM_CHUNK = 65_536
"""Elements whose norm one block of threads adds up: torch 2.13, aten/src/ATen/native/cuda/MultiTensorApply.cuh,
``kChunkSize``."""
MOST_ALIKE = 512
"""Equal tensors of a loop that are requested one by one; more count as one, for the cost of a replay."""

COMPUTE, GATHER, CAST, REDUCE = range(4)
"""Streams."""
AVERAGE = CAST
"""FSDP 2's for the average between replicas; FSDP 1 casts on it."""
HELD, SCRATCH, WORKSPACES, STEPPED, HEAD = 0, 1, 2, 4, 5
KEPT, BUCKETS, OLD, OLD_ROOT, FREE_KEYS = range(6, 11)
"""Keys: what stays, a kernel's temporaries, cuBLAS's two workspaces, the optimizer's temporaries, a head before it is
tied; gradients that ZeRO-1 keeps of a step, DDP's buckets, shards of layers and of the root before FSDP 1 upcasts them;
and the first of all others."""


MOVED, MADE = False, True
"""How the weights come to the GPU: the model is moved there with its adapters, or made there and given its adapters
there. Made, a tied head is allocated, too, and freed once it is tied."""


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


class _Writer:
    """Collects stretches of requests and their order."""

    def __init__(self) -> None:
        self._stretches: list[list[Request]] = []
        self._order: list[tuple[int, int]] = []

    def stretch(self, requests: Iterable[Request]) -> int:
        """A stretch that may run several times."""
        self._stretches.append(list(requests))
        return len(self._stretches) - 1

    def run(self, stretch: int, times: int = 1) -> None:
        """Run a stretch next."""
        if self._stretches[stretch]:
            self._order.append((stretch, times))

    def once(self, requests: Iterable[Request]) -> None:
        """Run requests next."""
        self.run(self.stretch(requests))

    def log(self) -> Log:
        """The requests as ``play`` reads them."""
        return log_of(self._stretches, self._order)


@lru_cache(maxsize=32)
def allocations(
    model: Model,
    hardware: Hardware,
    setup: TrainingSetup,
    made: bool = MOVED,
    rank: int = 0,
    *,
    on_host: bool = False,
) -> Log:
    """The requests of a run: loading, three steps, and an evaluation before the third where one is planned.

    ``rank``: under ZeRO 1 and 2, where each keeps other gradients; see ``ranks_played``. ``on_host``: their weights
    become flat on the host. What an objective keeps beside the model is taken in as many equal pieces as there are
    tensors, and so is everything under offloading.

    Source: derived from the tape; torch 2.13, optim/adam.py, nn/utils/clip_grad.py; transformers 5.23, trainer.py,
    ``_inner_training_loop``; traces of PyTorch's allocator (``tests/verify``).
    """
    same, (workspace, card) = structure(setup), hardware
    fixed = _fixed(model, card, same, bool(setup.max_grad_norm), made, rank, on_host=on_host)
    writer, keys = _Writer(), _Keys(fixed.keys)
    writer.once(fixed.load)
    left = _Left([], [])
    here = Sizes.of(setup)

    def passes(*, records: bool = False) -> list[tuple[int, int]]:
        waiting, found = _Waiting(), list[tuple[int, int]]()
        for number, micro_step in enumerate(_micro_steps(model, setup)):
            others = _Others(waiting, left, records and number == 0, rank)
            found += _pass(writer, keys, model, micro_step, setup, here, card, workspace, others)
            waiting.collects = False
            found.append((writer.stretch(_waited(setup)), 1))
        return found

    step = passes()
    first_step = passes(records=True) if setup.strategy is Strategy.ZERO3 else step
    after: list[Request] = []
    if _reduces_after_backward(setup.mesh):
        after += reduced(model, setup, rank, by_size(left.gradients), KEPT, STEPPED)
        after += (Request(GIVE_ALL, key) for key in left.buckets)
    elif setup.gradient_accumulation_steps > 1 and _keeps_parts(setup.mesh):
        after.append(Request(GIVE, KEPT))  # the last micro-step's were added to the first one's
    optimizer = writer.stretch([*after, *fixed.optimizer, Request(GIVE_ALL, KEPT)])
    released = writer.stretch(Request(GIVE_ALL, key) for key in range(fixed.keys, keys.first))
    evaluation: list[tuple[int, int]] = []
    if setup.run.eval_strategy != "no":
        sizes = Sizes.of(setup, setup.run.per_device_eval_batch_size)
        evaluated_plan = evaluation_plan(model, same)
        evaluation = _pass(writer, keys, model, evaluated_plan, setup, sizes, card, workspace)
    for number in range(STEPS):
        if number == 1:
            writer.once(fixed.before_second)
        for stretch, times in step if number else first_step:
            writer.run(stretch, times)
        writer.run(optimizer)
        writer.run(released)
        if number == STEPS - 2:
            for stretch, times in evaluation:
                writer.run(stretch, times)
    return writer.log()


def _waited(setup: TrainingSetup) -> Iterator[Request]:
    """The CPU reads the loss of each micro-step, so that what FSDP 1 frees late is free by then.

    Source: transformers 5.23, trainer.py, ``_run_epoch`` (``torch.isnan(tr_loss_step)``).
    """
    if setup.uses_fsdp1:
        yield Request(WAIT, HELD)


class _Fixed(NamedTuple):
    """What batch and length do not change: loading, the optimizer's step, and the first key that is not in use."""

    load: list[Request]
    optimizer: list[Request]
    keys: int
    before_second: list[Request]
    """Requests before the second step."""


@lru_cache(maxsize=64)
def _fixed(
    model: Model,
    card: Card,
    same: TrainingSetup,
    clips: bool,
    made: bool,
    rank: int,
    *,
    on_host: bool,
) -> _Fixed:
    resident, keys = resident_memory(model, same), _Keys(FREE_KEYS)
    load: list[Request] = []
    trained = _load(load, keys, model, same, resident, made, on_host=on_host)
    if has_partitions(same.mesh):
        optimizer = [*stepped(model, same, rank, STEPPED, keys.new)]
    elif has_shards(same.mesh):
        optimizer = [*stepped_in_groups(model, same, STEPPED, keys.new)]
    elif same.strategy.is_zero:
        optimizer = [*_flat_step(resident)]
    else:
        optimizer = [*_norms(chain(*trained))] if clips else []
        optimizer += _optimizer_step(keys, trained, same, resident, card)
    again: list[Request] = []
    if same.strategy is Strategy.DDP:
        _, rebuilt = buckets(_in_module_order(model, same), same)
        if rebuilt is not None:
            again = [Request(GIVE_ALL, BUCKETS)]
            again += (Request(TAKE, BUCKETS, allocated(it)) for it in rebuilt)
    return _Fixed(load, optimizer, keys.first, again)


class _Keys:
    """Gives keys that nothing else uses."""

    def __init__(self, first: int) -> None:
        self.first = first
        """The first that is not in use."""

    def new(self, count: int) -> int:
        """The first of so many new ones."""
        self.first += count
        return self.first - count


def _micro_steps(model: Model, setup: TrainingSetup) -> Iterator[Plan]:
    """The step; before it one whose gradients are the first, where gradients are accumulated."""
    same = structure(setup)
    if setup.gradient_accumulation_steps > 1:
        # ZeRO-3 has a place for gradients from the start
        has_place = same.strategy is Strategy.ZERO3
        yield plan(model, same if has_place else replace(same, gradient_accumulation_steps=1))
    yield plan(model, same)


def _pass(
    writer: _Writer,
    keys: _Keys,
    model: Model,
    steps: Plan,
    setup: TrainingSetup,
    sizes: Sizes,
    card: Card,
    workspace: int,
    others: _Others | None = None,
) -> list[tuple[int, int]]:
    """The stretches of one played pass, in order."""
    sized, schedule = steps.step(sizes)
    own = _keys(schedule.program)
    first = keys.new(max(it.key for it in own) + 1)
    gathers = schedule.gathers(
        sized, setup.mesh.shard_ranks, records=others is not None and others.records
    )
    amounts = {model: keys.new(len(it.sizes)) for model, it in gathers.items()}
    own_bytes = 0
    if others is not None and _keeps_parts(setup.mesh):
        own_bytes = kept_bytes(model, setup, others.rank)
    known: dict[tuple[int, int], int] = {}
    order: list[tuple[int, int]] = []
    for index, run in enumerate(schedule.runs):
        gathered = gathers.get(run.model)
        patterns = gathered.runs[index] if gathered else [0] * run.length
        if others is not None and _keeps_parts(setup.mesh):
            patterns = [*_places(model, setup, others.rank, schedule.runs, index)]
        for pattern, alike in groupby(patterns):
            if (run.segment, pattern) not in known:
                played = schedule.program
                waits = others.waiting.of(played.marks[run.segment]) if others else []
                requests = _segment(sized, played, run.segment, own, first, card, workspace, waits)
                if setup.mesh.uses_fsdp1:
                    requests = _on_streams(requests, played, OLD if run.layers else OLD_ROOT)
                elif setup.strategy.is_fsdp:
                    requests = _on_streams2(requests, played)
                elif _reduces_after_backward(setup.mesh):
                    requests = _without_reduction(requests, played)
                elif others is not None and _keeps_parts(setup.mesh):
                    requests = _of_rank(requests, played, pattern, own_bytes)
                elif gathered:
                    changes = zip(
                        (it.start for it in played.calls[run.segment]),
                        gathered.patterns[pattern],
                        strict=True,
                    )
                    requests = _gathering(requests, changes, gathered.sizes, amounts[run.model])
                    requests = _reducing(requests, played)
                    if setup.mesh.overlap_comm is False:
                        # DeepSpeed 0.19.8, runtime/zero/parameter_offload.py and stage3.py: the default stream
                        requests = ((it._replace(stream=COMPUTE), at) for it, at in requests)
                if waits_whole(setup) and others is not None and others.waiting.collects:
                    requests = _unreduced(requests, played, waits)
                known[run.segment, pattern] = writer.stretch(it for it, _ in requests)
            order.append((known[run.segment, pattern], len(list(alike))))
    if gathers:  # nothing stays gathered between two passes
        left_over = range(min(amounts.values()), keys.first)
        order.append((writer.stretch(Request(GIVE_ALL, key) for key in left_over), 1))
    if others is not None:
        others.left.add(sized, schedule.program, own, first)
    if setup.strategy in (Strategy.NONE, Strategy.DDP):
        gone = _left(schedule.program, own)
        order.append((writer.stretch(Request(GIVE_ALL, first + key) for key in gone), 1))
    return order


def _left(played: Program, keys: Sequence[_Key]) -> list[int]:
    """Keys of what a pass leaves beside gradients: a leaf that is no parameter, and its gradient, go with the graph.

    Source: transformers 5.23, trainer.py, ``training_step`` (``loss.detach()`` is all that it returns).
    """
    alive: dict[int, int] = {}
    for start, end in played.spans:
        for at in range(start, end):
            if played.signs[at] > 0:
                alive[played.storages[at]] = played.components[at]
            else:
                alive.pop(played.storages[at], None)
    found = {keys[it].key for it, of in alive.items() if of in (ACTIVATIONS, TEMPORARIES)}
    return sorted(found - {-1} - {keys[it].key for it, of in alive.items() if of == GRADIENTS})


class _Key(NamedTuple):
    """What a storage is known by."""

    key: int
    """-1: it was allocated before the step."""
    slot: int
    """Where its size is found, before it stands for several."""


def _keys(played: Program) -> list[_Key]:
    """The key of each storage of a played step, by its number: equal for equal tensors of repeated layers.

    The n-th tensor that an operator makes of one size in a layer corresponds to the n-th in any other.
    """
    known: dict[tuple[str, int, int], int] = {}
    found = [_Key(-1, 0)] * (1 + max(played.storages))
    for start, end in played.spans:
        seen: Counter[tuple[str, int]] = Counter()
        for at in range(start, end):
            number = played.storages[at]
            if played.signs[at] > 0 and found[number].key < 0:
                kind = played.operations[at], played.slots[at]
                key = known.setdefault((*kind, seen[kind]), len(known))
                found[number] = _Key(key, played.slots[at])
                seen[kind] += 1
    return found


def _segment(
    sized: Sized,
    played: Program,
    segment: int,
    keys: Sequence[_Key],
    first: int,
    card: Card,
    workspace: int,
    left: list[int],
) -> Iterator[tuple[Request, int]]:
    """The requests of one segment, each with its event; storages have keys from ``first`` on.

    ``left``: keys of an earlier micro-step's gradients that are freed here, in order. A tensor that only changes its
    component stays where it is; one that comes to stand for several equal ones is joined by these.
    """
    at, end = played.spans[segment]
    made: dict[int, set[int]] = {}
    while at < end:
        if at in played.first_products:
            handle = played.first_products.index(at)
            yield Request(TAKE_ONCE, WORKSPACES + handle, workspace), at
        for sizes in sized.scratch_before(at, card):
            yield from ((it, at) for it in _scratch(sizes))
        sign, size, number = played.signs[at], sized.size_of(played.slots[at]), played.storages[at]
        if not size or (key := keys[number].key) < 0:
            if left and not number and sign < 0 and played.components[at] == GRADIENTS:
                yield Request(GIVE, left.pop(0)), at
            at += 1
            continue
        key, one = first + key, sized.size_of(keys[number].slot)
        here = made.setdefault(key, set())
        if played.is_kept(at, end):
            joined = sized.size_of(played.slots[at + 1])
            if joined // one > MOST_ALIKE:
                yield Request(GIVE, key), at
                yield Request(TAKE, key, joined), at
            else:
                for _ in range(joined // one - size // one):
                    yield Request(TAKE, key, one), at
            at += 2
            continue
        if sign > 0:
            here.add(number)
            yield Request(TAKE, key, size), at
        else:
            what = GIVE_BEFORE if here - {number} and number not in here else GIVE
            here.discard(number)
            for _ in range(1 if size // one > MOST_ALIKE else size // one):
                yield Request(what, key), at
        at += 1


def _scratch(sizes: Iterable[int]) -> Iterator[Request]:
    yield from (Request(TAKE, SCRATCH, allocated(size)) for size in sizes if size)
    yield Request(GIVE_ALL, SCRATCH)


def _on_streams(
    requests: Iterable[tuple[Request, int]], played: Program, old: int
) -> Iterator[tuple[Request, int]]:
    """The same with FSDP1's streams, and with the release of what a unit's shard was before it was upcast.

    ``old``: its key; it goes when the unit's weights are freed for the first time.

    Source: torch 2.13, distributed/fsdp/_runtime_utils.py, ``_init_streams``, and _flat_param.py, ``reshard``
    (``_use_sharded_views``).
    """
    for request, at in requests:
        stream = COMPUTE
        if played.operations[at] == "all-gather":
            stream = GATHER if played.components[at] == WEIGHTS else CAST
        elif played.operations[at] in ("flatten gradients", SUM_OF_GRADIENTS):
            stream = GATHER  # autograd goes back through the views on the stream that gathered them
        elif played.operations[at] == "reduce-scatter":
            stream = REDUCE
        late = stream == GATHER and request.what == GIVE
        if late and played.components[at] == WEIGHTS:
            yield Request(GIVE_OLDEST, old), at
        yield request._replace(stream=stream, what=GIVE_LATE if late else request.what), at


STREAMS_OF_FSDP2 = {"all-gather": GATHER, "reduce-scatter": REDUCE, "all-reduce": AVERAGE}
"""Streams on which FSDP 2 allocates, by operator: weights and gradients themselves are on the computing one.

Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_collectives.py, ``foreach_all_gather``, ``foreach_reduce``;
_fsdp_param_group.py, ``get_all_gather_streams``.
"""


REDUCING = ("copy gradients into the reduce-scatter", "reduce-scatter", "all-reduce")
"""Operators with which FSDP 2 reduces gradients."""


def _on_streams2(
    requests: Iterable[tuple[Request, int]], played: Program
) -> Iterator[tuple[Request, int]]:
    """The same with FSDP 2's streams."""
    for request, at in requests:
        stream = STREAMS_OF_FSDP2.get(played.operations[at], COMPUTE)
        yield request._replace(stream=stream), at


class _Waiting:
    """Keys of gradients that wait whole for the last micro-step, by the part of backward that frees them."""

    def __init__(self) -> None:
        self.collects = True
        """Whether it is the first micro-step that is played."""
        self._keys: dict[Mark, list[int]] = {}

    def of(self, mark: Mark) -> list[int]:
        """Those of this part of the step."""
        return self._keys.setdefault(mark._replace(start=0, operation=""), [])


def waits_whole(setup: TrainingSetup) -> bool:
    """Whether gradients wait whole for the last micro-step: FSDP's under Trainer.

    Source: accelerate 1.15, accelerator.py, ``no_sync`` (``set_requires_gradient_sync``); torch 2.13,
    distributed/fsdp/_runtime_utils.py, ``_post_backward_hook`` (``_sync_gradients``).
    """
    return (
        setup.strategy.is_fsdp
        and setup.gradient_accumulation_steps > 1
        and not setup.reduces_every_micro_step
    )


def _unreduced(
    requests: Iterable[tuple[Request, int]], played: Program, left: list[int]
) -> Iterator[tuple[Request, int]]:
    """The requests of a micro-step whose gradients are not reduced; ``left`` gets their keys.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py, ``post_backward`` (``reduce_grads``).
    """
    is_reducing = False
    for request, at in requests:
        if played.operations[at] in REDUCING:
            is_reducing = is_reducing or request.what == TAKE
            continue
        is_reducing = is_reducing and request.what != TAKE
        if is_reducing and played.components[at] == GRADIENTS:
            left.append(request.key)
        else:
            yield request, at


class _Left(NamedTuple):
    """Keys of what is alive after backward."""

    gradients: list[tuple[int, int]]
    """Of weights' gradients in the order of backward, each with the bytes of one."""
    buckets: list[int]
    """Of DeepSpeed's bucket."""

    def add(self, sized: Sized, played: Program, keys: Sequence[_Key], first: int) -> None:
        """Add those of a pass, whose keys begin at ``first``."""
        for at, number in enumerate(played.storages):
            if played.signs[at] > 0 and keys[number].key >= 0:
                key = first + keys[number].key
                if played.components[at] == GRADIENTS:
                    self.gradients.append((key, sized.size_of(keys[number].slot)))
                elif played.operations[at] == "bucket":
                    self.buckets.append(key)


class _Others(NamedTuple):
    """What a training pass has to do with others."""

    waiting: _Waiting
    left: _Left
    """Where what it leaves is added."""
    records: bool
    """Whether it comes before ZeRO-3 knows the order of modules."""
    rank: int


def _reduces_after_backward(mesh: Mesh) -> bool:
    """Whether gradients are reduced after backward, on the GPU: ``reduced`` has the requests."""
    return mesh.strategy is Strategy.ZERO1 and has_partitions(mesh)


def _without_reduction(
    requests: Iterable[tuple[Request, int]], played: Program
) -> Iterator[tuple[Request, int]]:
    """The same without the copy of a rank's own gradients after backward, and without the end of the bucket."""
    buckets = {
        number
        for operation, number in zip(played.operations, played.storages, strict=True)
        if operation == "bucket"
    }
    for request, at in requests:
        is_end = played.signs[at] < 0 and played.storages[at] in buckets
        if not is_end and played.operations[at] != "reduction of gradients":
            yield request, at


def _keeps_parts(mesh: Mesh) -> bool:
    """Whether gradients are reduced during backward, and each rank keeps its own on the GPU."""
    return mesh.strategy is Strategy.ZERO2 and has_partitions(mesh)


KEEPS, SHARES = 1, 2
"""Bits of what a layer's reductions bring: this rank's gradients are allocated, several ranks' are concatenated."""


def _places(
    model: Model, setup: TrainingSetup, rank: int, runs: Sequence[Run], index: int
) -> Iterator[int]:
    """For each repetition of a run, what its reductions bring."""
    run = runs[index]
    where = reached(model, setup.adapters, setup.num_gpus, rank)
    backward = [at for at, it in enumerate(runs) if it.phase is Phase.BACKWARD]
    if index not in backward:
        yield from [0] * run.length
    elif run.layers:
        for layer in run.layers:
            at = At(layer, run.in_tower)
            yield KEEPS * (at == where.first) + SHARES * (at in where.shared)
    else:
        layered = [at for at in backward if runs[at].layers]
        ends = {min(layered, default=1) - 1: model.num_hidden_layers, len(runs) - 1: -1}
        is_first = where.first == At(ends[index]) if index in ends else False
        yield KEEPS * is_first + SHARES


def _of_rank(
    requests: Iterable[tuple[Request, int]], played: Program, brings: int, kept: int
) -> Iterator[tuple[Request, int]]:
    """The requests with the gradients of one rank, ``kept`` bytes, instead of the fullest's of several layers.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, ``copy_grads_in_partition``.
    """
    comes = bool(brings & KEEPS)
    for request, at in requests:
        operation = played.operations[at]
        if operation == "reduction of gradients" and played.components[at] == GRADIENTS:
            if comes:
                yield Request(TAKE, KEPT, kept), at
                comes = False
            continue
        if operation == "concatenate slices of several ranks" and not brings & SHARES:
            continue
        yield request, at
    if comes:
        yield Request(TAKE, KEPT, kept), 0


def _gathering(
    requests: Iterable[tuple[Request, int]],
    calls: Iterable[tuple[int, Sequence[int]]],
    sizes: Sequence[Sequence[int]],
    first: int,
) -> Iterator[tuple[Request, int]]:
    """The same with what ZeRO-3 gathers and lets go at each call: its event, and numbers of ``sizes`` in bytes.

    Source: DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py, ``__allgather_stream``.
    """
    calls = deque(calls)

    def until(at: int) -> Iterator[tuple[Request, int]]:
        while calls and calls[0][0] <= at:
            place, changes = calls.popleft()
            for change in changes:
                number = abs(change) - 1
                for size in sizes[number]:
                    if change > 0:
                        yield Request(TAKE, first + number, size, GATHER), place
                    else:
                        yield Request(GIVE, first + number), place

    for request, at in requests:
        yield from until(at)
        yield request, at
    while calls:
        yield from until(calls[0][0])


def _reducing(
    requests: Iterable[tuple[Request, int]], played: Program
) -> Iterator[tuple[Request, int]]:
    """The same with the copies that ZeRO-3 reduces on a stream of their own.

    Source: DeepSpeed 0.19.8, runtime/zero/stage3.py, ``reduce_and_partition_stream``.
    """
    for request, at in requests:
        is_copy = played.operations[at] == "reduction of gradients"
        yield request._replace(stream=REDUCE) if is_copy else request, at


# -- loading ---------------------------------------------------------------------------------------------------


def _load(
    load: list[Request],
    keys: _Keys,
    model: Model,
    same: TrainingSetup,
    resident: Resident,
    made: bool,
    *,
    on_host: bool,
) -> Sequence[Sequence[Trainable]]:
    """Weights, adapters and what stays beside them; returns the trained tensors by the optimizer's groups."""
    modules = [it.module for it in modules_in_order(model)]
    tied = tied_head(model)
    own = [module for module in modules if module not in tied]
    of_modules = sum(module_bytes(module, same) for module in own)
    is_whole = not (same.strategy.is_fsdp or same.strategy.is_zero)
    is_known = (
        is_whole
        and sum(count * module_bytes(it, same) for it, count in made_modules(model, same.adapters))
        == of_modules
    )
    trained: Sequence[Sequence[Trainable]] = []
    if has_partitions(same.mesh):
        load.extend(_partitioned(keys, own, model, same, resident, on_host=on_host))
    elif has_shards(same.mesh):
        load.extend(_sharded(keys, own, model, same, resident))
    elif wraps_in_groups(model, same):
        if same.uses_fsdp1:
            load.extend(flattened(model, same, Shards(HELD, OLD, OLD_ROOT), keys.new))
        else:
            load.extend(wrapped(model, same, HELD, keys.new))
        shards = sum(it.size for it in load if it.key == HELD)
        load.extend(_pieces(resident.weights + resident.adapters - shards, 1))
        trained = [_trained(model, same)]
    elif same.uses_fsdp1 and same.has_packed_base:
        load.extend(_packed_units(keys, model, same, resident))
        trained = [_trained(model, same)]
    elif not is_known:
        pieces = sum(
            count * len(weight_shapes(it)) for it, count in made_modules(model, same.adapters)
        )
        if same.uses_fsdp1:
            pieces = model.num_hidden_layers + 1
        load.extend(_pieces(resident.weights + resident.adapters, pieces))
        trained = [_trained(model, same)]
    else:
        if same.has_packed_base:
            load.extend(_warmed_up(keys, own, same))
            load.extend(_packed(keys, model, same))
        else:
            for module in own:
                load.extend(Request(TAKE, HELD, size) for size in _sizes(module, same))
                if made is MOVED:  # with the adapters that it has got on the CPU
                    load.extend(_held(adapter_tensors(module, same)))
        load.extend(_pieces(resident.weights - of_modules, 1))
        if made is MADE:
            load.extend(
                [
                    *(
                        Request(TAKE, HEAD, size)
                        for module in tied
                        for size in _sizes(module, same)
                    ),
                    Request(GIVE_ALL, HEAD),
                ]
            )
        trained = stepped_in_order(model, same)
        of_all = sum(map(gradient_bytes, trained))
        if of_all != gradient_bytes(trainable_tensors(model, same)):
            trained = [_trained(model, same)]
        if made is MADE or same.has_packed_base:
            load.extend(_adapters(keys, modules, same))
        beside = resident.adapters - sum(
            it.bytes for module in modules for it in adapter_tensors(module, same)
        )
        load.extend(_pieces(beside, 1))
    load.extend(_reference(own, same, resident.reference))
    if made is MOVED and is_whole:  # Trainer empties the cache before it trains
        load.append(Request(EMPTY, HELD))
    load.extend(_pieces(resident.engine, 1))
    if same.strategy is Strategy.DDP:
        load.extend(made_equal(model, same, keys.new(IN_FLIGHT + 1)))
        first_buckets, _ = buckets(_in_module_order(model, same), same)
        load.extend(Request(TAKE, BUCKETS, allocated(it)) for it in first_buckets)
    elif not has_shards(same.mesh):
        load.extend(_pieces(resident.communication, 1))
    if same.strategy.is_zero and not has_partitions(same.mesh) and not has_shards(same.mesh):
        load.extend(_flat_states(keys, resident, same.mesh))
    return trained


def _packed_units(
    keys: _Keys, model: Model, same: TrainingSetup, resident: Resident
) -> Iterator[Request]:
    """A packed model arrives whole, as each weight is packed on the GPU; then FSDP 1 cuts it layer by layer.

    Source: bitsandbytes 0.50, nn/modules.py, ``Params4bit._quantize``; torch 2.13, distributed/fsdp/_flat_param.py,
    ``shard``.
    """
    count = model.num_hidden_layers + 1
    whole = sum(
        times * module_bytes(module, same) for module, times in made_modules(model, same.adapters)
    )
    first, flat = keys.new(count), keys.new(1)
    for unit in range(count):
        yield Request(TAKE, first + unit, allocated(ceil_div(whole, count)))
    for unit, shard in enumerate(_pieces(resident.weights + resident.adapters, count)):
        yield Request(TAKE, flat, allocated(ceil_div(whole, count)))
        yield shard
        yield Request(GIVE, flat)
        yield Request(GIVE, first + unit)


def _sharded(
    keys: _Keys, modules: Iterable[Module], model: Model, same: TrainingSetup, resident: Resident
) -> Iterator[Request]:
    """Weights of stage 3: each is made whole and cut. Those that stay whole, and what else there is, come last."""
    size, key = zero_width(same.precision), keys.new(1)
    frozen: list[Request] = []
    again: list[Request] = []
    for module in modules:
        if is_quantized(module, same.adapters):
            packed = [*_packed_weight(keys, model, module, same)]
            frozen += (it._replace(key=key) if it.key == HELD else it for it in packed)
            part = packed_part(module, same, 0)
            frozen += (Request(TAKE, HELD, allocated(part)), Request(GIVE_ALL, key))
        elif same.uses_adapters or not is_trained_whole(module, same.adapters):
            for shape in weight_shapes(module):
                whole, part = elements(shape), ceil_div(elements(shape), same.num_gpus)
                arrives = [Request(TAKE, key, allocated(size * whole)), Request(GIVE, key)]
                frozen += (arrives[0], Request(TAKE, HELD, allocated(size * part)), arrives[1])
                again += arrives
    wholes = [
        allocated(trained_width(same) * elements(it.shape)) for it in trained_in_order(model, same)
    ]
    sharded_ = [*sharded(model, same, [*frozen, *again], wholes, HELD, keys.new)]
    yield from sharded_
    expected = resident.weights + resident.states.resident_bytes // (1 + STATES)
    expected += resident.accumulated + resident.communication
    small = sum(
        count for it, count in whole_tensors(model, same) if it.elements <= 10 * model.hidden_size
    )
    yield from _pieces(expected - sum(it.size for it in sharded_ if it.key == HELD), max(1, small))


def _partitioned(
    keys: _Keys,
    modules: Iterable[Module],
    model: Model,
    same: TrainingSetup,
    resident: Resident,
    *,
    on_host: bool,
) -> Iterator[Request]:
    """Weights of stages 1 and 2: those that are not trained arrive one by one and stay, the others become flat."""
    size = zero_width(same.precision)
    stays: list[Request] = []
    for module in modules:
        if is_quantized(module, same.adapters):
            stays += _packed_weight(keys, model, module, same)
        elif same.uses_adapters or not is_trained_whole(module, same.adapters):
            stays += (
                Request(TAKE, HELD, allocated(size * elements(shape)))
                for shape in weight_shapes(module)
            )
    yield from stays
    flat = [*flat_weights(model, same, HELD, keys.new, on_host=on_host)]
    yield from flat
    weights = sum(it.size for it in stays if it.key == HELD) + sum(
        it.size for it in flat if it.key == HELD
    )
    yield from _pieces(
        resident.weights + resident.states.resident_bytes // (1 + STATES) - weights, 1
    )


def _packed_weight(
    keys: _Keys, model: Model, module: Module, same: TrainingSetup
) -> Iterator[Request]:
    """A weight that is packed as it arrives, after its bias."""
    yield from (Request(TAKE, HELD, size) for size in _sizes(module, same)[1:])
    yield from _quantized(keys, module, same, packs=model.quantization is None)


def _in_module_order(model: Model, same: TrainingSetup) -> list[Trainable]:
    """What DDP reduces: the trained tensors in the order of their modules, then those without a gradient."""
    tied = tied_head(model)
    trained = [
        tensor
        for located in modules_in_order(model)
        if same.uses_adapters or located.module not in tied
        for tensor in trained_of([(located.module, 1)], [], same)
    ]
    if gradient_bytes(trained) != gradient_bytes(trainable_tensors(model, same)):
        trained = _trained(model, same)
    return [*trained, *_one_by_one(idle_tensors(model, same))]


def _trained(model: Model, same: TrainingSetup) -> list[Trainable]:
    """The trained tensors of a rank, in the order of their kinds."""
    if same.strategy.is_fsdp:
        return (stepped_pieces if same.uses_fsdp1 else stepped_shards)(model, same)
    return _one_by_one(trainable_tensors(model, same))


def _one_by_one(tensors: Iterable[Trainable]) -> list[Trainable]:
    return [it._replace(alike=1) for it in tensors for _ in range(it.alike)]


def _pieces(total: int, count: int) -> Iterator[Request]:
    """Bytes that stay, in ``count`` equal tensors."""
    if total > 0:
        yield from (Request(TAKE, HELD, allocated(ceil_div(total, count))) for _ in range(count))


def _warmed_up(keys: _Keys, modules: Iterable[Module], same: TrainingSetup) -> Iterator[Request]:
    """One block of all weights as they stay, without scales, freed before the first one arrives.

    Its segment is cut up for the weights, so it is never given back. A model that is packed is loaded to the GPU.

    Leaves out: transformers caps the block at 1.2 GiB below the card's memory, which matters where the weights fill the
    card.

    Source: transformers 5.23, modeling_utils.py, ``caching_allocator_warmup``, ``get_total_byte_count``;
    quantizers/quantizer_bnb_4bit.py, ``param_element_size``.
    """
    total = 0
    for module in modules:
        weight, *rest = map(elements, weight_shapes(module)) if weight_shapes(module) else (0,)
        if is_quantized(module, same.adapters):
            total += weight if same.has_8bit_base else packed_bytes(weight)
        else:
            total += weight * same.dtype.bytes
        total += sum(rest) * same.dtype.bytes
    key = keys.new(1)
    yield Request(TAKE, key, allocated(total))
    yield Request(GIVE, key)


def _sizes(module: Module, same: TrainingSetup) -> list[int]:
    width = weight_width(module, same)
    return [allocated(elements(shape) * width) for shape in weight_shapes(module)]


def _packed(keys: _Keys, model: Model, same: TrainingSetup) -> Iterator[Request]:
    """Weights arrive by name, each packed at once where it is to be; then what PEFT prepares is upcast.

    A bias comes before its weight. The cache is emptied after the upcasts.

    Source: transformers 5.23, core_model_loading.py, ``convert_and_load_state_dict_in_model``; peft 0.21,
    utils/other.py, ``prepare_model_for_kbit_training``.
    """
    upcasts = same.prepare_model_for_kbit_training
    narrow: dict[Located, list[tuple[int, int]]] = {}
    for located in modules_as_loaded(model):
        module = located.module
        sizes = _sizes(module, same)
        if is_quantized(module, same.adapters):
            yield from (Request(TAKE, HELD, size) for size in sizes[1:])
            yield from _quantized(keys, module, same, packs=model.quantization is None)
            continue
        loaded = same.dtype.bytes if upcasts else weight_width(module, same)
        shapes = weight_shapes(module)
        for shape, size in zip(shapes[::-1], sizes[::-1], strict=True):
            if (arrived := allocated(elements(shape) * loaded)) == size:
                yield Request(TAKE, HELD, size)
            else:
                key = keys.new(1)
                yield Request(TAKE, key, arrived)
                narrow.setdefault(located, []).insert(0, (key, size))
    if upcasts:
        for located in modules_in_order(model):
            for key, size in narrow.get(located, ()):
                yield Request(TAKE, HELD, size)
                yield Request(GIVE, key)
        yield Request(EMPTY, HELD)


def _quantized(
    keys: _Keys, module: Module, same: TrainingSetup, *, packs: bool
) -> Iterator[Request]:
    """A weight that stays packed; ``packs``: it arrives in 16 bits, and what it is packed from is freed.

    Source: bitsandbytes 0.50, functional.py, ``quantize_4bit``, nn/modules.py, ``Int8Params._quantize``.
    """
    count = elements(weight_shapes(module)[0])
    packed = module_bytes(module, same) - sum(_sizes(module, same)[1:])
    arrived, key = allocated(count * same.dtype.bytes), keys.new(1)
    if same.has_8bit_base:
        made = [arrived]  # contiguous, in float16
        stays = [packed - allocated(count), allocated(count)]
    else:
        blocks = ceil_div(count, QUANTIZATION_BLOCK)
        codes, scales = allocated(packed_bytes(count)), allocated(FLOAT32_BYTES * blocks)
        made = []
        stays = [scales, codes, packed - codes - scales]
        if same.bnb_4bit_use_double_quant:
            nested = allocated(FLOAT32_BYTES * ceil_div(blocks, NESTED_BLOCK))
            rest = packed - codes - allocated(blocks) - nested
            made, stays = [scales, scales], [codes, nested, allocated(blocks), rest]
    if packs:
        yield from (Request(TAKE, key, size) for size in [arrived, *made[:1]])
    yield from (Request(TAKE, HELD, size) for size in stays[:1])
    if packs:
        yield from (Request(TAKE, key, size) for size in made[1:])  # the scales less their mean
    yield from (Request(TAKE, HELD, size) for size in stays[1:] if size > 0)
    yield Request(GIVE_ALL, key)


def _reference(modules: Sequence[Module], same: TrainingSetup, total: int) -> Iterator[Request]:
    """A second model of the same weights, in the order of its modules, or in as many pieces where it is another."""
    sizes = [size for module in modules for size in _sizes(module, same)]
    if sum(sizes) == total:
        yield from (Request(TAKE, HELD, size) for size in sizes)
    else:
        yield from _pieces(total, len(modules))


def _held(tensors: Iterable[AdapterTensor]) -> Iterator[Request]:
    yield from (Request(TAKE, HELD, it.bytes) for it in tensors)


def _adapters(keys: _Keys, modules: Iterable[Module], same: TrainingSetup) -> Iterator[Request]:
    """PEFT makes a module's adapters in float32, casts them to its weight's dtype, and in the end all to float32.

    They are made where the model was made; on the CPU beside a packed base, whose 4-bit weights count as 16 bits, and
    whose 8-bit weights do not count. Beside a packed base, TRL casts them to bfloat16 in the end.

    Source: peft 0.21, tuners/lora/layer.py, ``update_layer``; tuners/tuners_utils.py,
    ``_move_adapter_to_device_of_base_layer``, ``cast_adapter_dtype``; trl 1.16, trainer/sft_trainer.py
    (``_is_quantized_model``).
    """
    in_the_end: list[tuple[int, int, int]] = []
    recasts = same.has_packed_base and _is_trls(same)
    for module in modules:
        tensors = adapter_tensors(module, same)
        is_8bit = same.has_8bit_base and is_quantized(module, same.adapters)
        is_cast = same.dtype.bytes < FLOAT32_BYTES and not is_8bit
        key = keys.new(len(tensors))
        whole = [allocated(FLOAT32_BYTES * elements(it.shape)) for it in tensors]
        for at, size in enumerate(whole):
            if is_cast and not same.has_packed_base:
                yield Request(TAKE, key + at, size)
        for at, (it, size) in enumerate(zip(tensors, whole, strict=True)):
            stays = it.bytes if recasts or not is_cast else size
            if is_cast and it.width == same.dtype.bytes and not recasts:
                yield Request(TAKE, HELD, it.bytes)
            elif is_cast:
                own = keys.new(1)
                yield Request(TAKE, own, allocated(same.dtype.bytes * elements(it.shape)))
                in_the_end.append((own, size, stays))
            elif it.bytes == size:
                yield Request(TAKE, HELD, size)
            else:
                own = keys.new(1)
                yield Request(TAKE, own, size)
                in_the_end.append((own, 0, stays))
            yield Request(GIVE, key + at)
    wide: list[tuple[int, int]] = []
    for own, size, stays in in_the_end:
        if not size or size == stays:
            wide.append((own, stays))
        else:
            wide.append((keys.new(1), stays))
            yield Request(TAKE, wide[-1][0], size)
            yield Request(GIVE, own)
    for own, stays in wide:
        yield Request(TAKE, HELD, stays)
        yield Request(GIVE, own)


def _is_trls(same: TrainingSetup) -> bool:
    """Whether one of TRL's trainers trains."""
    alone = (Objective.SEQUENCE_CLASSIFICATION, Objective.EMBEDDING)
    if same.task.objective is Objective.SFT:
        return same.task.loss is Loss.CHUNKED_TRL
    return same.task.objective not in alone


def _flat_states(keys: _Keys, resident: Resident, mesh: Mesh) -> Iterator[Request]:
    """DeepSpeed's flat states and float32 master weights, before the first step.

    DeepSpeed steps its optimizer once with zero gradients. Stage 3 splits the states into sub-groups. A float32
    gradient of the largest group is allocated meanwhile.
    Source: DeepSpeed 0.19.6, runtime/zero/stage3.py and stage_1_and_2.py, ``initialize_optimizer_states``.
    """
    part, groups = ceil_div(resident.trainable_parameters, mesh.num_gpus), 1
    if mesh.strategy is Strategy.ZERO3:
        groups = ceil_div(part, SUB_GROUP)
    yield from _pieces(resident.states.resident_bytes // (1 + STATES), groups)
    yield from _pieces(resident.accumulated, 1)
    key = keys.new(1)
    yield Request(TAKE, key, allocated(FLOAT32_BYTES * ceil_div(part, groups)))
    yield from _pieces(resident.states.resident_bytes * STATES // (1 + STATES), STATES * groups)
    yield Request(GIVE, key)


# -- the optimizer's step --------------------------------------------------------------------------------------


def _flat_step(resident: Resident) -> Iterator[Request]:
    """DeepSpeed's flat gradient in 16 bits and in float32."""
    part = resident.transient // 3
    yield from (
        Request(TAKE, STEPPED, allocated(size))
        for size in (part, resident.transient - part)
        if size
    )
    yield Request(GIVE_ALL, STEPPED)


def _optimizer_step(
    keys: _Keys,
    groups: Sequence[Sequence[Trainable]],
    setup: TrainingSetup,
    resident: Resident,
    card: Card,
) -> Iterator[Request]:
    """The optimizer's own loop over its groups and their tensors; states are made in the first step."""
    optim, width = setup.optim, setup.optim_state_dtype
    if optim is Optimizer.ADAFACTOR:
        yield from _adafactor(keys, chain(*groups), card)
        return
    if optim is Optimizer.APOLLO_ADAMW:
        yield from _apollo(keys, chain(*groups))
        return
    copies = RULES[optim].step_copies
    for group in groups:
        for it in group:
            sizes = state_tensors(it, optim, width)
            key = keys.new(len(sizes))
            yield from (Request(TAKE_ONCE, key + at, size) for at, size in enumerate(sizes) if size)
        each = width.bytes if width else None
        for it in group:
            size = allocated(elements(it.shape) * (each or it.width))
            yield from (Request(TAKE, STEPPED, size) for _ in range(copies))
        yield Request(GIVE_ALL, STEPPED)
    if resident.transient and not copies:
        yield Request(TAKE, STEPPED, allocated(resident.transient))
        yield Request(GIVE_ALL, STEPPED)


def _norms(tensors: Iterable[Trainable]) -> Iterator[Request]:
    """Partial sums of every tensor's norm, as many as the largest has, and one number for each tensor.

    Source: torch 2.13, aten/src/ATen/native/cuda/ForeachReduceOp.cu, ``foreach_tensor_norm_cuda``.
    """
    trained = [*tensors]
    if not trained:
        return
    most = max(ceil_div(elements(it.shape), NORM_CHUNK) for it in trained)
    yield Request(TAKE, STEPPED, allocated(FLOAT32_BYTES * most * len(trained)))
    yield from (Request(TAKE, STEPPED, allocated(FLOAT32_BYTES)) for _ in trained)
    yield Request(GIVE_ALL, STEPPED)


def _adafactor(keys: _Keys, trained: Iterable[Trainable], card: Card) -> Iterator[Request]:
    """transformers' loop. Its names hold a tensor's gradient, weight and update until the next tensor's replace them.

    Source: transformers 5.23, optimization.py, ``Adafactor.step``.
    """
    names = [_Name(keys) for _ in range(3)]
    gradient, weight, update = names
    inner = keys.new(1)
    for it in trained:
        whole = allocated(FLOAT32_BYTES * elements(it.shape))
        is_narrow = it.width < FLOAT32_BYTES
        if is_narrow:
            yield from gradient.bound(whole)
        states = state_tensors(it, Optimizer.ADAFACTOR, None)[:-1]  # without a scalar
        key = keys.new(len(states))
        yield from (Request(TAKE_ONCE, key + at, size) for at, size in enumerate(states))
        if is_narrow:
            yield from weight.bound(whole)
        yield Request(TAKE, inner, whole)  # the square
        new = update.taken(whole)
        yield new
        yield Request(GIVE, inner)
        yield update.dropped()
        if len(states) > 1:
            rows, columns = states
            yield Request(TAKE, inner, rows)
            yield Request(GIVE, inner)
            yield Request(TAKE, inner, columns)
            yield from _scratch(rows_summed(it.shape[-2], it.shape[-1], card))
            yield Request(GIVE, inner)
            yield Request(TAKE, inner, rows)
            yield Request(TAKE, inner, columns)
        yield update.taken(whole)
        yield Request(GIVE_ALL, inner)
        yield update.dropped()
        yield Request(TAKE, inner, whole)  # its negative
        yield Request(GIVE, inner)
    for name in names:
        yield name.dropped(last=True)


def _apollo(keys: _Keys, trained: Iterable[Trainable]) -> Iterator[Request]:
    """APOLLO's loop in a step that renews its projectors. Its names hold what the tensor before has left.

    Source: apollo-torch 1.0.3, apollo.py, ``step``, random_projector.py, ``get_orthogonal_matrix``.
    """
    names = [_Name(keys) for _ in range(4)]
    low_gradient, denominator, quotient, update = names
    inner = keys.new(1)
    for it in trained:
        whole = allocated(elements(it.shape) * it.width)
        states = state_tensors(it, Optimizer.APOLLO_ADAMW, None)
        key = keys.new(len(states))
        made = [Request(TAKE_ONCE, key + at, size) for at, size in enumerate(states)]
        size = whole
        yield low_gradient.dropped(last=True)
        if it.is_linear:
            projector, size, *_ = states
            wide = projector // it.width * FLOAT32_BYTES
            if it.width < FLOAT32_BYTES:
                yield Request(TAKE, inner, allocated(FLOAT32_BYTES * elements(it.shape)))
            yield Request(TAKE, inner, wide)  # random numbers
            yield Request(TAKE, inner, wide)  # the same over √r
            yield Request(GIVE_BEFORE, inner)
            yield made.pop(0)
            yield Request(GIVE_ALL, inner)
            yield low_gradient.taken(size)
        yield from made
        for name in (denominator, quotient):
            yield name.taken(size)
            yield name.dropped()
        if it.is_linear:
            yield update.taken(whole)
            yield update.dropped()
            yield update.taken(whole)  # limited
            yield update.dropped()
            yield quotient.dropped(last=True)
    for name in names:
        yield name.dropped(last=True)


class _Name:
    """A Python name: what it held before is freed once it is bound anew."""

    def __init__(self, keys: _Keys) -> None:
        self._keys = keys.new(2)
        self._turn = 0

    def taken(self, size: int) -> Request:
        """The new tensor, while the name still holds the old one."""
        self._turn = 1 - self._turn
        return Request(TAKE, self._keys + self._turn, size)

    def dropped(self, *, last: bool = False) -> Request:
        """The old tensor, or the last one."""
        return Request(GIVE, self._keys + (self._turn if last else 1 - self._turn))

    def bound(self, size: int) -> Iterator[Request]:
        """The new tensor, after the name has let go of the old one: ``grad = p.grad`` comes before ``grad.float()``."""
        yield self.dropped(last=True)
        yield self.taken(size)
