"""How a model comes to the GPU under FSDP 2: each group arrives whole, its shards are copied out, and it is freed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from estimator.families.modules import Embedding, Module, weight_shapes
from estimator.families.vision_family import sees
from estimator.families.weights import elements
from estimator.parallel.parameter_order import modules_in_order
from estimator.parallel.sharding import (
    EMBEDDING,
    ROOT,
    TAIL,
    TrainedTensor,
    fsdp_groups,
    member_width,
    sharded_tensors,
    shard_shape,
    trained_parts,
)
from estimator.resident.optimizer import Trainable
from estimator.step.blocks import GIVE, GIVE_ALL, TAKE, Request
from estimator.values.arithmetic import allocated
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Offload


def wraps_in_groups(model: Model, setup: TrainingSetup) -> bool:
    """Whether the order in which FSDP 2 shards a model is known: not with packed weights, a tower, or under verl.

    Source: derived, as ``wrapped``.
    """
    return (
        setup.strategy.is_fsdp
        and not setup.uses_fsdp1
        and not setup.has_packed_base
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
    stays = setup.offload_param is Offload.NONE

    def group(key: int, modules: Iterable[Module]) -> Iterator[Request]:
        tensors = [it for module in modules for it in _tensors(module, setup)]
        for it in tensors:
            yield Request(TAKE, key, allocated(elements(it.shape) * it.width))
        for it in tensors:
            shard = allocated(elements(shard_shape(it.shape, setup.shard_ranks)) * it.width)
            if stays:
                yield Request(TAKE, held, shard)
            else:
                yield Request(TAKE, key, shard)
                yield Request(GIVE, key)

    whole = new_keys(1)
    layers = [it for it in modules_in_order(model) if it.at is not None]
    for _, of_layer in groupby(layers, key=lambda it: it.at):
        yield from group(whole, [it.module for it in of_layer])
        yield Request(GIVE_ALL, whole)
    for modules in _outside(model, setup):
        yield from group(whole, modules)
    yield Request(GIVE_ALL, whole)


def _outside(model: Model, setup: TrainingSetup) -> list[Sequence[Module]]:
    groups = {it.name: it.modules for it in fsdp_groups(model, setup.adapters)}
    return [groups[name] for name in (EMBEDDING, TAIL, ROOT)]


def _tensors(module: Module, setup: TrainingSetup) -> list[TrainedTensor]:
    """A module's weights, then its adapters and its copy."""
    width = member_width(setup, is_adapter=False, part=module.part)
    own = [TrainedTensor(shape, width) for shape in weight_shapes(module)]
    return [*own, *trained_parts(module, setup)] if setup.uses_adapters else own


def stepped_shards(model: Model, setup: TrainingSetup) -> list[Trainable]:
    """The shards that the optimizer steps, in the order of the model's classes; elements and bytes per element.

    In the order of their groups where that is not known.

    Source: as ``sharded_tensors`` and ``modules_in_order``.
    """
    grouped = [
        it._replace(alike=1) for it in sharded_tensors(model, setup) for _ in range(it.alike)
    ]
    outside = {module for modules in _outside(model, setup) for module in modules}
    ordered = [
        Trainable(
            shard_shape(part.shape, setup.shard_ranks),
            part.width,
            1,
            isinstance(it.module, Embedding),
        )
        for it in modules_in_order(model)
        if it.at is not None or it.module in outside
        for part in trained_parts(it.module, setup)
    ]
    return ordered if _sizes(ordered) == _sizes(grouped) else grouped


def _sizes(tensors: Iterable[Trainable]) -> list[tuple[tuple[int, ...], int]]:
    return sorted((it.shape, it.width) for it in tensors)
