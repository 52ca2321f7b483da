"""Which ranks of a job hold less than the fullest, and which one writes the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby, pairwise
from typing import NamedTuple

from estimator.parallel.sharding import sharded_tensors
from estimator.parallel.zero import kept_gradients, width
from estimator.resident.optimizer import States, optimizer_states, step_transient
from estimator.resident.overhead import exchange_bytes, need_bytes
from estimator.run.loading import load_host_bytes
from estimator.step.timeline import structure
from estimator.values.arithmetic import allocated, ceil_div
from estimator.values.results import Estimate
from estimator.values.specs import STEP_PHASES, Component, Model, Phase, Strategy, TrainingSetup


class Rank(NamedTuple):
    """Ranks that are alike. Bytes of each."""

    ranks: str
    """Their numbers from 0: ``0, 2-7``."""
    gpus: int
    """How many they are."""
    saves: bool
    """Whether it writes the model for all."""
    peak_bytes: int
    need_low_bytes: int
    need_high_bytes: int
    host_bytes: int


class Less(NamedTuple):
    """What a rank holds less than the fullest. Bytes."""

    states: int = 0
    paged: int = 0
    step: int = 0
    """Of what is there for the optimizer's step alone."""
    gradients: int = 0
    """Of gradients that are kept until the step."""


def ranks(answer: Estimate) -> tuple[Rank, ...]:
    """One entry for each kind of rank where they differ, the fullest first; none where all are alike. Bytes.

    FSDP2 divides rows: the last ranks may have fewer rows of a tensor, or none, and then keep less of the optimizer's
    states (weights and gradients are padded); FSDP1's parts are equal. DeepSpeed's stages 1 and 2 keep gradients of
    whole tensors, as the bounds of a rank's part cut them. Rank 0 writes the model and the others wait, but not under
    DeepSpeed, where all write.

    Error: a rank of stage 1 or 2 keeps at most so much; that it keeps less is counted at the step alone, or with
    accumulation at stage 2 always.
    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``_init_sharded_param`` and
    ``to_sharded_dtensor``; DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``copy_grads_in_partition``;
    transformers 5.23, trainer.py, ``save_model`` (``args.should_save``).
    """
    setup = answer.setup
    if setup.replicas == 1:  # a device map has its own answer, GPU by GPU
        return ()
    one_saves = setup.save_strategy != "no" and not setup.strategy.is_zero
    kinds: dict[tuple[Less, bool], list[int]] = {}
    for rank, less in enumerate(_less(answer.model, setup)):
        kinds.setdefault((less, one_saves and rank == 0), []).append(rank)
    if len(kinds) == 1:
        return ()
    loading = load_host_bytes(answer.model, structure(setup))
    found = [
        Rank(
            _spans(numbers),
            len(numbers),
            saves,
            *_sizes(answer, less),
            host_bytes=answer.host_bytes if saves or not one_saves else loading,
        )
        for (less, saves), numbers in kinds.items()
    ]
    return tuple(sorted(found, key=lambda it: -it.peak_bytes))


def _sizes(answer: Estimate, less: Less) -> tuple[int, int, int]:
    """The peak of the step and both ends of the need."""
    setup = answer.setup
    stands = setup.strategy is Strategy.ZERO2 and setup.gradient_accumulation_steps > 1
    heights: dict[Phase, int] = {
        phase: moment.bytes
        - less.states * (Component.OPTIMIZER_STATES in moment.resident)
        - (less.step + less.gradients) * (phase is Phase.OPTIMIZER_STEP)
        - less.gradients * (stands and phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD))
        for phase, moment in answer.phases.items()
        if phase is not Phase.SAVE
    }
    low, high = need_bytes(
        max(heights.values()), answer.paged_bytes - less.paged, exchange_bytes(setup)
    )
    return max(heights[phase] for phase in STEP_PHASES), low, high


def _less(model: Model, setup: TrainingSetup) -> list[Less]:
    """By rank, in their order; those of each copy (hsdp) are alike."""
    if setup.strategy.is_fsdp and not setup.uses_fsdp1:
        return _fewer_rows(model, setup) * setup.dp_replicate_size
    if setup.strategy in (Strategy.ZERO1, Strategy.ZERO2):
        kept = _kept_gradients(model, setup)
        return [Less(gradients=max(kept) - one) for one in kept]
    return [Less()] * setup.num_gpus


def _fewer_rows(model: Model, setup: TrainingSetup) -> list[Less]:
    """FSDP2: a rank has a tensor's rows from ⌈rows / ranks⌉ times its number on, as far as there are any."""
    count = setup.shard_ranks
    whole = sharded_tensors(model, replace(setup, num_gpus=1, dp_replicate_size=1))
    bounds = {0, count}
    for tensor in whole:
        full = tensor.shape[0] // ceil_div(tensor.shape[0], count)
        bounds |= {min(full, count), min(full + 1, count)}
    found: list[Less] = []
    of_first: tuple[States, int] | None = None
    for first, end in pairwise(sorted(bounds)):
        mine = [
            tensor._replace(shape=(_rows(tensor.shape[0], count, first), *tensor.shape[1:]))
            for tensor in whole
        ]
        states = optimizer_states(mine, setup.optim, setup.optim_state_dtype)
        transient = step_transient(mine, setup.optim, setup.optim_state_dtype)
        of_first = of_first or (states, transient)
        less = Less(
            of_first[0].resident_bytes - states.resident_bytes,
            of_first[0].paged_bytes - states.paged_bytes,
            of_first[1] - transient,
        )
        found += [less] * (end - first)
    return found


def _rows(rows: int, ranks: int, rank: int) -> int:
    """Rows of a tensor that a rank has.

    >>> [_rows(10, 4, rank) for rank in range(4)], [_rows(5, 4, rank) for rank in range(4)]
    ([3, 3, 3, 1], [2, 2, 1, 0])
    """
    each = ceil_div(rows, ranks)
    return min(each, max(0, rows - rank * each))


def _kept_gradients(model: Model, setup: TrainingSetup) -> list[int]:
    """Bytes of gradients that each rank of stages 1 and 2 keeps: whole tensors, where its part cuts them."""
    return [allocated(width(setup) * elements) for elements in kept_gradients(model, setup)]


def _spans(numbers: Iterable[int]) -> str:
    """Ascending numbers in short.

    >>> _spans([0, 2, 3, 4, 7])
    '0, 2-4, 7'
    """
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
