"""Ranks that hold less than the fullest one, and the rank that writes the model."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import NamedTuple

from estimator.parallel.computed import computed_width
from estimator.parallel.offload import node_bytes, offloads
from estimator.parallel.placements import Shard
from estimator.parallel.sharding import sharded_tensors
from estimator.parallel.tensor_parallel import part_of
from estimator.parallel.zero_partitions import kept_gradients
from estimator.resident.optimizer import States, optimizer_states, step_transient
from estimator.resident.overhead import NOTHING, exchange_bytes, need_bytes
from estimator.run.checkpoints import checkpoint
from estimator.run.loading import load_host_bytes
from estimator.run.saving import saves_when
from estimator.step.timeline import structure
from estimator.time.offload_time import node_copies
from estimator.values.arithmetic import allocated, ceil_div
from estimator.values.range import Range
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import (
    FULL_STATE_DICT,
    MORE_PASSES,
    STEP_PHASES,
    Component,
    Model,
    Phase,
)

PASSES = (*STEP_PHASES, *MORE_PASSES)
"""The phases of a step, of which the highest is its peak."""


class Rank(NamedTuple):
    """Ranks with equal memory. Bytes per rank."""

    ranks: str
    """Their numbers from 0: ``0, 2-7``."""
    gpus: int
    """Number of these ranks."""
    saves: bool
    """Whether the rank writes the model for all."""
    peak_bytes: int
    need_low_bytes: int
    need_high_bytes: int
    host_bytes: int


class Less(NamedTuple):
    """By how much a rank holds less than the fullest. Bytes."""

    states: int = 0
    paged: int = 0
    step: int = 0
    """Temporaries of the optimizer's step."""
    gradients: int = 0
    """Gradients kept until the step."""


def ranks(answer: Estimate) -> tuple[Rank, ...]:
    """One entry per kind of rank if they differ, the fullest first; none if all are equal. Bytes per rank.

    FSDP2 shards rows: the last ranks may have fewer rows of a tensor, or none, and then keep less of the optimizer's
    states (weights and gradients are padded); FSDP1's shards are equal. DeepSpeed's stages 1 and 2 keep whole gradients
    of every tensor that overlaps a rank's partition. Rank 0 writes the model (``rank_0_writes``). Kinds with equal
    bytes share an entry.

    Where the fullest rank's run is replayed, the others' needs differ from its need as their tensors do.

    Error: for stages 1 and 2 the kept gradients are an upper bound; a rank's smaller share is counted only in the
    optimizer's step, at stage 2 with accumulation in every phase.
    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``_init_sharded_param`` and
    ``to_sharded_dtensor``; DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``copy_grads_in_partition``.
    """
    setup = answer.setup
    if setup.mesh.replicas == 1:  # a device map has its own answer, GPU by GPU
        return ()
    by_less: dict[Less, list[int]] = {}
    for rank, less in enumerate(_less(answer.model, setup)):
        by_less.setdefault(less, []).append(rank)
    writes, others = rank_0_writes(setup), _other_host_bytes(answer)
    alike: dict[tuple[bool, int, int, int, int], list[int]] = {}
    _, low, high = _sizes(answer, Less())
    beside = Range(answer.need_low_bytes - low, answer.need_high_bytes - high)
    for less, numbers in by_less.items():
        sizes = _sizes(answer, less, beside)
        for rank in numbers:
            saves = writes and rank == 0
            host = answer.host_bytes if saves or not writes else others
            alike.setdefault((saves, *sizes, host), []).append(rank)
    if len(alike) == 1:
        return ()
    found = [Rank(_spans(sorted(numbers)), len(numbers), *kind) for kind, numbers in alike.items()]
    return tuple(sorted(found, key=lambda rank: -rank.peak_bytes))


def rank_0_writes(setup: TrainingSetup) -> bool:
    """Whether rank 0 writes the model for all; false if nothing is saved, or each process writes only its own shard.

    Under DeepSpeed all processes take part in gathering the weights, then each writes its states; rank 0 writes the
    model's files. Stage 3 writes none unless it gathers them.
    Source: transformers 5.23, trainer.py, ``save_model`` and ``_save`` (``args.should_save``); accelerate 1.15,
    accelerator.py, ``get_state_dict``; DeepSpeed 0.19.6, runtime/engine.py, ``_configure_checkpointing``
    (``save_non_zero_checkpoint``: rank 0's) and ``save_checkpoint``.

    >>> rank_0_writes(TrainingSetup(strategy="zero2", num_gpus=2))
    True
    >>> rank_0_writes(TrainingSetup(strategy="zero3", num_gpus=2))
    False
    """
    if saves_when(setup.run) == "no":
        return False
    if setup.mesh.strategy.is_fsdp:
        return setup.run.fsdp_state_dict_type == FULL_STATE_DICT
    if setup.mesh.strategy.gathers_modules:
        return setup.adapters.uses_adapters or setup.run.zero3_save_16bit_model
    return True


def _other_host_bytes(answer: Estimate) -> int:
    """``Estimate.host_bytes`` for the other ranks' processes."""
    model, setup = answer.model, answer.setup
    offloaded = node_bytes(model, structure(setup))[0] if offloads(setup.mesh) else 0
    offloaded += node_copies(model, setup)
    saving = checkpoint(model, setup).other_host_bytes
    return max(load_host_bytes(model, structure(setup)), offloaded + saving)


def _sizes(answer: Estimate, less: Less, beside: Range[int] = NOTHING) -> tuple[int, int, int]:
    """The peak of the step and both ends of the need.

    ``beside``: what the allocator makes of the fullest rank's run more than the slack of published runs.
    """
    setup = answer.setup
    keeps_gradients = (
        setup.mesh.strategy.keeps_parts and setup.batch.gradient_accumulation_steps > 1
    )
    exchange = exchange_bytes(setup.mesh)
    context = answer.context_bytes
    paged = answer.paged_bytes - less.paged
    peak = low = high = 0
    for phase, moment in answer.phases.items():
        if phase is Phase.SAVE:
            continue
        size = moment.bytes - less.states * (Component.OPTIMIZER_STATES in moment.resident)
        if phase is Phase.OPTIMIZER_STEP:
            size -= less.step + less.gradients
        elif keeps_gradients and phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD):
            size -= less.gradients
        engine = moment.resident.get(Component.INFERENCE_ENGINE, 0)
        ends = need_bytes(size, paged, context, exchange, engine)
        low, high = max(low, ends.low), max(high, ends.high)
        if phase in PASSES:
            peak = max(peak, size)
    return peak, low + beside.low, high + beside.high


def _less(model: Model, setup: TrainingSetup) -> list[Less]:
    """One entry per rank, in order; replicas (hsdp) are equal."""
    if setup.mesh.strategy.is_fsdp and not setup.mesh.uses_fsdp1:
        parts = setup.mesh.tp_size
        shards = _fewer_rows(part_of(model, parts), setup)
        return [less for less in shards for _ in range(parts)] * setup.mesh.dp_replicate_size
    if setup.mesh.strategy.partitions_flat:
        kept = _kept_gradients(model, setup)
        most = max(kept)
        return [Less(gradients=most - one) for one in kept]
    return [Less()] * setup.mesh.num_gpus


def _fewer_rows(model: Model, setup: TrainingSetup) -> list[Less]:
    """FSDP2: rank i holds at most ⌈rows / ranks⌉ rows of a tensor, from row i · ⌈rows / ranks⌉ on."""
    count, shards = setup.mesh.shard_ranks, Shard(setup.mesh.shard_ranks)
    rule = setup.optimisation.optim, setup.optimisation.optim_state_dtype
    whole = sharded_tensors(model, setup.replace(num_gpus=1, dp_replicate_size=1, tp_size=1))
    bounds = {0, count}
    for tensor in whole:
        full = tensor.shape[0] // ceil_div(tensor.shape[0], count)
        bounds |= {min(full, count), min(full + 1, count)}
    found: list[Less] = []
    of_first: tuple[States, int] | None = None
    for first, end in pairwise(sorted(bounds)):
        mine = [tensor._replace(shape=shards.of(tensor.shape, first)) for tensor in whole]
        states, transient = optimizer_states(mine, *rule), step_transient(mine, *rule)
        of_first = of_first or (states, transient)
        less = Less(
            of_first[0].resident_bytes - states.resident_bytes,
            of_first[0].paged_bytes - states.paged_bytes,
            of_first[1] - transient,
        )
        found += [less] * (end - first)
    return found


def _kept_gradients(model: Model, setup: TrainingSetup) -> list[int]:
    """Bytes of gradients that each rank of stages 1 and 2 keeps: whole tensors that overlap its partition."""
    return [
        allocated(computed_width(setup.precision) * elements)
        for elements in kept_gradients(model, setup.adapters, setup.mesh.num_gpus)
    ]


def _spans(numbers: Iterable[int]) -> str:
    """Ascending numbers, with consecutive ones written as ranges.

    >>> _spans([0, 2, 3, 4, 7])
    '0, 2-4, 7'
    """
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
