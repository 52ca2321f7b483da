"""What torch reserves, the least memory on which a run goes through, what it needs, and what nvidia-smi shows.

A run's requests are replayed through PyTorch's caching allocator: with memory to spare for what it reserves, and on
smaller and smaller cards for the least that suffices. The tape gives the tensors and their order, the allocator their
blocks; nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from estimator.resident.overhead import (
    exchange_bytes,
    median_context_bytes,
    shown_bytes,
)
from estimator.step.allocations import Hardware, Trace, allocations, hardware_of
from estimator.step.blocks import (
    EMPTY,
    NO_LIMIT,
    TAKE_ONCE,
    Log,
    Played,
    Plays,
    Settings,
    rounded,
    settings_of,
)
from estimator.step.request_keys import GATHER
from estimator.step.wrapping import wraps_in_groups
from estimator.step.zero_requests import has_partitions, has_shards, ranks_played
from estimator.values.facets.mesh import Mesh
from estimator.values.range import Range
from estimator.values.results import Estimate, Refused, Shown, verdict
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Offload, Phase, Verdict

AMPLE = 2
"""Memory, as a multiple of a run's tensors, on which it is not replayed: of 170 runs on PyTorch's allocator none needed
more than 1.26 times its blocks, and none reserved more than 1.39 times."""
MOST_LAYERS_REPLAYED = 256
"""Layers up to which a verdict replays a run, for its cost: twice as many as the deepest published model has."""
RESOLUTION = 512
"""The least memory is found to this share of itself."""
FINEST = 2**20
"""And to no less than a MiB."""
LOADING = 0
"""Place of the loading among a run's stretches."""


def is_replayed(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> bool:
    """Whether a run's requests are known well enough to decide its need: one whole model in one process, ranks that
    divide every layer, or DeepSpeed's partitions or FSDP's shards on the GPU, not compiled.

    Offloading, device maps, divided layers and generation are taken in pieces that are near enough for what nvidia-smi
    shows.

    Source: derived, as ``estimator.step.allocations``.
    """
    is_whole = setup.mesh.strategy.keeps_whole
    is_partitioned = has_partitions(setup.mesh) or has_shards(setup.mesh)
    return (
        (is_whole or is_partitioned or _is_known_fsdp(model, setup))
        and (gpu is None or bool(gpu.monitor))  # another vendor's torch has another allocator
        and not setup.task.objective.generates
        and not setup.computation.torch_compile
        and model.num_hidden_layers <= MOST_LAYERS_REPLAYED
    )


def _is_known_fsdp(model: Model, setup: TrainingSetup) -> bool:
    """FSDP with nothing on the host, no second model, and no weights that stay gathered between micro-steps."""
    stays_gathered = setup.mesh.uses_fsdp1 and setup.mesh.strategy.keeps_gathered
    return (
        wraps_in_groups(model, setup)
        and not setup.keeps_reference
        and setup.mesh.offload_param is Offload.NONE
        and not (stays_gathered and setup.batch.gradient_accumulation_steps > 1)
    )


def goes_through(
    model: Model, gpu: Gpu | None, setup: TrainingSetup, room: int, highest: int
) -> bool:
    """Whether the run goes through where PyTorch can have ``room`` bytes of a card.

    ``highest``: bytes of its tensors at their most. Raises ``ValueError`` as ``estimate`` does.

    Source: as ``replayed``.
    """
    if highest > room:
        return False
    if room >= highest * AMPLE:
        return True
    return _passes(model, hardware_of(gpu), setup, room)


@lru_cache(maxsize=4096)
def _passes(model: Model, hardware: Hardware, setup: TrainingSetup, room: int) -> bool:
    return all(run.play(room).died is None for run in rank_runs(model, hardware, setup))


class RankRun:
    """The requests of one rank, and what became of them on each card that was tried.

    ``narrow``: those on a card that has no room to load it so: DeepSpeed's weights become flat on the host.
    """

    def __init__(self, log: Log, narrow: Log | None, settings: Settings, *, rank: int) -> None:
        self._log, self._narrow = log, narrow
        self.rank = rank
        self._wide = Plays(log, settings)
        self._slim = self._wide if narrow is None else Plays(narrow, settings)

    def play(self, room: int) -> Played:
        """The run on a card with so many bytes."""
        return self._plays(room).on(room)

    def is_narrow(self, room: int) -> bool:
        """Whether a card with so many bytes has no room to load it on the GPU."""
        return self._narrow is not None and self._wide.on(room).died == LOADING

    def log(self, room: int) -> Log:
        """The requests of a card with so many bytes."""
        return self._narrow if self._narrow is not None and self.is_narrow(room) else self._log

    def spare(self, room: int) -> Played:
        """The requests of a card with so many bytes, with memory to spare."""
        return self._plays(room).on(NO_LIMIT)

    @property
    def most_in_use(self) -> int:
        """Bytes of blocks in use at once, as the run is loaded with least."""
        return self._slim.on(NO_LIMIT).allocated

    def _plays(self, room: int) -> Plays:
        return self._slim if self.is_narrow(room) else self._wide


@lru_cache(maxsize=3)
def rank_runs(model: Model, hardware: Hardware, setup: TrainingSetup) -> Sequence[RankRun]:
    """A run, once for each rank that may need most.

    Source: ``allocations``.
    """

    def log(rank: int, *, on_host: bool = False) -> Log:
        requests, _ = allocations(model, hardware, setup, rank, on_host=on_host)
        return rounded(requests, setup.allocator.roundup_power2_divisions)

    def run(rank: int) -> RankRun:
        narrow = log(rank, on_host=True) if has_partitions(setup.mesh) else None
        return RankRun(log(rank), narrow, settings_of(setup.allocator), rank=rank)

    return [run(rank) for rank in ranks_played(model, setup.adapters, setup.mesh)]


class Replayed(NamedTuple):
    """What PyTorch's allocator makes of a run, in bytes."""

    allocated: int
    """Most bytes of blocks in use (``torch.cuda.max_memory_allocated``)."""
    least: int
    """The least memory on which the run goes through."""


@lru_cache(maxsize=1024)
def replayed(
    model: Model, hardware: Hardware, setup: TrainingSetup, rooms: tuple[int, ...] = ()
) -> Replayed:
    """The blocks of a run and the least memory that it needs, without the CUDA context.

    Runs may go through on a card and die on a slightly larger one, since other cached blocks are reused. Of ``rooms``,
    what the card of a verdict leaves to PyTorch, ascending, the smallest through which the run goes is no less than the
    least memory.

    Error: of 92 runs on PyTorch's allocator, allocated 0.01 % at p95, least 0.00 % in the median, 0.1 % at p95, 0.7 %
    at worst; of 71 of real trainers on one GPU (data/played.csv) 0.01, 0.00, 0.7 and 4.9 %.
    Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp.
    """
    largest = max(rooms, default=NO_LIMIT)
    spares = [(run.spare(largest), run) for run in rank_runs(model, hardware, setup)]
    spares.sort(key=lambda played: -played[0].allocated)
    least = 0
    for spare, run in spares:
        if not least or run.play(least).died is not None:
            least = max(least, _least(run, spare, rooms))
    return Replayed(spares[0][0].allocated, least)


def _least(run: RankRun, spare: Played, rooms: tuple[int, ...]) -> int:
    low, high = min(spare.allocated, run.most_in_use) - 1, spare.reserved

    def cut(room: int) -> None:
        nonlocal low, high
        if low < room < high:
            if run.play(room).died is None:
                high = room
            else:
                low = room

    for room in rooms:  # once it goes through, a larger one decides nothing
        cut(room)
    while high - low > max(FINEST, high // RESOLUTION):
        cut((low + high) // 2)
    return high


@lru_cache(maxsize=256)
def reserved_bytes(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> int:
    """Bytes that torch reserves on one GPU over three steps (``torch.cuda.max_memory_reserved``).

    Error: 0.04 % at p95 of 92 runs on PyTorch's allocator, 0.2 % of 71 of real trainers; for other strategies see the
    readings of ``reserved`` and ``device`` in data/measurements.csv.
    Source: as ``replayed``.
    """
    room = NO_LIMIT if gpu is None else gpu.memory_bytes - sum(_outside(gpu, setup))
    hardware = hardware_of(gpu)
    return max(run.play(room).reserved for run in rank_runs(model, hardware, setup))


def outside_bytes(gpu: Gpu | None, mesh: Mesh, processes: int = 1) -> tuple[int, int]:
    """Bytes outside torch's allocator: of each process's CUDA context, the median, and of NCCL, the midpoint.

    Source: ``estimator.resident.overhead``.
    """
    return median_context_bytes(gpu, processes), sum(exchange_bytes(mesh)) // 2


def _outside(gpu: Gpu | None, setup: TrainingSetup) -> tuple[int, int]:
    return outside_bytes(gpu, setup.mesh, setup.processes_per_gpu)


def reserved(answer: Estimate) -> int:
    """Bytes that torch reserves for an answer; under a device map the midpoint of published runs, as its GPUs differ.

    Source: ``reserved_bytes``; ``estimator.resident.overhead.shown_bytes``.
    """
    if answer.setup.mesh.strategy.places_layers:
        shares = shown_bytes(answer.decisive.bytes, answer.need_low_bytes, 1, answer.gpu)
        return shares.middle - sum(_outside(answer.gpu, answer.setup))
    return reserved_bytes(answer.model, answer.gpu, answer.setup)


def device_bytes(answer: Estimate) -> int:
    """Bytes of one GPU that the process occupies: what torch reserves, the CUDA context, NCCL's buffers.

    Capped at the GPU's memory, unless the need exceeds it.
    Source: ``reserved``; ``estimator.resident.overhead.shown_bytes``.
    """
    held = max(reserved(answer), answer.decisive.bytes) + sum(_outside(answer.gpu, answer.setup))
    if answer.gpu is None or answer.verdict is Verdict.DOES_NOT_FIT:
        return held
    return min(held, answer.gpu.memory_bytes)


def shown(answer: Estimate) -> Shown | None:
    """Bytes that nvidia-smi shows: ``device_bytes`` with the range of published runs; None if the run does not fit, or
    not in the memory of CUDA or HIP.

    It counts freed blocks that the allocator keeps, and decides nothing.

    Source: ``device_bytes``; ``estimator.resident.overhead.shown_bytes``.
    """
    if not answer.can_run or (answer.gpu is not None and not answer.gpu.monitor):
        return None
    held = (answer.decisive.bytes, answer.need_low_bytes, answer.setup.mesh.replicas, answer.gpu)
    low, _, high = shown_bytes(*held)
    middle = max(device_bytes(answer), answer.need_low_bytes)
    return Shown(min(low, middle), middle, max(high, middle))


@lru_cache(maxsize=256)
def refused(model: Model, gpu: Gpu | None, setup: TrainingSetup, room: int) -> Refused | None:
    """The first request that is refused where PyTorch can have ``room`` bytes of a card; None if the run goes through.

    Source: as ``replayed``.
    """
    hardware = hardware_of(gpu)
    runs = [(run.play(room), run) for run in rank_runs(model, hardware, setup)]
    died = [(played.died, at) for at, (played, _) in enumerate(runs) if played.died is not None]
    if not died:
        return None
    played, run = runs[min(died)[1]]
    return located(model, hardware, setup, room, played, run)


def located(
    model: Model, hardware: Hardware, setup: TrainingSetup, room: int, played: Played, run: RankRun
) -> Refused:
    """The request of a run at which ``played`` ended, by its phase, layer and operator; bytes.

    Source: as ``replayed``.
    """
    log, on_host = run.log(room), run.is_narrow(room)
    _, trace = allocations(model, hardware, setup, run.rank, on_host=on_host)
    assert played.died is not None
    step, piece = trace.ran[played.died]
    start, size = log.spans[0][piece.stretch], log.requests[2][played.request]
    if piece.of_pass >= 0:
        return _in_pass(trace, log, played)
    if step == 0:
        emptied = (at for at in range(start, played.request) if log.requests[0][at] == EMPTY)
        is_flat = setup.mesh.strategy.is_zero and next(emptied, None) is not None
        makes_states = is_flat or log.requests[0][played.request] == TAKE_ONCE
        return Refused(Phase.LOAD, step, "", size, makes_states=makes_states)
    if piece.stretch in trace.optimizers:
        return Refused(Phase.OPTIMIZER_STEP, step, "", size)
    return Refused(Phase.FORWARD, step, "new buckets of DDP", size)


def _in_pass(trace: Trace, log: Log, played: Played) -> Refused:
    assert played.died is not None
    step, piece = trace.ran[played.died]
    found, at = trace.passes[piece.of_pass], played.request - log.spans[0][piece.stretch]
    program, runs = found.schedule.program, found.schedule.runs
    run, place = runs[piece.run], piece.place + played.repetition
    event = max(trace.events[piece.stretch][at], program.spans[run.segment][0])
    gathers = log.requests[3][played.request] == GATHER
    before = sum(earlier.length for earlier in runs[: piece.run] if earlier.has_moments)
    return Refused(
        Phase.EVALUATION if found.is_evaluation else run.phase,
        step,
        run.named("all-gather" if gathers else program.operations[event], place),
        log.requests[2][played.request],
        found.micro_step,
        max(0, before + (place if run.has_moments else -1)),
    )


class NeedInTheAllocator:
    """Both ends of a run's need and its verdict, in bytes per GPU.

    A run that is replayed needs what PyTorch's allocator makes of its tensors; of any other the allocator's slack is
    that of published runs. A replay takes tens of milliseconds, so it waits until it is asked for.
    """

    def __init__(
        self,
        model: Model,
        gpu: Gpu | None,
        setup: TrainingSetup,
        stated: Range[int],
        highest: int,
        outside: Range[int],
    ) -> None:
        self._run = model, gpu, setup
        self._stated = stated
        """Both ends with the slack of published runs."""
        self._highest = highest
        """The highest moment of the run."""
        self._outside = outside
        """What is outside PyTorch's allocator."""

    @cached_property
    def _is_replayed(self) -> bool:
        return is_replayed(*self._run)

    @cached_property
    def replay(self) -> Replayed | None:
        """What the allocator makes of the run; None where it is not replayed."""
        if not self._is_replayed:
            return None
        model, gpu, setup = self._run
        found = replayed(model, hardware_of(gpu), setup, self._rooms)
        return Replayed(*(max(size, self._highest) for size in found))

    @property
    def _rooms(self) -> tuple[int, ...]:
        """What the card leaves to PyTorch beside the most and beside the least that is outside."""
        gpu = self._run[1]
        low, high = self._outside
        return () if gpu is None else (gpu.memory_bytes - high, gpu.memory_bytes - low)

    @cached_property
    def refused(self) -> Refused | None:
        """The request that is refused beside the least that is outside; None where the run is not replayed or goes
        through.
        """
        model, gpu, setup = self._run
        if gpu is None or not self._is_replayed:
            return None
        return refused(model, gpu, setup, self._rooms[-1])

    @property
    def low(self) -> int:
        """The low end."""
        return self._stated.low if self.replay is None else self.replay.least + self._outside.low

    @property
    def high(self) -> int:
        """The high end."""
        return self._stated.high if self.replay is None else self.replay.least + self._outside.high

    @property
    def bound(self) -> int:
        """Bytes without which the run does not fit, whatever the allocator makes of its tensors."""
        return self._highest + self._outside.high if self._is_replayed else self._stated.high

    @property
    def fits(self) -> bool:
        """Whether the run goes through beside the largest context. Requires a GPU."""
        model, gpu, setup = self._run
        if not self._is_replayed:
            return verdict(self._stated, gpu) is Verdict.FITS
        return goes_through(model, gpu, setup, self._rooms[0], self._highest)

    @cached_property
    def verdict(self) -> Verdict | None:
        """Fits if the run goes through beside the largest context, tight if only beside the smallest."""
        model, gpu, setup = self._run
        if gpu is None or not self._is_replayed:
            return verdict(self._stated, gpu)
        if self.fits:
            return Verdict.FITS
        is_tight = goes_through(model, gpu, setup, self._rooms[-1], self._highest)
        return Verdict.TIGHT if is_tight else Verdict.DOES_NOT_FIT


def outside(mesh: Mesh, context: Range[int], paged: int) -> Range[int]:
    """Bytes outside PyTorch's allocator; paged states may be evicted to the host.

    Source: as ``estimator.resident.overhead.need_bytes``.
    """
    return context + exchange_bytes(mesh) + Range(0, paged)
