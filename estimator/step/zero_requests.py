"""What DeepSpeed asks PyTorch's allocator for besides the tape: flat weights and shards, reductions, the step.

Sizes are bytes per GPU.

Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py unless another file is named, as each function says.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from estimator.families.model_tree import At, outer_modules
from estimator.families.modules import is_after_layers
from estimator.families.packed import FLOAT32_BYTES
from estimator.parallel.computed import computed_width
from estimator.parallel.tensors import Trained, trained_in_order
from estimator.parallel.zero_hooks import NORM_PART
from estimator.parallel.zero_partitions import (
    NORM_WIDTH,
    group_partition,
    kept_gradients,
    slices,
    stepped_groups,
    sub_groups,
)
from estimator.resident.optimizer import Trainable, state_tensors, step_transient
from estimator.step.blocks import EMPTY, GIVE, GIVE_ALL, TAKE, TAKE_ONCE, Request
from estimator.values.arithmetic import allocated, ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.optimisation import Optimisation
from estimator.values.facets.precision import Precision
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Offload

NewKeys = Callable[[int], int]
"""The first of so many keys that nothing else uses."""


class DecayGroup(NamedTuple):
    """The trained tensors of one optimizer group."""

    sizes: tuple[int, ...]
    """Elements of each, in the order of ``model.parameters()``."""
    part: int
    """Elements of one rank's partition."""

    def slices(self, index: int, start: int) -> list[tuple[int, int]]:
        """Ranks that own part of a tensor, and how many elements, from the tensor's first element in the group."""
        return slices(start, start + self.sizes[index], self.part)


@lru_cache(maxsize=32)
def groups(model: Model, adapters: Adapters, ranks: int) -> tuple[DecayGroup, ...]:
    """The optimizer's groups: with weight decay, then without.

    Source: ``initialize_gradient_partitioning_data_structures``; transformers 5.23, trainer.py, ``create_optimizer``.
    """
    of_all = stepped_groups(model, adapters)
    return tuple(DecayGroup(sizes, group_partition(sum(sizes), ranks)) for sizes in of_all)


def has_partitions(mesh: Mesh) -> bool:
    """Whether ZeRO divides flat gradients and states, but no weights, and all are on the GPU.

    Source: derived, from the strategy.
    """
    return mesh.strategy.partitions_flat and mesh.offload_optimizer is Offload.NONE


def has_shards(mesh: Mesh) -> bool:
    """Whether ZeRO-3 keeps everything on the GPU.

    Source: derived, from the strategy.
    """
    return (
        mesh.strategy.gathers_modules
        and mesh.offload_optimizer is Offload.NONE
        and mesh.offload_param is Offload.NONE
    )


def ranks_played(model: Model, adapters: Adapters, mesh: Mesh) -> tuple[int, ...]:
    """The ranks whose runs differ, and which need most: under ZeRO 1 and 2 the two that keep most gradients, and both
    ends; else the first.

    Of eight ranks of a small model, the least memory of one is up to 8 % above another's.

    Source: ``kept_gradients``; traces of PyTorch's allocator (``tests/verify``).
    """
    if not has_partitions(mesh):
        return (0,)
    kept = kept_gradients(model, adapters, mesh.num_gpus)
    fullest = sorted(range(mesh.num_gpus), key=lambda rank: -kept[rank])
    return tuple(dict.fromkeys([*fullest[:2], 0, mesh.num_gpus - 1]))


class Reached(NamedTuple):
    """What a rank's reductions depend on."""

    first: At
    """The layer in which backward reaches the first of its own gradients; those outside the layers count as a layer
    after all others, and one before them."""
    shared: frozenset[At]
    """The layers of which more than one rank keeps some gradient with weight decay."""


@lru_cache(maxsize=64)
def reached(model: Model, adapters: Adapters, ranks: int, rank: int) -> Reached:
    """Where backward comes to a rank's own gradients.

    Source: derived, from the order of partitions and the order of layers in backward.
    """
    found = groups(model, adapters, ranks)
    after = {module.name for module in outer_modules(model) if is_after_layers(module)}
    owners: defaultdict[At, set[int]] = defaultdict(set)
    places, starts = [0, 0], [0, 0]
    own: list[At] = []
    trained = trained_in_order(model, adapters)
    numbers = {decays: number for number, decays in enumerate(_decaying(trained))}
    for tensor in trained:
        number = numbers[tensor.decays]
        group, start = found[number], starts[number]
        at = tensor.at or At(model.num_hidden_layers if tensor.module in after else -1)
        of_tensor = {one for one, _ in group.slices(places[number], start)}
        places[number] += 1
        starts[number] += elements(tensor.shape)
        if tensor.decays:
            owners[at] |= of_tensor
        if rank in of_tensor:
            own.append(at)
    first = max(own, key=lambda at: (not at.in_tower, at.layer), default=At(-1))
    return Reached(first, frozenset(at for at, some in owners.items() if len(some) > 1))


def _decaying(trained: Iterable[Trained]) -> list[bool]:
    """Whether each group has weight decay, in their order."""
    return sorted({tensor.decays for tensor in trained}, reverse=True)


def flat_weights(
    model: Model, setup: TrainingSetup, held: int, new_keys: NewKeys, *, on_host: bool
) -> Iterator[Request]:
    """The trained weights arrive one by one, each group is copied into a flat tensor, and a float32 part is made of it.

    ``on_host``: the group goes to the host and becomes flat there, as where the card has no room for both. DeepSpeed
    empties the cache before each group. Both float32 gradients of the parts exist once, to be freed.

    Source: ``__init__`` (``flatten_on_accelerator``), ``initialize_optimizer_states``.
    """
    size, found = (
        computed_width(setup.precision),
        groups(model, setup.adapters, setup.mesh.num_gpus),
    )
    trained = trained_in_order(model, setup.adapters)
    first = new_keys(len(trained))
    for at, tensor in enumerate(trained):
        yield Request(TAKE, first + at, allocated(size * elements(tensor.shape)))
    temporary = new_keys(1)
    for group, decays in zip(found, _decaying(trained), strict=True):
        flat = Request(TAKE, held, allocated(size * group.part * setup.mesh.num_gpus))
        if not on_host:
            yield Request(EMPTY, 0)
            yield flat
        for at, tensor in enumerate(trained):
            if tensor.decays == decays:
                yield Request(GIVE, first + at)
        if on_host:
            yield Request(EMPTY, 0)
            yield flat
        master = Request(TAKE, held, allocated(FLOAT32_BYTES * group.part))
        if size == FLOAT32_BYTES:
            yield master
        else:
            yield Request(TAKE, temporary, allocated(size * group.part))
            yield master
            yield Request(GIVE, temporary)
    for group in found:
        yield Request(TAKE, temporary, allocated(FLOAT32_BYTES * group.part))
    yield Request(GIVE_ALL, temporary)


def reduced(
    model: Model,
    setup: TrainingSetup,
    rank: int,
    gradients: Mapping[int, list[int]],
    kept: int,
    copy: int,
) -> Iterator[Request]:
    """Stage 1 reduces all gradients after backward, bucket by bucket, and keeps those of the rank's partition.

    ``gradients``: keys of gradients by their bytes; ``kept``: the key of those that stay; ``copy``: of a flattened
    bucket. A gradient that fits the bucket is copied into it and freed; one of the rank's own that does not is freed
    once it is reduced, and all others at the end.

    Source: ``reduce_gradients``, ``reduce_independent_p_g_buckets_and_remove_grads``, ``average_tensor``,
    ``copy_grads_in_partition``, ``_clear_param_grad_only``.
    """
    size, limit = computed_width(setup.precision), model.hidden_size**2
    whole = kept_bytes(model, setup, rank)
    keys = {bytes_: deque(found) for bytes_, found in gradients.items()}
    bucket: list[tuple[int, list[tuple[int, int]]]] = []
    inside, is_kept = 0, False

    def freed(count: int) -> Iterator[Request]:
        """Equal tensors of a layer take turns; the newest of a key is the lowest layer's."""
        found = keys.get(allocated(size * count))
        if found:
            yield Request(GIVE, found[0])
            found.rotate(-1)

    def sent() -> Iterator[Request]:
        nonlocal is_kept
        for together in _flattened((piece for _, pieces in bucket for piece in pieces), limit):
            yield Request(TAKE, copy, allocated(size * together))
            yield Request(GIVE, copy)
        for count, pieces in bucket:
            if any(owner == rank for owner, _ in pieces):
                if not is_kept:
                    yield Request(TAKE, kept, whole)
                    is_kept = True
                if count > limit:
                    yield from freed(count)
        bucket.clear()

    for group in groups(model, setup.adapters, setup.mesh.num_gpus):
        start = 0
        for at, count in enumerate(group.sizes):
            if inside + count > limit:
                yield from sent()
                inside = 0
            if count <= limit:
                yield from freed(count)
            inside += count
            bucket.append((count, group.slices(at, start)))
            start += count
    yield from sent()
    for found in keys.values():
        yield from (Request(GIVE_ALL, key) for key in found)


def _flattened(slices: Iterable[tuple[int, int]], limit: int) -> Iterator[int]:
    """Elements that are copied for a reduction: slices of different ranks, until they exceed the bucket.

    Source: ``average_tensor``, ``allreduce_and_scatter`` and ``allreduce_bucket``; a single slice is not copied.

    >>> list(_flattened([(0, 3), (0, 2), (1, 4)], 10))
    [9]
    >>> list(_flattened([(0, 20), (1, 4)], 10))
    []
    """
    merged: list[tuple[int, int]] = []
    for rank, count in slices:
        before = merged.pop()[1] if merged and merged[-1][0] == rank else 0
        merged.append((rank, before + count))
    waiting: list[int] = []
    for _, count in merged:
        waiting.append(count)
        if sum(waiting) > limit:
            if len(waiting) > 1:
                yield sum(waiting)
            waiting.clear()
    if len(waiting) > 1:
        yield sum(waiting)


def kept_bytes(model: Model, setup: TrainingSetup, rank: int) -> int:
    """Bytes of the gradients that a rank keeps.

    Source: ``copy_grads_in_partition``.
    """
    kept = kept_gradients(model, setup.adapters, setup.mesh.num_gpus)[rank]
    return allocated(computed_width(setup.precision) * kept)


def stepped(
    model: Model, setup: TrainingSetup, rank: int, temporary: int, new_keys: NewKeys
) -> Iterator[Request]:
    """The optimizer's step: a float64 copy of each gradient for its norm, then the partition's flat gradient in 16 bits
    and in float32, and the states, which the first step makes.

    Source: ``get_grad_norm_direct``, ``step``.
    """
    found = groups(model, setup.adapters, setup.mesh.num_gpus)
    for group in found:
        start = 0
        for at, count in enumerate(group.sizes):
            for owner, piece in group.slices(at, start):
                if owner == rank:
                    yield Request(TAKE, temporary, allocated(NORM_WIDTH * piece))
                    yield Request(GIVE, temporary)
            start += count
    for group in found:
        yield from _updated(group.part, setup.precision, setup.optimisation, temporary, new_keys)


def _updated(
    part: int, precision: Precision, optimisation: Optimisation, temporary: int, new_keys: NewKeys
) -> Iterator[Request]:
    """One flat tensor of so many elements is updated."""
    size = computed_width(precision)
    if size != FLOAT32_BYTES:
        yield Request(TAKE, temporary, allocated(size * part))
    gradient = new_keys(1)
    yield Request(TAKE, gradient, allocated(FLOAT32_BYTES * part))
    yield Request(GIVE_ALL, temporary)
    flat = Trainable((part,), FLOAT32_BYTES, 1)
    states = state_tensors(flat, optimisation.optim, optimisation.optim_state_dtype)
    key = new_keys(len(states))
    for at, state in enumerate(states):
        if state:
            yield Request(TAKE_ONCE, key + at, state)
    if beside := step_transient([flat], optimisation.optim, optimisation.optim_state_dtype):
        yield Request(TAKE, temporary, allocated(beside))
        yield Request(GIVE, temporary)
    yield Request(GIVE, gradient)


def sharded(
    model: Model,
    setup: TrainingSetup,
    frozen: Iterable[Request],
    wholes: Iterable[int],
    held: int,
    new_keys: NewKeys,
) -> Iterator[Request]:
    """Stage 3 makes every weight whole, copies its part, and frees it; the trained parts become one tensor.

    ``frozen``: the requests of weights that are not trained; ``wholes``: bytes of the trained ones. Each is gathered to
    be filled with what the files have.

    Meanwhile the trained parts are on the host. A float32 copy of each sub-group is made of another one; both float32
    gradients exist once, to be freed. Every trained weight is gathered once more for its hook.

    Source: partition_parameters.py, ``_post_init_method``; stage3.py, ``_create_fp16_partitions_with_defragmentation``,
    ``_create_fp32_partitions``, ``initialize_optimizer_states``, ``_setup_for_real_optimizer``,
    ``create_reduce_and_remove_grad_hooks``.
    """
    size, ranks = computed_width(setup.precision), setup.mesh.num_gpus
    yield from frozen
    temporary, first = new_keys(1), new_keys(1)
    wholes = list(wholes)
    for whole in wholes:
        yield Request(TAKE, temporary, whole)
        yield Request(TAKE, first, allocated(ceil_div(whole, ranks)))
        yield Request(GIVE, temporary)
    for whole in wholes:
        yield Request(TAKE, temporary, whole)
        yield Request(GIVE, temporary)
    yield Request(GIVE_ALL, first)
    yield Request(EMPTY, 0)
    found = sub_groups(model, setup.adapters, setup.mesh)
    flat = allocated(size * sum(found))
    yield Request(TAKE, held, flat)
    for part in found:
        yield Request(TAKE, temporary, allocated(FLOAT32_BYTES * part))
        yield Request(TAKE, held, allocated(FLOAT32_BYTES * part))
        yield Request(GIVE, temporary)
    yield Request(TAKE, temporary, allocated(FLOAT32_BYTES * max(found)))
    yield Request(GIVE, temporary)
    yield Request(TAKE, held, allocated(size * model.hidden_size**2))
    yield Request(TAKE, held, flat)
    for whole in wholes:
        yield Request(TAKE, temporary, whole)
        yield Request(GIVE, temporary)


def stepped_in_groups(
    model: Model, setup: TrainingSetup, temporary: int, new_keys: NewKeys
) -> Iterator[Request]:
    """The optimizer's step at stage 3, as ``stepped``.

    Source: stage3.py, ``get_grad_norm_direct``, ``_prepare_fp32_grad_for_sub_group``, ``step``.
    """
    for group in groups(model, setup.adapters, setup.mesh.num_gpus):
        for count in group.sizes:
            part = min(ceil_div(count, setup.mesh.num_gpus), NORM_PART)
            yield Request(TAKE, temporary, allocated(NORM_WIDTH * part))
            yield Request(GIVE, temporary)
    for part in sub_groups(model, setup.adapters, setup.mesh):
        yield from _updated(part, setup.precision, setup.optimisation, temporary, new_keys)


def by_size(found: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Keys by their bytes, the last one first: of pairs of a key and its bytes, in the order of backward."""
    keys: dict[int, list[int]] = defaultdict(list)
    for key, size in found:
        if key not in keys[size]:
            keys[size].insert(0, key)
    return keys
