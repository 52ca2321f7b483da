"""DeepSpeed's flat partitions: where each trained tensor is among the ranks, and which gradients a rank keeps.

Stages 1 and 2 flatten each of the optimizer's groups and cut it into one partition per rank.

Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, as each function says.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

from estimator.families.model_tree import At, layer_kind, outer_modules
from estimator.families.modules import is_after_layers
from estimator.parallel.computed import computed_width
from estimator.parallel.tensors import trained_in_order, without_rank
from estimator.values.arithmetic import Operation, allocated, ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Offload
from estimator.values.strategies import Strategy

SUB_GROUP = 10**9
"""Elements that a rank updates together: DeepSpeed 0.19.6, runtime/zero/config.py, ``sub_group_size``."""
NORM_WIDTH = 8
"""Bytes per element of the float64 copy of a gradient, whose norm is computed before it goes to the host. DeepSpeed
0.19.6, runtime/zero/utils.py, ``get_norm_dtype``."""


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
    return sum(group_partition(sum(sizes), gpus) for sizes in stepped_groups(model, adapters))


def group_partition(total: int, ranks: int) -> int:
    """Elements of one rank's partition of a group: a multiple of 2, since NCCL's buffers start at 4 bytes (derived)."""
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
        part = group_partition(ends[-1], gpus)
        for rank in range(ceil_div(ends[-1], part)):
            start, end = rank * part, min((rank + 1) * part, ends[-1])
            low, high = bisect_right(ends, start), bisect_left(ends, end)
            kept[rank] += ends[high] - (ends[low] - sizes[low])
    return tuple(kept)


def most_kept_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of gradients that the fullest rank keeps.

    Source: as ``kept_gradients``.
    """
    size = computed_width(setup.precision)

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
        parts = [group_partition(total, setup.mesh.num_gpus) for total in totals]
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
    size, parts = computed_width(setup.precision), parts_of(model, setup)

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
    size = computed_width(setup.precision)

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
        part, start = group_partition(sum(sizes), gpus), 0
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
