"""What a strategy makes of a pass's requests: its own streams, gathers, reductions, and what waits for a later pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from estimator.families.model_tree import At
from estimator.parallel.fsdp2 import CUT
from estimator.step.blocks import (
    GIVE,
    GIVE_LATE,
    GIVE_OLDEST,
    TAKE,
    Request,
)
from estimator.step.request_keys import AVERAGE, CAST, COMPUTE, GATHER, KEPT, REDUCE, StorageKey
from estimator.step.timeline import Run
from estimator.step.zero_requests import (
    has_partitions,
    reached,
)
from estimator.tape.program import Program, Sized
from estimator.tape.tape import (
    GRADIENTS,
    SUM_OF_GRADIENTS,
    WEIGHTS,
    Mark,
)
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Phase


def on_streams_of_fsdp1(
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
REDUCING = (CUT, "copy gradients into the reduce-scatter", "reduce-scatter", "all-reduce")
"""Operators with which FSDP 2 reduces gradients."""


def on_streams_of_fsdp2(
    requests: Iterable[tuple[Request, int]], played: Program
) -> Iterator[tuple[Request, int]]:
    """The same with FSDP 2's streams."""
    for request, at in requests:
        stream = STREAMS_OF_FSDP2.get(played.operations[at], COMPUTE)
        yield request._replace(stream=stream), at


class Waiting:
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
        setup.mesh.strategy.is_fsdp
        and setup.batch.gradient_accumulation_steps > 1
        and not setup.reduces_every_micro_step
    )


def unreduced(
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


class Left(NamedTuple):
    """Keys of what is alive after backward."""

    gradients: list[tuple[int, int]]
    """Of weights' gradients in the order of backward, each with the bytes of one."""
    buckets: list[int]
    """Of DeepSpeed's bucket."""

    def add(self, sized: Sized, played: Program, keys: Sequence[StorageKey], first: int) -> None:
        """Add those of a pass, whose keys begin at ``first``."""
        for at, number in enumerate(played.storages):
            if played.signs[at] > 0 and keys[number].key >= 0:
                key = first + keys[number].key
                if played.components[at] == GRADIENTS:
                    self.gradients.append((key, sized.sizes[keys[number].slot]))
                elif played.operations[at] == "bucket":
                    self.buckets.append(key)


def reduces_after_backward(mesh: Mesh) -> bool:
    """Whether gradients are reduced after backward, on the GPU: ``reduced`` has the requests."""
    return mesh.strategy.reduces_after_backward and has_partitions(mesh)


def without_reduction(
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


def keeps_parts(mesh: Mesh) -> bool:
    """Whether gradients are reduced during backward, and each rank keeps its own on the GPU."""
    return mesh.strategy.keeps_parts and has_partitions(mesh)


KEEPS, SHARES = 1, 2
"""Bits of what a layer's reductions bring: this rank's gradients are allocated, several ranks' are concatenated."""


def places(
    model: Model, adapters: Adapters, mesh: Mesh, rank: int, runs: Sequence[Run], index: int
) -> Iterator[int]:
    """For each repetition of a run, what its reductions bring."""
    run = runs[index]
    where = reached(model, adapters, mesh.num_gpus, rank)
    backward = [at for at, run in enumerate(runs) if run.phase is Phase.BACKWARD]
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


def of_rank(
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


def gathering(
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


def reducing(
    requests: Iterable[tuple[Request, int]], played: Program
) -> Iterator[tuple[Request, int]]:
    """The same with the copies that ZeRO-3 reduces on a stream of their own.

    Source: DeepSpeed 0.19.8, runtime/zero/stage3.py, ``reduce_and_partition_stream``.
    """
    for request, at in requests:
        is_copy = played.operations[at] == "reduction of gradients"
        yield request._replace(stream=REDUCE) if is_copy else request, at
