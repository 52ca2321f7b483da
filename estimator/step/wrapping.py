"""How a model comes to the GPU under FSDP: each group arrives whole, its shards are copied out, and it is freed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from estimator.families.model_tree import modules_in_order, tied_head
from estimator.families.modules import Module
from estimator.families.packed import FLOAT32_BYTES
from estimator.families.vision_family import sees
from estimator.families.weights import buffer_bytes
from estimator.parallel.fsdp1 import FlatParameter, units
from estimator.parallel.placements import gradient_bytes
from estimator.parallel.sharding import (
    EMBEDDING,
    ROOT,
    SHARDED,
    TAIL,
    fsdp_groups,
    sharded_tensors,
    sharded_width,
)
from estimator.parallel.tensors import ModelTensor, module_tensors
from estimator.resident.optimizer import Trainable
from estimator.step.blocks import GIVE, GIVE_ALL, TAKE, Request
from estimator.values.arithmetic import allocated, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Offload

BROADCAST_BUCKET = 250 * 2**20
"""Bytes of a bucket: torch 2.13, distributed/fsdp/_init_utils.py, ``PARAM_BROADCAST_BUCKET_SIZE``."""
BROADCASTS = 2
"""Buckets in flight: torch 2.13, csrc/distributed/c10d/comm.cpp, ``broadcast_coalesced``."""


def wraps_in_groups(model: Model, setup: TrainingSetup) -> bool:
    """Whether the order in which FSDP shards a model is known: not with packed weights, a tower, or under verl.

    Source: derived, as ``wrapped``.
    """
    return (
        setup.mesh.strategy.is_fsdp
        and not setup.adapters.has_packed_base
        and not setup.reduces_every_micro_step
        and not sees(model, setup.adapters)
    )


def wrapped(
    model: Model, setup: TrainingSetup, held: int, new_keys: Callable[[int], int]
) -> Iterator[Request]:
    """Requests of loading, in bytes per GPU; shards have the key ``held``.

    The tensors of a group arrive in the dtype of their shards, then each is cut. The old tensors of a layer are freed
    before the next layer arrives. Those of the embedding and the head live until the whole model is wrapped.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_init.py, ``_move_states_to_device``, and _fsdp_param.py,
    ``_init_sharded_param``; accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model`` (without
    ``cpu_ram_efficient_loading``, Trainer's default).
    """
    stays = setup.mesh.offload_param is Offload.NONE

    def group(key: int, modules: Iterable[Module]) -> Iterator[Request]:
        tensors = [tensor for module in modules for tensor in _own_first(module, setup.adapters)]
        for tensor in tensors:
            width = sharded_width(tensor, setup)
            yield Request(TAKE, key, allocated(elements(tensor.shape) * width))
        for tensor in tensors:
            shard = gradient_bytes([SHARDED.held(tensor, setup)])
            if stays:
                yield Request(TAKE, held, shard)
            else:
                yield Request(TAKE, key, shard)
                yield Request(GIVE, key)

    whole = new_keys(1)
    layers = [located for located in modules_in_order(model) if located.at is not None]
    for _, of_layer in groupby(layers, key=lambda located: located.at):
        yield from group(whole, [located.module for located in of_layer])
        yield Request(GIVE_ALL, whole)
    for modules in _outside(model, setup.adapters):
        yield from group(whole, modules)
    yield Request(GIVE_ALL, whole)


def _units(model: Model, setup: TrainingSetup) -> Iterator[list[FlatParameter]]:
    """A layer or the root, and the adapters in it; the layers in order, the root last."""
    tied = tied_head(model)
    untied = [located for located in modules_in_order(model) if located.module not in tied]
    outside = [located for located in untied if located.at is None]
    inside = (located for located in untied if located.at is not None)
    layers = groupby(inside, key=lambda located: located.at)
    for group in (*(list(of_layer) for _, of_layer in layers), outside):
        yield units([located.module for located in group], setup)


class Shards(NamedTuple):
    """Keys of shards."""

    held: int
    """Those that stay."""
    old: int
    """Those of layers before they are upcast, until they are freed for the first time."""
    old_root: int
    """The same of the root."""


def flattened(
    model: Model, setup: TrainingSetup, shards: Shards, new_keys: Callable[[int], int]
) -> Iterator[Request]:
    """Requests of loading under FSDP 1, in bytes per GPU.

    A unit's tensors arrive, are broadcast in buckets and copied into one flat tensor, of which the shard is cut; then
    what is trained is upcast. The first forward takes and frees every buffer once: for the cast shard, and for the
    whole unit in both dtypes.

    Source: torch 2.13, distributed/fsdp/_init_utils.py, ``_init_param_handle_from_module``, and _flat_param.py,
    ``flatten_tensors``, ``shard``, ``init_flat_param_attributes``; csrc/distributed/c10d/comm.cpp,
    ``broadcast_coalesced``; accelerate 1.15, accelerator.py, ``prepare_model``.
    """
    groups = [*_units(model, setup)]
    root, beside = groups[-1][0], buffer_bytes(model)
    whole = new_keys(2)
    flat = whole + 1
    for group in groups:
        for unit in reversed(group):
            loaded, shard = unit.loaded, unit.shard
            for size in unit.sizes:
                yield Request(TAKE, whole, allocated(size * loaded))
            buffers = [beside] if unit is root and loaded == FLOAT32_BYTES else []
            yield from _broadcast([*buffers, *(size * loaded for size in unit.sizes)], flat)
            yield Request(TAKE, flat, allocated(shard * unit.ranks * loaded))
            key = shards.held
            if loaded != unit.stored:
                key = shards.old_root if group is groups[-1] else shards.old
            yield Request(TAKE, key, allocated(shard * loaded))
            yield Request(GIVE_ALL, flat)
            yield Request(GIVE_ALL, whole)
    in_order = [unit for group in (groups[-1], *groups[:-1]) for unit in group]
    for unit in in_order:
        if unit.stored != unit.loaded:
            yield Request(TAKE, shards.held, unit.shard_bytes)
    for unit in in_order:
        shard, whole_shards = unit.shard, unit.shard * unit.ranks
        buffers = [whole_shards * unit.gathered]
        if unit.gathered != unit.stored:
            buffers = [shard * unit.gathered, *buffers, whole_shards * unit.stored]
        for size in buffers:
            yield Request(TAKE, flat, allocated(size))
            yield Request(GIVE, flat)


def _broadcast(sizes: Iterable[int], key: int) -> Iterator[Request]:
    """A unit's tensors are sent in buckets of which two are in flight; one tensor alone needs none."""
    buckets: list[list[int]] = [[]]
    for size in sizes:
        buckets[-1].append(size)
        if sum(buckets[-1]) >= BROADCAST_BUCKET:
            buckets.append([])
    in_flight = 0
    for bucket in buckets:
        if len(bucket) > 1:
            if in_flight == BROADCASTS:
                yield Request(GIVE, key)
                in_flight -= 1
            yield Request(TAKE, key, allocated(sum(bucket)))
            in_flight += 1
    yield Request(GIVE_ALL, key)


def stepped_pieces(model: Model, setup: TrainingSetup) -> list[Trainable]:
    """The pieces of tensors that FSDP 1's optimizer steps on the first rank; elements and bytes per element.

    Source: as ``FlatParameter.pieces``, layer by layer.
    """
    groups = [*_units(model, setup)]
    in_order = (unit for group in (groups[-1], *groups[:-1]) for unit in group)
    return [piece for unit in in_order if unit.trained for piece in unit.pieces]


def _outside(model: Model, adapters: Adapters) -> list[Sequence[Module]]:
    groups = {group.name: group.modules for group in fsdp_groups(model, adapters)}
    return [groups[name] for name in (EMBEDDING, TAIL, ROOT)]


def _own_first(module: Module, adapters: Adapters) -> list[ModelTensor]:
    """A module's weights, then its adapters and its copy."""
    return sorted(module_tensors(module, adapters), key=lambda tensor: tensor.is_added)


def stepped_shards(model: Model, setup: TrainingSetup) -> list[Trainable]:
    """The shards that the optimizer steps, in the order of the model's classes; elements and bytes per element.

    In the order of their groups where that is not known.

    Source: as ``sharded_tensors`` and ``modules_in_order``.
    """
    tensors = sharded_tensors(model, setup)
    grouped = [tensor._replace(alike=1) for tensor in tensors for _ in range(tensor.alike)]
    outside = {module for modules in _outside(model, setup.adapters) for module in modules}
    ordered = [
        SHARDED.held(tensor, setup)
        for located in modules_in_order(model)
        if located.at is not None or located.module in outside
        for tensor in module_tensors(located.module, setup.adapters)
        if tensor.trained
    ]
    return ordered if _sizes(ordered) == _sizes(grouped) else grouped


def _sizes(tensors: Iterable[Trainable]) -> list[tuple[tuple[int, ...], int]]:
    return sorted((tensor.shape, tensor.width) for tensor in tensors)
