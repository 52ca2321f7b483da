"""DeepSpeed's ZeRO: what a rank holds at each stage, and how weights and gradients move during a step.

Trained weights are kept in 16 bits, and again in float32 as flat partitions, one per rank, which the optimizer updates.
Bucket sizes are Trainer's for ``auto``: reduce h², prefetch 0.9 h², persistence threshold 10 h elements (h: hidden
size).

Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, stage3.py and partitioned_param_coordinator.py, as each says;
transformers 5.23, integrations/deepspeed.py, ``trainer_config_finalize``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

from estimator.families.adapters import is_quantized, is_trained_whole
from estimator.families.model_tree import (
    layer_groups,
    layer_kind,
    layer_modules,
    outer_modules,
    vision_modules,
)
from estimator.families.modules import Module, is_after_layers, weight_shapes
from estimator.families.vision_family import sees
from estimator.families.weights import (
    FLOAT32_BYTES,
    adapter_shapes,
    buffer_bytes,
    packed_bytes,
    quantized_bytes,
    scale_bytes,
)
from estimator.parallel.parameter_order import At, trained_in_order, without_rank
from estimator.parallel.sharding import packed_width, sharded_on_init
from estimator.parallel.zero3_coordinator import Rules
from estimator.resident.optimizer import States, Trainable, optimizer_states, step_transient
from estimator.tape.operators import call_back
from estimator.tape.tape import (
    COMMUNICATION,
    GRADIENTS,
    TEMPORARIES,
    Leaf,
    Parameter,
    Storage,
    Tape,
    Tensor,
    WholeWeight,
)
from estimator.values.arithmetic import Operation, allocated, ceil_div, elements, larger, smaller
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.precision import Precision
from estimator.values.setup import TrainingSetup
from estimator.values.specs import MixedPrecision, Model, Offload
from estimator.values.strategies import Strategy

SUB_GROUP = 10**9
"""Elements that a rank updates together: DeepSpeed 0.19.6, runtime/zero/config.py, ``sub_group_size``."""
NORM_WIDTH = 8
"""Bytes per element of the float64 copy of a gradient, whose norm is computed before it goes to the host. DeepSpeed
0.19.6, runtime/zero/utils.py, ``get_norm_dtype``."""
NORM_PART = 250_000_000
"""Elements per chunk when stage 3 computes a norm: stage3.py, ``_constant_buffered_norm2``."""
SWAPPED_BYTES = 2**20
"""Smaller tensors are not written to NVMe: DeepSpeed 0.19.6, runtime/swap_tensor/constants.py, ``MIN_AIO_BYTES``."""


class Counted(NamedTuple):
    """The size of one tensor, and whether it is trained."""

    elements: int
    trained: bool


def width(precision: Precision) -> int:
    """Bytes per element of the weights used in computation: 2 under bf16 or fp16, else 4.

    Source: DeepSpeed 0.19.6, runtime/engine.py, ``_cast_module_mixed_precision`` and ``__check_params``.
    """
    return FLOAT32_BYTES if precision.mixed_precision is MixedPrecision.NO else 2


def trained_width(setup: TrainingSetup) -> int:
    """Bytes per element of the trained weights, in the dtype of the computation.

    Source: as ``sharded_on_init``.
    """
    wide = (
        setup.adapters.uses_adapters
        and setup.adapters.autocast_adapter_dtype
        and sharded_on_init(setup)
    )
    return FLOAT32_BYTES if wide else width(setup.precision)


def gathers_nothing(mesh: Mesh) -> bool:
    """Whether stage 3 needs no gather: on one GPU, whose partition is the whole model.

    Source: DeepSpeed 0.19.6, runtime/zero/partition_parameters.py, ``_no_gather_coalesced`` and ``NoGatherHandle``.
    """
    alone = mesh.strategy.gathers_modules and mesh.num_gpus == 1
    return alone and mesh.offload_param is Offload.NONE


def gathering(
    model: Model, adapters: Adapters, mesh: Mesh, *, trained: bool = True
) -> Rules | None:
    """Stage 3's gather settings, in elements: 0.9 h² prefetched, tensors up to 10 h persistent; None if it gathers
    nothing.

    Source: transformers 5.23, integrations/deepspeed.py, ``stage3_prefetch_bucket_size`` and
    ``stage3_param_persistence_threshold``.
    """
    if not mesh.strategy.gathers_modules or gathers_nothing(mesh):
        return None
    hidden = model.hidden_size
    return Rules(
        prefetched=9 * hidden**2 // 10,
        persistent=10 * hidden,
        is_offloaded=mesh.offload_param is not Offload.NONE,
        alone=mesh.num_gpus == 1,
        is_wrapped=adapters.uses_adapters and trained,
        is_frozen=not trained,
    )


def _modules(model: Model, adapters: Adapters) -> Iterable[tuple[Module, int]]:
    if sees(model, adapters):
        yield from vision_modules(model)
    for module in outer_modules(model):
        yield module, 1
    for lowest, count in layer_groups(model):
        for module in layer_modules(model, lowest):
            yield module, count


def _tensors(module: Module, adapters: Adapters) -> list[Counted]:
    """One module's own unpacked weights, and its adapters."""
    own = weight_shapes(module)[1 if is_quantized(module, adapters) else 0 :]
    trained = not adapters.uses_adapters and is_trained_whole(module, adapters)
    return [
        *(Counted(elements(shape), trained) for shape in own),
        *(Counted(elements(shape), True) for shape in adapter_shapes(module, adapters)),
    ]


def whole_tensors(model: Model, adapters: Adapters) -> list[tuple[Counted, int]]:
    """Every unpacked tensor, including adapters, with its elements and multiplicity.

    Source: derived, from ``weight_shapes`` and ``adapter_shapes``.
    """
    modules = _modules(model, adapters)
    return [(t, n) for module, n in modules for t in _tensors(module, adapters)]


def trained_elements(model: Model, adapters: Adapters) -> list[int]:
    """Elements of every trained tensor, in the order of ``model.parameters()``.

    Source: as ``trained_in_order``.
    """
    return [elements(tensor.shape) for tensor in trained_in_order(model, adapters)]


def stepped_groups(model: Model, adapters: Adapters) -> tuple[tuple[int, ...], ...]:
    """Elements of every trained tensor by optimizer group: with weight decay, then norms and biases.

    Source: transformers 5.23, trainer.py, ``get_decay_parameter_names``.
    """
    return _groups(model, without_rank(adapters))


def sub_groups(model: Model, adapters: Adapters, mesh: Mesh) -> list[int]:
    """Elements of one rank's sub-groups of trained tensors, which stage 3 updates in turn.

    Source: DeepSpeed 0.19.6, runtime/zero/stage3.py, ``_create_fp16_sub_groups``, for each of the optimizer's groups.
    """
    found = []
    for group in stepped_groups(model, adapters):
        inside = 0
        for count in group:
            inside += ceil_div(count, mesh.num_gpus)
            if inside >= SUB_GROUP:
                found.append(inside)
                inside = 0
        if inside:
            found.append(inside)
    return found


@lru_cache(maxsize=32)
def _groups(model: Model, adapters: Adapters) -> tuple[tuple[int, ...], ...]:
    groups: tuple[list[int], list[int]] = ([], [])
    for tensor in trained_in_order(model, adapters):
        groups[not tensor.decays].append(elements(tensor.shape))
    return tuple(tuple(group) for group in groups if group)


Counting = Callable[[Model, Adapters, int], int]
"""A count from the trained tensors, of this rank of adapters, and the number of GPUs."""


def _counted(model: Model, adapters: Adapters, gpus: int, count: Counting) -> int:
    """A count over thousands of tensors, which a step that is recorded for any rank holds as one operation."""

    def counted(rank: int, gpus: int) -> int:
        return count(model, replace(adapters, lora_r=rank), gpus)

    def at_most(rank: int, gpus: int) -> int:
        trained = sum(map(sum, stepped_groups(model, replace(adapters, lora_r=rank))))
        return allocated(NORM_WIDTH * (trained + 4 * gpus))

    return Operation(counted, at_most).of(without_rank(adapters).lora_r, gpus)


def partition(model: Model, setup: TrainingSetup, ranks: int | None = None) -> int:
    """Elements of one rank's partition of all trained weights: each group flattened and padded to a multiple of 2 ·
    ranks.

    ``ranks``: where they are not the setup's ``num_gpus``, as in a step that is recorded for any number.

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py (``nccl_start_alignment_factor``).
    """
    return _counted(
        model, setup.adapters, setup.mesh.num_gpus if ranks is None else ranks, _partition
    )


def _partition(model: Model, adapters: Adapters, gpus: int) -> int:
    return sum(_part(sum(sizes), gpus) for sizes in stepped_groups(model, adapters))


def _part(total: int, ranks: int) -> int:
    return 2 * ceil_div(total, 2 * ranks)


def kept_gradients(model: Model, adapters: Adapters, gpus: int) -> tuple[int, ...]:
    """Elements of the gradients that each rank keeps at stages 1 and 2: whole tensors, even if only partly in its
    partition.

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``copy_grads_in_partition``.
    """
    return _kept(model, without_rank(adapters), gpus)


@lru_cache(maxsize=16)
def _kept(model: Model, adapters: Adapters, gpus: int) -> tuple[int, ...]:
    kept = [0] * gpus
    for sizes in stepped_groups(model, adapters):
        ends = list(accumulate(sizes))
        part = _part(ends[-1], gpus)
        for rank in range(ceil_div(ends[-1], part)):
            start, end = rank * part, min((rank + 1) * part, ends[-1])
            low, high = bisect_right(ends, start), bisect_left(ends, end)
            kept[rank] += ends[high] - (ends[low] - sizes[low])
    return tuple(kept)


def most_kept_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of gradients that the fullest rank keeps.

    Source: as ``kept_gradients``.
    """
    size = width(setup.precision)

    def most(model: Model, adapters: Adapters, gpus: int) -> int:
        return allocated(size * max(kept_gradients(model, adapters, gpus)))

    return _counted(model, setup.adapters, setup.mesh.num_gpus, most)


def keeps_parts(mesh: Mesh) -> bool:
    """Whether a rank keeps its gradients on the GPU during backward: stage 2 without optimizer offload.

    Source: as ``kept_gradients``.
    """
    return mesh.strategy.keeps_parts and mesh.offload_optimizer is Offload.NONE


def forgets_gradients(mesh: Mesh) -> bool:
    """Whether a micro-step allocates the same with gradients of earlier ones: they lie on the host or in a flat buffer.

    Source: derived, from ``Bucket``; at stage 2 on the GPU ``Bucket.keep`` counts them.
    """
    divides = mesh.strategy.is_zero and mesh.strategy.shards_gradients
    return divides and not keeps_parts(mesh)


class PartitionPlace(NamedTuple):
    """Where a trained tensor is among the ranks' partitions, with all tensors flattened into one."""

    ranks: range
    """The ranks whose partitions contain it. For a layer that represents several, the union over those."""
    copied: bool
    """Whether a tensor too large for the bucket is flattened again, because several ranks have short slices of it."""


MostKept = Callable[[Collection[range]], int]
"""Bytes of gradients that the fullest of some ranks keeps; of no ranks given: of all."""
SOME_RANK = 64
"""Rank of adapters. All adapters scale with it, so their partition boundaries do not depend on it."""


Places = dict[tuple[str, str], PartitionPlace]
"""By module and tensor, as in ``Trained.key``."""


class Parts:
    """Where every trained tensor is among the ranks' partitions.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, ``average_tensor`` and ``allreduce_and_scatter``.
    """

    def __init__(self, model: Model, setup: TrainingSetup) -> None:
        self._model, self._setup = model, setup
        self._by_layer: dict[At | None, Places] = {}
        trained = trained_in_order(model, setup.adapters)
        tensors = [(int(not tensor.decays), elements(tensor.shape), tensor) for tensor in trained]
        ends, totals = [0, 0], [0, 0]
        for group, count, _ in tensors:
            totals[group] += count
        parts = [_part(total, setup.mesh.num_gpus) for total in totals]
        within: dict[int, PartitionPlace] = {}
        """The place of a tensor that lies in one rank's partition."""
        for group, count, tensor in tensors:
            start, end, part = ends[group], ends[group] + count, parts[group]
            ends[group] = end
            rank = start // part
            if end <= (rank + 1) * part:
                where = within.get(rank)
                if where is None:
                    where = within[rank] = PartitionPlace(range(rank, rank + 1), copied=False)
            else:
                where = place(start, end, part, model.hidden_size**2)
            self._by_layer.setdefault(tensor.at, {})[tensor.key] = where
        self._kept = kept_gradients(model, setup.adapters, setup.mesh.num_gpus)
        self.alone = self._alone(accumulates=setup.batch.gradient_accumulation_steps > 1)
        """Layers simulated individually: the lowest, the last, and those where the fullest rank's gradients grow."""
        met = [*chain.from_iterable(places.items() for places in self._met())]
        self.ranges = list(dict.fromkeys(place.ranks for _, place in met))
        """The ranks of the places that a step meets, each once."""
        self.cuts = (
            self.alone,
            [
                (key, self.ranges.index(place.ranks), len(place.ranks) == 1, place.copied)
                for key, place in met
            ],
        )
        """All that a step does by these places but for how much each rank keeps, by number in ``ranges``."""

    def on(self, gpus: int) -> Parts:
        """The places of the same tensors on another number of GPUs."""
        accumulates = self._setup.batch.gradient_accumulation_steps > 1
        return _parts(self._model, self._setup.adapters, gpus, accumulates)

    def _met(self) -> Iterator[Places]:
        """Outside the layers, of each layer that is alone, and of one that represents the others of its kind."""
        kinds = set()
        for at in self._by_layer:
            if at is not None and at not in self.alone:
                kind = at.in_tower, layer_kind(self._stack(at), at.layer)
                if kind in kinds:
                    continue
                kinds.add(kind)
            yield self.of(at)

    def _stack(self, at: At) -> Model:
        vision = self._model.vision
        return vision.tower if at.in_tower and vision is not None else self._model

    def of(self, at: At | None) -> Places:
        """The places of a layer's trained tensors; None: those outside the layers.

        A layer not in ``alone`` represents all similar layers not in ``alone``.
        """
        if at is None or at in self.alone:
            return self._by_layer.get(at, {})
        stack = self._stack(at)
        kind = layer_kind(stack, at.layer)
        alike = [
            self._by_layer.get(other, {})
            for index in range(stack.num_hidden_layers)
            if (other := at._replace(layer=index)) not in self.alone
            and layer_kind(stack, index) == kind
        ]
        return {
            key: PartitionPlace(
                range(
                    min(places[key].ranks.start for places in alike),
                    max(places[key].ranks.stop for places in alike),
                ),
                any(places[key].copied for places in alike),
            )
            for key in alike[0]
        }

    def _alone(self, *, accumulates: bool) -> frozenset[At]:
        """A rank allocates its gradients when backward reaches the first; that may be reduced one layer later."""
        vision = self._model.vision
        counts = [self._model.num_hidden_layers]
        if vision is not None and any(at is not None and at.in_tower for at in self._by_layer):
            counts.append(vision.tower.num_hidden_layers)
        backward = [
            At(layer, in_tower=bool(stack))
            for stack, count in enumerate(counts)
            for layer in range(count - 1, -1, -1)
        ]
        alone = {at for at in backward if at.layer in (0, counts[at.in_tower] - 1)}
        kept = 0
        most = max(self._kept) // 2 if accumulates else 0
        outer = self._by_layer.get(None, {})
        after = {
            (module.name, str(part))
            for module in outer_modules(self._model)
            if is_after_layers(module)
            for part in range(2)
        }
        for at in (None, *backward):
            of_layer = self._by_layer.get(at, {})
            places = of_layer if at is not None else {k: outer[k] for k in after & outer.keys()}
            for ranks in {where.ranks for where in places.values()}:
                kept = max(kept, *self._kept[ranks.start : ranks.stop])
            if kept > most:
                most = kept
                last = At(counts[0] - 1)
                alone |= {last} if at is None else {at, at._replace(layer=max(0, at.layer - 1))}
        return frozenset(alone)


def parts_of(model: Model, setup: TrainingSetup) -> Parts:
    """The places of a setup's tensors, remembered by the keys that decide them.

    Source: as ``Parts``.
    """
    adapters = replace(setup.adapters, lora_r=SOME_RANK)
    return _parts(model, adapters, setup.mesh.num_gpus, setup.batch.gradient_accumulation_steps > 1)


def most_kept_of(model: Model, setup: TrainingSetup, ranks: int) -> MostKept:
    """Bytes of gradients that the fullest of some ranks keeps.

    A record of it holds for numbers of GPUs whose partitions cut the tensors alike. ``ranks``: the setup's number of
    GPUs, as the record has it.

    Source: as ``kept_gradients``.
    """
    size, parts = width(setup.precision), parts_of(model, setup)

    alike = Operation(lambda _, gpus: int(parts.on(gpus).cuts == parts.cuts), lambda *_: 1)
    is_alike = alike.of(0, ranks) == 1  # a comparison of the record
    assert is_alike, "recorded for other GPUs than the setup's"
    known: dict[frozenset[int], int] = {}

    def most_kept(owners: Collection[range]) -> int:
        numbers = frozenset(map(parts.ranges.index, owners))
        if numbers not in known:
            known[numbers] = _counted(
                model, setup.adapters, ranks, _most_of(parts, alike, numbers, size)
            )
        return known[numbers]

    return most_kept


def _most_of(parts: Parts, alike: Operation, numbers: Collection[int], size: int) -> Counting:
    """Bytes that the fullest of these ranges of ranks keeps; 0 on GPUs for which the record does not hold."""

    def most(model: Model, adapters: Adapters, gpus: int) -> int:
        if not alike(0, gpus):
            return 0
        kept, ranges = kept_gradients(model, adapters, gpus), parts.on(gpus).ranges
        among = [ranges[number] for number in numbers] or [range(gpus)]
        return allocated(size * max(max(kept[some.start : some.stop]) for some in among))

    return most


@lru_cache(maxsize=64)
def _parts(model: Model, adapters: Adapters, num_gpus: int, accumulates: bool) -> Parts:
    mesh = Mesh(num_gpus=num_gpus, strategy=Strategy.ZERO2)
    setup = TrainingSetup(adapters=adapters, mesh=mesh, gradient_accumulation_steps=1 + accumulates)
    return Parts(model, setup)


def place(start: int, end: int, part: int, limit: int) -> PartitionPlace:
    """Where elements ``start`` to ``end`` are among partitions of ``part`` elements, with a bucket of ``limit``
    elements.

    Source: as ``Parts``.
    """
    # slices of a large tensor are sent once they exceed the limit together; a single slice is sent without a copy
    copied, together = False, 0
    for _, size in slices(start, end, part):
        copied = copied or together > 0
        together = 0 if together + size > limit else together + size
    return PartitionPlace(range(start // part, (end - 1) // part + 1), copied)


def slices(start: int, end: int, part: int) -> list[tuple[int, int]]:
    """The ranks whose partitions hold elements ``start`` to ``end``, and how many elements each (derived).

    >>> slices(5, 12, 4)
    [(1, 3), (2, 4)]
    """
    ranks = range(start // part, (end - 1) // part + 1)
    return [(rank, min(end, (rank + 1) * part) - max(start, rank * part)) for rank in ranks]


def after_backward(model: Model, setup: TrainingSetup, gpus: int) -> int:
    """Peak bytes in addition to all gradients and the bucket when stage 1 reduces them, on the fullest rank.

    After backward, tensors are reduced in model order, bucket by bucket. Small ones are copied into the bucket. A
    rank's own gradients are copied to their final place, or to the host via a float64 copy, and then freed.

        at a tensor of the rank's own  8 n (offloaded; else all of its own, p Σ n) − p · elements freed before

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``reduce_gradients``, ``reduce_ipg_grads``,
    ``copy_grads_in_partition`` and ``set_norm_for_param_grad_in_gpu``.
    """
    offloads = setup.mesh.offload_optimizer is not Offload.NONE
    size = width(setup.precision)

    def most(model: Model, adapters: Adapters, gpus: int) -> int:
        return _after_backward(model, adapters, gpus, size, offloads=offloads)

    return _counted(model, setup.adapters, gpus, most)


def _after_backward(
    model: Model, adapters: Adapters, gpus: int, size: int, *, offloads: bool
) -> int:
    kept = kept_gradients(model, adapters, gpus)
    limit, gone, most = model.hidden_size**2, [0] * gpus, 0
    copied = 0  # elements of small tensors, on every rank
    bucket: list[list[tuple[int, int]]] = []
    inside = 0

    def reduce() -> None:
        nonlocal most
        for pieces in bucket:
            for rank, piece in pieces:
                beside = NORM_WIDTH * piece if offloads else size * kept[rank]
                most = max(most, beside - size * (copied + gone[rank]))
        for pieces in bucket:
            whole = sum(piece for _, piece in pieces)
            for rank, _ in pieces:
                gone[rank] += whole if whole > limit else 0
        bucket.clear()

    for sizes in stepped_groups(model, adapters):
        part, start = _part(sum(sizes), gpus), 0
        for count in sizes:
            if inside + count > limit:
                reduce()
                inside = 0
            copied += count if count <= limit else 0
            inside += count
            bucket.append(slices(start, start + count, part))
            start += count
    reduce()
    return most


class RankBytes(NamedTuple):
    """Bytes that one rank holds, by category."""

    weights: int
    gradients: int
    """Gradients at the optimizer step."""
    accumulated: int
    """The part of ``gradients`` that exists before a micro-step begins."""
    transient: int
    states: States
    """Including the float32 weights that the optimizer updates."""
    communication: int


def rank_bytes(model: Model, setup: TrainingSetup) -> RankBytes:
    """Bytes of the fullest rank under ZeRO.

        stage 1, 2   2 N + (4 + k) N/W + gradients       stage 3   (2 + 2 + 4 + k) N/W + small unsharded weights
        N: trained weights; W: ranks; k: the optimizer's states in float32, 8 for AdamW

    At the step, norms are computed one gradient at a time in float64, 8 bytes per element. The partition's gradients
    are then flattened, 2 N/W, and cast to float32, 4 N/W; at stage 3 in groups of 10⁹ elements.

    With an offloaded optimizer, no states or gradients stay on the GPU. Stages 1 and 2 keep a buffer as large as the
    largest gradient instead; stage 3 with NVMe keeps gradients too small to be written. With offloaded weights, small
    weights stay.

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``get_grad_norm_direct``, ``step`` and
    ``temp_grad_buffer_for_gpu_offload``;
    stage3.py, ``_prepare_fp32_grad_for_sub_group``, ``grad_partitions_flat_buffer`` and
    ``_create_fp16_partitions_with_defragmentation``; swap_tensor/optimizer_utils.py, ``_swap_out_gradients``.
    """
    ranks, size = setup.mesh.num_gpus, width(setup.precision)
    bucket, optimisation = size * model.hidden_size**2, setup.optimisation
    whole = whole_tensors(model, setup.adapters)
    stage3 = setup.mesh.strategy.shards_weights
    held = (_sharded_weights if stage3 else _whole_weights)(model, setup, whole)
    if setup.mesh.offload_optimizer is not Offload.NONE:
        on_the_gpu = held.accumulated if setup.mesh.strategy.reduces_after_backward else 0
        beside = bucket if stage3 else size * max(trained_elements(model, setup.adapters))
        if setup.mesh.offload_optimizer is Offload.NVME:
            beside += FLOAT32_BYTES * _too_small_to_swap(whole, ranks)
        return RankBytes(held.weights, 0, on_the_gpu, 0, States(0, 0), beside)
    flat = [Trainable((held.part,), FLOAT32_BYTES, 1)]
    of_step = [Trainable((held.stepped,), FLOAT32_BYTES, 1)]
    states = optimizer_states(flat, optimisation.optim, optimisation.optim_state_dtype)
    # float32 weights too: _create_fp32_partitions compares the tensor's device with a string, which is never equal
    master = FLOAT32_BYTES * held.part
    at_once = max(ceil_div(t.elements, ranks) for t, _ in whole if t.trained)
    if not stage3:  # a rank's slice of the largest tensor, which may fill its partition
        at_once = min(held.part, max(trained_elements(model, setup.adapters)))
    transient = max(
        NORM_WIDTH * at_once,
        held.stepped * (size + (FLOAT32_BYTES if size < FLOAT32_BYTES else 0)),
        held.stepped * FLOAT32_BYTES
        + step_transient(of_step, optimisation.optim, optimisation.optim_state_dtype),
    )
    return RankBytes(
        weights=held.weights,
        gradients=held.gradients,
        accumulated=held.accumulated,
        transient=transient,
        states=States(
            states.resident_bytes + master, states.paged_bytes, states.from_start + master
        ),
        communication=bucket if stage3 else 0,
    )


class _Held(NamedTuple):
    """What a rank holds of weights and gradients."""

    part: int
    """Elements of trained weights of which it has states."""
    stepped: int
    """Those of them that are stepped together."""
    weights: int
    """Bytes."""
    gradients: int
    accumulated: int


Wholes = Sequence[tuple[Counted, int]]
"""All tensors, with their multiplicity."""


def _sharded_weights(model: Model, setup: TrainingSetup, whole: Wholes) -> _Held:
    """Of stage 3: a part of every weight, and the small ones whole."""
    ranks, size, few = setup.mesh.num_gpus, width(setup.precision), 10 * model.hidden_size
    part = sum(n * ceil_div(t.elements, ranks) for t, n in whole if t.trained)
    rest = sum(n * ceil_div(t.elements, ranks) for t, n in whole if not t.trained)
    of_trained = trained_width(setup)
    weights = sum(
        n * packed_part(module, setup, few) for module, n in _modules(model, setup.adapters)
    )
    if not gathers_nothing(setup.mesh):
        weights += sum(
            n * t.elements * (of_trained if t.trained else size)
            for t, n in whole
            if t.elements <= few
        )
    if setup.mesh.offload_param is Offload.NONE:
        weights += of_trained * part + size * rest
    gradients = allocated(size * part)
    return _Held(part, min(part, SUB_GROUP), weights, gradients, gradients)


def _whole_weights(model: Model, setup: TrainingSetup, whole: Wholes) -> _Held:
    """Of stages 1 and 2: all weights, and the gradients of whole tensors."""
    part, size = partition(model, setup), width(setup.precision)
    packed = sum(
        n * _packed(module, setup.adapters) for module, n in _modules(model, setup.adapters)
    )
    weights = size * sum(n * t.elements for t, n in whole) + packed
    gradients, accumulated = most_kept_bytes(model, setup), 0
    if setup.batch.gradient_accumulation_steps > 1:
        accumulated = gradients
        if setup.mesh.strategy.reduces_after_backward:
            # stage 1 also frees its bucket after reducing
            trained = sum(n * t.elements for t, n in whole if t.trained)
            accumulated = size * (trained + model.hidden_size**2)
    return _Held(part, part, weights, gradients, accumulated)


def frozen_part_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of one rank's part of a model of which nothing is trained, at stage 3: Σ ⌈n / W⌉ · p, small weights whole.

    Source: as ``rank_bytes``; trl 1.16, models/utils.py, ``prepare_deepspeed`` (an engine of its own).
    """
    ranks, size, persistent = setup.mesh.num_gpus, width(setup.precision), 10 * model.hidden_size
    whole = whole_tensors(model, setup.adapters)
    small = sum(n * t.elements for t, n in whole if t.elements <= persistent)
    small = 0 if gathers_nothing(setup.mesh) else small
    parts = sum(n * ceil_div(t.elements, ranks) for t, n in whole)
    if setup.mesh.offload_param is not Offload.NONE:
        parts = 0
    modules = _modules(model, setup.adapters)
    packed = sum(n * packed_part(module, setup, persistent) for module, n in modules)
    return size * (parts + small) + packed + buffer_bytes(model)


def _too_small_to_swap(whole: Iterable[tuple[Counted, int]], ranks: int) -> int:
    """Elements of a rank's partitions whose float32 gradients stay on the GPU until the step."""
    parts = ((ceil_div(t.elements, ranks), n) for t, n in whole if t.trained)
    return sum(n * part for part, n in parts if FLOAT32_BYTES * part < SWAPPED_BYTES)


def _packed(module: Module, adapters: Adapters) -> int:
    if not is_quantized(module, adapters):
        return 0
    count = elements(weight_shapes(module)[0])
    return quantized_bytes(count, double_quant=adapters.bnb_4bit_use_double_quant)


def packed_part(module: Module, setup: TrainingSetup, persistent: int) -> int:
    """Bytes of a packed weight on one rank at stage 3: its partition, or the whole of a small weight, plus all scales.

    bitsandbytes keeps the scales outside the parameter, so DeepSpeed does not shard them.
    Source: DeepSpeed 0.19.8, runtime/zero/parameter_offload.py, ``_convert_to_zero_parameters``, and
    partition_parameters.py, ``_zero_init_param``.
    """
    if not is_quantized(module, setup.adapters):
        return 0
    count = elements(weight_shapes(module)[0])
    scales = scale_bytes(count, double_quant=setup.adapters.bnb_4bit_use_double_quant)
    stored = packed_width(setup.adapters)
    whole = ceil_div(packed_bytes(count), stored)
    part = ceil_div(whole, setup.mesh.num_gpus)
    small = whole if whole <= persistent and not gathers_nothing(setup.mesh) else 0
    return stored * (part + small) + scales


ToHost = Callable[[Sequence[int]], int]
"""Extra bytes while partitions of gradients go to the host, from the elements of each gradient."""


def sent_from_stage_2(part: int) -> ToHost:
    """Bytes at stages 1 and 2 while gradients go to the host: the largest in float64, cut to this rank's partition.

    ``part``: elements of the rank's partition. The float32 copy sent over the link is half as large.
    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``set_norm_for_param_grad_in_gpu`` and
    ``async_inplace_copy_grad_to_fp32_buffer_from_gpu``.

    >>> sent_from_stage_2(1000)([10, 20]), sent_from_stage_2(15)([10, 20])
    (160, 120)
    """
    return lambda gradients: NORM_WIDTH * smaller(max(gradients), part)


def sent_from_stage_3(precision: Precision, mesh: Mesh, ranks: int) -> ToHost:
    """Bytes at stage 3 while partitions of gradients go to the host.

        p · width  +  the larger of 8 · min(p, 250 million) and 4 · p     p: elements of the largest partition

    The gradient comes back from the host into a copy on the GPU, where its norm is computed and it is cast to float32.
    With NVMe, the float32 gradients of a whole bucket are kept together: another 4 · Σ of the others.
    Source: DeepSpeed 0.19.6, runtime/zero/stage3.py, ``partition_grads``, ``_offload_grad_partition_at_boundary`` and
    ``_swap_out_offload_fp32_gradients``.

    >>> sent_from_stage_3(Precision(), Mesh(), 2)([10, 20]) == 10 * 2 + 10 * 8
    True
    """
    waits = mesh.offload_optimizer is Offload.NVME

    def beside(gradients: Sequence[int]) -> int:
        parts = [ceil_div(elements, ranks) for elements in gradients]
        largest = max(parts)
        others = FLOAT32_BYTES * (sum(parts) - largest) if waits else 0
        norm = NORM_WIDTH * smaller(largest, NORM_PART)
        return others + largest * width(precision) + larger(norm, FLOAT32_BYTES * largest)

    return beside


class Bucket:
    """The reduction bucket: small gradients are copied into a buffer, large ones wait for the next reduction."""

    def __init__(
        self,
        tape: Tape,
        setup: TrainingSetup,
        hidden: int,
        kept: int,
        ranks: int,
        to_host: ToHost | None,
        most_kept: MostKept | None = None,
    ) -> None:
        self.tape = tape
        self.stage = setup.mesh.strategy
        self.ranks = ranks
        self.limit = hidden**2
        self.width = width(setup.precision)
        self.size = self.limit * self.width
        self.kept_bytes = kept
        """At stage 1: extra bytes at the end of backward."""
        self.most_kept = most_kept
        """At stage 2, where gradients stay on the GPU."""
        self.accumulates = setup.batch.gradient_accumulation_steps > 1
        self.buffer: Storage | None = None
        if (
            setup.mesh.strategy.reduces_after_backward
            and setup.batch.gradient_accumulation_steps > 1
        ):
            self.buffer = Storage.existing(tape, allocated(self.size), GRADIENTS)
        self.kept: list[Storage] = []
        self.kept_so_far = 0
        self.elements = 0
        self.waiting: list[Storage] = []
        self.to_host = to_host
        """None: gradients stay on the GPU."""
        self.inside: list[int] = []
        """Elements of each gradient in the bucket."""
        self.places: list[PartitionPlace | None] = []
        """Their places."""
        self.owners: set[range] = set()
        """Ranks that own these gradients, except those of layers that represent several, where nothing may stay."""

    def take(
        self, parameter: Parameter, place: PartitionPlace | None = None, *, repeats: bool
    ) -> None:
        """Collects the gradients of a parameter; ``repeats``: its layer represents several."""
        count = parameter.elements
        if parameter.node is not None and parameter.node.leaf is not None:
            parameter.node.leaf.arrived = lambda leaf: self._arrive(
                leaf, count, place, repeats=repeats
            )

    def keep(self, ranks: Collection[range]) -> None:
        """Allocates the gradients of the fullest of these ranks; a rank does so when its first gradient is reduced.

        With accumulation, a rank also holds its earlier gradients; the fullest rank's are counted from the start.
        """
        if self.most_kept is None or not ranks:
            return
        kept = self.most_kept(ranks)
        beside = kept
        if self.accumulates:
            beside = max(0, 2 * kept - self.most_kept(()))
        if beside > self.kept_so_far:
            self.kept.append(Storage(self.tape, beside - self.kept_so_far, GRADIENTS))
            self.kept_so_far = beside

    def _arrive(
        self, leaf: Leaf, elements: int, place: PartitionPlace | None, *, repeats: bool
    ) -> None:
        tape = self.tape
        if self.buffer is None and self.stage.partitions_flat:
            tape.operation = "bucket"
            self.buffer = Storage(tape, allocated(self.size), COMMUNICATION)
        if self.stage.reduces_after_backward or leaf.grad is None:
            return
        gradient, leaf.grad = leaf.grad, None
        if self.elements + elements > self.limit:
            self.flush()
        if elements > self.limit:
            self.waiting.append(gradient)
        self.elements += elements
        self.inside.append(elements)
        self.places.append(place)
        if place is not None and not repeats:
            self.owners.add(place.ranks)

    def flush(self) -> None:
        """Reduces the bucket and empties it."""
        tape = self.tape
        tape.operation = "reduction of gradients"
        if self.stage.shards_weights:
            # reduce_scatter_coalesced concatenates several tensors by rank and pads each to the ranks; a single
            # evenly divisible one is sent without a copy: runtime/comm/coalesced_collectives.py
            padded = [ceil_div(count, self.ranks) * self.ranks for count in self.inside]
            is_whole = padded == self.inside and len(padded) == 1
            copied = None
            if padded and not is_whole:
                copied = Storage(tape, allocated(self.width * sum(padded)), TEMPORARIES)
            self._send()
            del copied
        elif self.stage.reduces_after_backward:
            Storage(tape, allocated(self.kept_bytes), TEMPORARIES)
        elif self.to_host is not None:
            self._send()
        else:
            self._average()
        self.waiting.clear()
        self.inside.clear()
        self.places.clear()
        self.owners.clear()
        self.elements = 0

    def _average(self) -> None:
        """Stage 2: slices of several ranks are concatenated, reduced and copied back; a rank keeps its own.

        Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, ``allreduce_bucket`` (``flatten``, which copies unless
        there is one slice) and ``copy_grads_in_partition`` (``grads_in_partition``).
        """
        found = [place for place in self.places if place is not None]
        if not found:
            return
        if self.waiting:
            copies = any(place.copied for place in found)
        else:  # more than one rank has some
            first = min(place.ranks.start for place in found)
            copies = max(place.ranks.stop for place in found) > first + 1
        if copies:
            self.tape.operation = "concatenate slices of several ranks"
            Storage(self.tape, allocated(self.width * sum(self.inside)), TEMPORARIES)
            self.tape.operation = "reduction of gradients"
        self.keep(self.owners)

    def _send(self) -> None:
        """Sends gradients to the host; the extra bytes are freed on return."""
        if self.to_host is not None and self.inside:
            Storage(self.tape, allocated(self.to_host(self.inside)), TEMPORARIES)

    def end(self) -> None:
        """Ends backward."""
        self.flush()
        self.buffer = None


class Called:
    """A module whose weights stage 3 gathers. Records on the tape where its hooks run."""

    def __init__(self, tape: Tape, name: str, weights: Iterable[WholeWeight]) -> None:
        self.tape = tape
        self.name = name
        self.weights = tuple(weights)

    def _note(self, *, begins: bool, is_forward: bool) -> None:
        self.tape.call(self.name, self.weights, begins=begins, is_forward=is_forward)

    def enter(self, x: Tensor) -> Tensor:
        """The module's input: its weights are needed from here, and no longer once its gradient is computed."""
        self._note(begins=True, is_forward=True)
        if not x.requires_grad:
            return x
        return call_back(self.tape, x, lambda _: self._note(begins=False, is_forward=False))

    def leave(self, x: Tensor) -> Tensor:
        """The module's output: its weights are not needed again until its gradient arrives."""
        self._note(begins=False, is_forward=True)
        if not x.requires_grad:
            return x
        return call_back(self.tape, x, lambda _: self._note(begins=True, is_forward=False))
