"""What torch reserves and what nvidia-smi shows: a run's first two steps, replayed through the caching allocator.

The tape gives the tensors and their order, the allocator their blocks; nothing is fitted. The second step differs from
the first because the optimizer's states now occupy blocks that activations had left.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from estimator.families.modules import weight_shapes
from estimator.families.towers import made_modules
from estimator.families.weights import FLOAT32_BYTES
from estimator.parallel.fsdp1 import flat_tensors
from estimator.parallel.sharding import sharded_tensors
from estimator.parallel.strategies import resident_memory
from estimator.parallel.zero import SUB_GROUP
from estimator.resident.model import Resident, trainable_tensors
from estimator.resident.optimizer import Trainable, optimizer_states
from estimator.resident.overhead import (
    exchange_bytes,
    median_context_bytes,
    shown_bytes,
)
from estimator.step.allocator import Allocator, Block
from estimator.step.timeline import Run, Schedule, Sizes, plan, structure
from estimator.tape.program import Sized
from estimator.tape.tape import WEIGHTS
from estimator.values.arithmetic import allocated, ceil_div
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.optimisation import Optimisation
from estimator.values.results import Estimate, Shown
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Strategy, Verdict

STEPS = 2
"""Steps replayed: from the third on every request finds the same block again."""
STATES = 2
"""State tensors per parameter: AdamW's; other optimizers' states are allocated in as many pieces."""
MOST_EVENTS = 300_000
"""Allocations and releases played at most. Our choice: the catalogue's longest run, Qwen3.6-27B's, has 250,000."""
IN_FLIGHT = 2
"""Gathers by which FSDP1's CPU may run ahead: torch 2.13, distributed/fsdp/_limiter_utils.py, ``_FreeEventQueue``."""

COMPUTE, GATHER, CAST, REDUCE = range(4)
"""Streams; a block is reused only on the stream that allocated it."""

Key = tuple[str, int, int]
"""Operator, slot of the size, component: tensors with equal keys are interchangeable."""


class AllocatorEvent(NamedTuple):
    """One tensor is allocated, freed, or moved to another key."""

    sign: int
    """1, -1 or 0."""
    key: Key
    """A release frees the newest tensor with this key."""
    bytes: int
    stream: int
    other: Key
    """The new key."""


class LayerShare(NamedTuple):
    """The share of a deep model's layers that is played; the others repeat these."""

    played: int
    layers: int

    def of(self, count: int) -> int:
        """So many of ``count`` equal things, at least one.

        >>> LayerShare(1, 4).of(10), LayerShare(1, 4).of(1), LayerShare(4, 4).of(10)
        (3, 1, 10)
        """
        return ceil_div(count * self.played, self.layers)

    def holds(self, layer: int, layers: int) -> bool:
        """Whether a layer is played: half of those that are come first in their stack, half last."""
        kept = self.of(layers)
        return layer < ceil_div(kept, 2) or layer >= layers - kept // 2


WHOLE = LayerShare(1, 1)
"""Every layer."""


def _stream(mesh: Mesh, operation: str, component: int) -> int:
    """FSDP1's stream for a tensor: torch 2.13, distributed/fsdp/_runtime_utils.py, ``_init_streams``."""
    if not mesh.uses_fsdp1:
        return COMPUTE
    if operation == "all-gather":
        return GATHER if component == WEIGHTS else CAST
    return REDUCE if operation == "reduce-scatter" else COMPUTE


class _Process:
    """One process: its allocator, its live blocks, and the gathered blocks whose release is pending."""

    def __init__(self, limit: int | None) -> None:
        self.allocator = Allocator(limit)
        self.live: defaultdict[Key, list[Block]] = defaultdict(list)
        self._late: deque[Block] = deque()

    def allocate(self, sizes: Iterable[int], stream: int = COMPUTE) -> list[Block]:
        """Allocate tensors of these sizes in order."""
        return [self.allocator.take(allocated(size), stream) for size in sizes if size]

    def allocate_flat_states(self, resident: Resident, mesh: Mesh) -> None:
        """Allocate DeepSpeed's flat states and float32 master weights before the first step.

        DeepSpeed steps its optimizer once with zero gradients. Stage 3 splits the states into sub-groups. A float32
        gradient of the largest group is allocated meanwhile.
        Source: DeepSpeed 0.19.6, runtime/zero/stage3.py and stage_1_and_2.py, ``initialize_optimizer_states``.
        """
        part, groups = ceil_div(resident.trainable_parameters, mesh.num_gpus), 1
        if mesh.strategy is Strategy.ZERO3:
            groups = ceil_div(part, SUB_GROUP)
        each = _pieces(resident.states.resident_bytes, (1 + STATES) * groups)
        self.allocate([*each[:groups], resident.accumulated])
        gradient = self.allocate([FLOAT32_BYTES * ceil_div(part, groups)])
        self.allocate(each[groups:])
        self.clear(gradient)

    def clear(self, blocks: Iterable[Block]) -> None:
        """Free all of these."""
        for block in blocks:
            self.allocator.give(block)

    def play(self, changes: Iterable[AllocatorEvent]) -> None:
        """Replay one segment of the step."""
        take, give, live, late = self.allocator.take, self.allocator.give, self.live, self._late
        for sign, key, size, stream, other in changes:
            if sign > 0:
                if stream == GATHER and len(late) >= IN_FLIGHT:
                    give(late.popleft())
                live[key].append(take(size, stream))
            elif held := live[
                key
            ]:  # else it was allocated before the step and is counted as resident
                if sign == 0:
                    live[other].append(held.pop())
                elif stream == GATHER:
                    late.append(held.pop())
                else:
                    give(held.pop())

    def end_step(self) -> None:
        """Set gradients to None."""
        for held in self.live.values():
            self.clear(held)
        self.live.clear()


@lru_cache(maxsize=256)
def reserved_bytes(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> int:
    """Bytes that torch reserves on one GPU over two steps (``torch.cuda.max_memory_reserved``).

    Weights, states and temporaries of the optimizer's step are allocated in as many equal pieces as there are tensors.
    FSDP1 gathers, casts and reduces on separate streams; a gathered unit's block becomes free two gathers later.

    A run of more than ``MOST_EVENTS`` is played with a share of its layers; the others add bytes and no fragmentation.

    Leaves out: what loading, evaluating and saving leave behind.
    Error: see data/measurements.csv, readings of ``reserved`` and ``device``.
    Source: as ``estimator.step.allocator``; torch 2.13, distributed/fsdp/_runtime_utils.py, ``_unshard`` and
    ``_init_streams``.
    """
    same = structure(setup)
    resident = resident_memory(model, same)
    limit = None
    if gpu is not None:
        limit = gpu.memory_bytes - sum(_outside(gpu, setup))
    sized, schedule = plan(model, same).step(Sizes.of(setup))
    trained = _trained(model, same)
    changed = sum(it.alike for it in trained)
    weights = _count(model, setup)
    share = _share(schedule, weights + (STATES + 2) * changed)
    process = _Process(limit if share == WHOLE else None)
    runs = _shortened(schedule.runs, share)
    program = list(_changes(sized, runs, setup))
    process.allocate(_pieces(resident.weights + resident.adapters, weights, share))
    process.allocate(_pieces(resident.reference, weights, share))
    process.allocate([resident.communication])
    process.allocate([_most_gathered(sized, schedule, setup.mesh)], GATHER)
    if same.strategy.is_zero:
        process.allocate_flat_states(resident, same)
    for step in range(STEPS):
        for stretch in program:
            process.play(stretch)
        if step == 0:
            if not same.strategy.is_zero:
                process.allocate(_state_sizes(trained, same.optimisation, share))
            if setup.gradient_accumulation_steps > 1 and not same.strategy.is_zero:
                process.allocate(_pieces(resident.accumulated, changed, share))
        process.clear(process.allocate(_step_sizes(resident, changed, same.mesh, share)))
        process.end_step()
    if share == WHOLE:
        return process.allocator.highest
    whole, part = _most_alive(sized, schedule.runs), _most_alive(sized, runs)
    laid = resident.weights + resident.adapters + resident.reference
    if not same.strategy.is_zero:
        laid += resident.states.resident_bytes
        laid += resident.accumulated * (setup.gradient_accumulation_steps > 1)
    left_out = whole - part + laid - laid * share.played // share.layers
    highest = process.allocator.highest + left_out
    return highest if limit is None else min(highest, max(limit, whole + laid))


def _share(schedule: Schedule, pieces: int) -> LayerShare:
    """The layers that are played, so that no run has more than ``MOST_EVENTS``; ``pieces``: tensors outside the step.

    Source: derived; the deepest models repeat a layer, and each repetition fragments memory alike.
    """
    spans = schedule.program.spans
    work = pieces + STEPS * sum(
        run.length * (spans[run.segment][1] - spans[run.segment][0]) for run in schedule.runs
    )
    return WHOLE if work <= MOST_EVENTS else LayerShare(MOST_EVENTS, work)


def _shortened(runs: Sequence[Run], share: LayerShare) -> list[Run]:
    """The runs with only the layers that are played."""
    if share == WHOLE:
        return list(runs)
    kept = []
    for run in runs:
        if run.layers:
            layers = [layer for layer in run.layers if share.holds(layer, run.of_layers)]
            if layers:
                kept.append(run._replace(layers=layers, length=len(layers)))
        else:
            kept.append(run)
    return kept


def _most_alive(sized: Sized, runs: Iterable[Run]) -> int:
    """Bytes of the tape's tensors at their most; 0 without any."""
    alive = highest = 0
    for run in runs:
        _, rise, net, _ = sized.heights[run.segment]
        highest = max(highest, alive + max(0, (run.length - 1) * net) + rise)
        alive += run.length * net
    return highest


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
    if answer.setup.strategy is Strategy.DEVICE_MAP:
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
    held = (answer.decisive.bytes, answer.need_low_bytes, answer.setup.replicas, answer.gpu)
    low, _, high = shown_bytes(*held)
    middle = device_bytes(answer)
    return Shown(min(low, middle), middle, max(high, middle))


def _changes(
    sized: Sized, runs: Iterable[Run], setup: TrainingSetup
) -> Iterator[list[AllocatorEvent]]:
    """The step segment by segment, with every layer repeated in order."""
    stretches: dict[int, list[AllocatorEvent]] = {}
    for run in runs:
        if run.segment not in stretches:
            stretches[run.segment] = _stretch(setup.mesh, sized.events(run.segment))
        for _ in range(run.length):
            yield stretches[run.segment]


def _most_gathered(sized: Sized, schedule: Schedule, mesh: Mesh) -> int:
    """Most bytes of weights that ZeRO-3 holds gathered, in blocks of a separate stream.

    Each layer reuses the blocks of the layer before, so they are allocated once.
    Source: DeepSpeed 0.19.6, runtime/zero/partitioned_param_coordinator.py, ``__allgather_stream``.
    """
    gathered = schedule.gathered(sized, mesh.shard_ranks)
    if gathered is None:
        return 0
    return max(level for run in gathered.alike for _, _, level in run)


def _stretch(mesh: Mesh, events: Iterable[tuple[int, Key, int]]) -> list[AllocatorEvent]:
    changes: list[AllocatorEvent] = []
    for sign, key, size in events:
        if not size:
            continue
        last = changes[-1] if changes else None
        if sign > 0 and last is not None and last.sign < 0 and last.key[:2] == key[:2]:
            changes[-1] = AllocatorEvent(0, last.key, size, COMPUTE, key)
        else:
            changes.append(AllocatorEvent(sign, key, size, _stream(mesh, key[0], key[2]), key))
    return changes


def _pieces(total: int, count: int, share: LayerShare = WHOLE) -> list[int]:
    """Bytes split into ``count`` equal pieces, of which a share is taken."""
    return [ceil_div(total, count)] * share.of(count) if total else []


def _count(model: Model, setup: TrainingSetup) -> int:
    """Number of weight tensors; FSDP1 has one per unit."""
    if setup.uses_fsdp1:
        return model.num_hidden_layers + 1
    return sum(count * len(weight_shapes(it)) for it, count in made_modules(model, setup.adapters))


def _trained(model: Model, same: TrainingSetup) -> list[Trainable]:
    if same.uses_fsdp1:
        return flat_tensors(model, same)
    if same.strategy.is_fsdp:
        return sharded_tensors(model, same)
    return trainable_tensors(model, same)


def _step_sizes(resident: Resident, changed: int, mesh: Mesh, share: LayerShare) -> list[int]:
    """Bytes of the step's temporaries: one per trained tensor; DeepSpeed's flat gradient in 16 bits and in float32."""
    if mesh.strategy.is_zero:
        return [resident.transient // 3, resident.transient - resident.transient // 3]
    return _pieces(resident.transient, changed, share)


def _state_sizes(
    trained: Iterable[Trainable], optimisation: Optimisation, share: LayerShare
) -> Iterator[int]:
    """Bytes of the optimizer's states: two per trained tensor."""
    for tensor in trained:
        one = optimizer_states(
            [tensor._replace(alike=1)], optimisation.optim, optimisation.optim_state_dtype
        ).resident_bytes
        for _ in range(share.of(tensor.alike)):
            yield from _pieces(one, STATES)
