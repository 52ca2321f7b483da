"""What loading a model asks PyTorch's allocator for: weights as they arrive, adapters, what stays beside them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

from estimator.families.adapters import is_quantized, is_trained_whole
from estimator.families.loaded import made_modules
from estimator.families.model_tree import Located, modules_as_loaded, modules_in_order, tied_head
from estimator.families.modules import Module, weight_shapes
from estimator.families.packed import FLOAT32_BYTES, NESTED_BLOCK, QUANTIZATION_BLOCK, packed_bytes
from estimator.families.weights import weight_width
from estimator.parallel.computed import computed_width
from estimator.parallel.placements import (
    Shard,
    gradient_bytes,
    idle_tensors,
    module_adapters,
    module_bytes,
    trainable_tensors,
    trained,
)
from estimator.parallel.strategies import stepped_in_order
from estimator.parallel.tensors import (
    ModelTensor,
    Shape,
    model_tensors,
    module_tensors,
    trained_in_order,
)
from estimator.parallel.zero import STAGE_3, part_bytes
from estimator.parallel.zero_partitions import SUB_GROUP
from estimator.resident.model import Resident
from estimator.resident.optimizer import Trainable
from estimator.step.blocks import (
    EMPTY,
    GIVE,
    GIVE_ALL,
    TAKE,
    Request,
)
from estimator.step.ddp_requests import IN_FLIGHT, buckets, made_equal
from estimator.step.request_keys import BUCKETS, HELD, OLD, OLD_ROOT, WARM_UP, Keys
from estimator.step.wrapping import (
    Shards,
    flattened,
    stepped_pieces,
    stepped_shards,
    wrapped,
    wraps_in_groups,
)
from estimator.step.zero_requests import (
    flat_weights,
    has_partitions,
    has_shards,
    sharded,
)
from estimator.values.arithmetic import allocated, ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.objective import Task
from estimator.values.facets.precision import Precision
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

STATES = 2
"""Flat states of DeepSpeed's optimizer."""


def load_requests(
    keys: Keys,
    model: Model,
    same: TrainingSetup,
    resident: Resident,
    *,
    on_host: bool,
) -> list[Request]:
    """Weights, adapters and what stays beside them."""
    own = _own_modules(model)
    if has_partitions(same.mesh):
        load = [*_partitioned(keys, own, model, same, resident, on_host=on_host)]
    elif has_shards(same.mesh):
        load = [*_sharded(keys, own, model, same, resident)]
    elif same.mesh.loads_divided:
        load = [*_divided(model, same, resident)]
    elif wraps_in_groups(model, same):
        load = [*_wrapped(keys, model, same, resident)]
    elif same.mesh.uses_fsdp1 and same.adapters.has_packed_base:
        load = [*_packed_units(keys, model, same, resident)]
    elif _knows_each(model, same):
        load = [*_one_after_another(keys, model, same, resident)]
    else:
        load = [*_unordered(model, same.adapters, same.mesh, resident)]
    load += _reference(own, same, resident.reference)
    if not same.mesh.strategy.shards_states:
        load.append(Request(EMPTY, HELD))  # Trainer empties the cache before it trains
    load += _pieces(resident.engine, 1)
    load += _of_strategy(keys, model, same, resident)
    return load


def trained_groups(model: Model, same: TrainingSetup) -> Sequence[Sequence[Trainable]]:
    """The trained tensors by the optimizer's groups."""
    if _knows_each(model, same):
        groups = stepped_in_order(model, same)
        if sum(map(gradient_bytes, groups)) == gradient_bytes(trainable_tensors(model, same)):
            return groups
    return [_trained(model, same)]


def _knows_each(model: Model, same: TrainingSetup) -> bool:
    """Whether a rank holds whole modules, and the order has each of them."""
    counted = made_modules(model, same.adapters)
    return not same.mesh.strategy.shards_states and sum(
        count * module_bytes(module, same) for module, count in counted
    ) == sum(module_bytes(module, same) for module in _own_modules(model))


def _own_modules(model: Model) -> list[Module]:
    """The modules in their order, without a tied head."""
    tied = tied_head(model)
    return [located.module for located in modules_in_order(model) if located.module not in tied]


def _one_after_another(
    keys: Keys, model: Model, same: TrainingSetup, resident: Resident
) -> Iterator[Request]:
    """Whole modules in their order, with the adapters that they have got on the CPU; or packed, and given them then.

    Leaves out: ``from_pretrained`` onto the GPU without packing, after which adapters are made there. Played, such runs
    of 5 to 9 GB need 0.1 to 0.2 % less, and one of 1.9 GB 6 % more.
    """
    own, modules = _own_modules(model), [located.module for located in modules_in_order(model)]
    cast_back: Sequence[Request] = ()
    if same.adapters.has_packed_base:
        yield from _warmed_up(own, same.adapters, same.precision)
        cast_back = yield from _packed(keys, model, same)
    else:
        for module in own:
            yield from (Request(TAKE, HELD, size) for size in _sizes(module, same))
            yield from _held(module_adapters(module, same))
    yield from _pieces(resident.weights - sum(module_bytes(module, same) for module in own), 1)
    if same.adapters.has_packed_base:
        yield from _adapters(keys, modules, same)
    yield from cast_back
    tensors = [tensor for module in modules for tensor in module_adapters(module, same)]
    yield from _pieces(resident.adapters - sum(tensor.bytes for tensor in tensors), 1)


def _unordered(
    model: Model, adapters: Adapters, mesh: Mesh, resident: Resident
) -> Iterator[Request]:
    """Equal pieces, as many as there are weights, or units of FSDP 1."""
    pieces = sum(
        count * len(weight_shapes(module)) for module, count in made_modules(model, adapters)
    )
    if mesh.uses_fsdp1:
        pieces = model.num_hidden_layers + 1
    return _pieces(resident.weights + resident.adapters, pieces)


def _of_strategy(
    keys: Keys, model: Model, same: TrainingSetup, resident: Resident
) -> Iterator[Request]:
    """Buckets of DDP, or what another strategy communicates from, and DeepSpeed's flat states."""
    divides = has_partitions(same.mesh) or has_shards(same.mesh)
    if same.mesh.strategy.averages_in_buckets:
        yield from made_equal(model, same, keys.new(IN_FLIGHT + 1))
        first_buckets, _ = buckets(in_module_order(model, same), same)
        yield from (Request(TAKE, BUCKETS, allocated(size)) for size in first_buckets)
    elif not has_shards(same.mesh):
        yield from _pieces(resident.communication, 1)
    if same.mesh.strategy.is_zero and not divides:
        yield from _flat_states(keys, resident, same.mesh)


def _held_bytes(load: Iterable[Request]) -> int:
    return sum(request.size for request in load if request.key == HELD)


def _wrapped(
    keys: Keys, model: Model, same: TrainingSetup, resident: Resident
) -> Iterator[Request]:
    """Weights that FSDP cuts group by group, or unit by unit."""
    if same.mesh.uses_fsdp1:
        load = [*flattened(model, same, Shards(HELD, OLD, OLD_ROOT), keys.new)]
    else:
        load = [*wrapped(model, same, HELD, keys.new)]
    yield from load
    yield from _pieces(resident.weights + resident.adapters - _held_bytes(load), 1)


def _packed_units(
    keys: Keys, model: Model, same: TrainingSetup, resident: Resident
) -> Iterator[Request]:
    """A packed model arrives whole, as each weight is packed on the GPU; then FSDP 1 cuts it layer by layer.

    Source: bitsandbytes 0.50, nn/modules.py, ``Params4bit._quantize``; torch 2.13, distributed/fsdp/_flat_param.py,
    ``shard``.
    """
    count = model.num_hidden_layers + 1
    whole = sum(
        times * module_bytes(module, same) for module, times in made_modules(model, same.adapters)
    )
    first, flat = keys.new(count), keys.new(1)
    for unit in range(count):
        yield Request(TAKE, first + unit, allocated(ceil_div(whole, count)))
    for unit, shard in enumerate(_pieces(resident.weights + resident.adapters, count)):
        yield Request(TAKE, flat, allocated(ceil_div(whole, count)))
        yield shard
        yield Request(GIVE, flat)
        yield Request(GIVE, first + unit)


def _sharded(
    keys: Keys, modules: Iterable[Module], model: Model, same: TrainingSetup, resident: Resident
) -> Iterator[Request]:
    """Weights of stage 3: each is made whole and cut. Those that stay whole, and what else there is, come last."""
    size, key = computed_width(same.precision), keys.new(1)
    frozen: list[Request] = []
    again: list[Request] = []
    for module in modules:
        if is_quantized(module, same.adapters):
            packed = [*_packed_weight(keys, model, module, same)]
            frozen += (
                request._replace(key=key) if request.key == HELD else request for request in packed
            )
            tensors = module_tensors(module, same.adapters)
            stays = (part_bytes(tensor, same, 0) for tensor in tensors if tensor.packed_width)
            frozen += (Request(TAKE, HELD, allocated(sum(stays))), Request(GIVE_ALL, key))
        elif same.adapters.uses_adapters or not is_trained_whole(module, same.adapters):
            for shape in weight_shapes(module):
                whole, part = elements(shape), ceil_div(elements(shape), same.mesh.num_gpus)
                arrives = [Request(TAKE, key, allocated(size * whole)), Request(GIVE, key)]
                frozen += (arrives[0], Request(TAKE, HELD, allocated(size * part)), arrives[1])
                again += arrives
    wholes = [
        allocated(STAGE_3.width(trained.tensor, same) * trained.tensor.numel)
        for trained in trained_in_order(model, same.adapters)
    ]
    sharded_ = [*sharded(model, same, [*frozen, *again], wholes, HELD, keys.new)]
    yield from sharded_
    expected = resident.weights + resident.states.resident_bytes // (1 + STATES)
    expected += resident.accumulated + resident.communication
    unpacked = [one for one in model_tensors(model, same.adapters) if not one.packed_width]
    small = sum(one.alike for one in unpacked if one.numel <= 10 * model.hidden_size)
    yield from _pieces(expected - _held_bytes(sharded_), max(1, small))


def _partitioned(
    keys: Keys,
    modules: Iterable[Module],
    model: Model,
    same: TrainingSetup,
    resident: Resident,
    *,
    on_host: bool,
) -> Iterator[Request]:
    """Weights of stages 1 and 2: those that are not trained arrive one by one and stay, the others become flat."""
    size = computed_width(same.precision)
    stays: list[Request] = []
    for module in modules:
        if is_quantized(module, same.adapters):
            stays += _packed_weight(keys, model, module, same)
        elif same.adapters.uses_adapters or not is_trained_whole(module, same.adapters):
            stays += (
                Request(TAKE, HELD, allocated(size * elements(shape)))
                for shape in weight_shapes(module)
            )
    yield from stays
    flat = [*flat_weights(model, same, HELD, keys.new, on_host=on_host)]
    yield from flat
    expected = resident.weights + resident.states.resident_bytes // (1 + STATES)
    yield from _pieces(expected - _held_bytes([*stays, *flat]), 1)


def _packed_weight(
    keys: Keys, model: Model, module: Module, same: TrainingSetup
) -> Iterator[Request]:
    """A weight that is packed as it arrives, after its bias."""
    yield from (Request(TAKE, HELD, size) for size in _sizes(module, same)[1:])
    yield from _quantized(keys, module, same, packs=model.quantization is None)


def in_module_order(model: Model, same: TrainingSetup) -> list[Trainable]:
    """What DDP reduces: the trained tensors in the order of their modules, then those without a gradient."""
    tied = tied_head(model)
    reduced = [
        tensor
        for located in modules_in_order(model)
        if same.adapters.uses_adapters or located.module not in tied
        for tensor in trained(_without_copy(located.module, same.adapters), same)
    ]
    if gradient_bytes(reduced) != gradient_bytes(trainable_tensors(model, same)):
        reduced = _trained(model, same)
    return [*reduced, *_one_by_one(idle_tensors(model, same))]


def _without_copy(module: Module, adapters: Adapters) -> Iterator[ModelTensor]:
    return (tensor for tensor in module_tensors(module, adapters) if not tensor.is_copy)


def _trained(model: Model, same: TrainingSetup) -> list[Trainable]:
    """The trained tensors of a rank, in the order of their kinds."""
    if same.mesh.strategy.is_fsdp:
        return (stepped_pieces if same.mesh.uses_fsdp1 else stepped_shards)(model, same)
    return _one_by_one(trainable_tensors(model, same))


def _one_by_one(tensors: Iterable[Trainable]) -> list[Trainable]:
    return [tensor._replace(alike=1) for tensor in tensors for _ in range(tensor.alike)]


def _pieces(total: int, count: int) -> Iterator[Request]:
    """Bytes that stay, in ``count`` equal tensors."""
    if total > 0:
        yield from (Request(TAKE, HELD, allocated(ceil_div(total, count))) for _ in range(count))


def _warmed_up(
    modules: Iterable[Module], adapters: Adapters, precision: Precision, ranks: int = 1
) -> Iterator[Request]:
    """One block of all weights as they stay, without scales, freed before the first one arrives.

    Its segment is cut up for the weights, so it is never given back. A model that is packed, or divided among ranks, is
    loaded to the GPU. On a card with little more memory ``play`` makes it smaller.

    Source: transformers 5.23, modeling_utils.py, ``caching_allocator_warmup``, ``get_total_byte_count``;
    quantizers/quantizer_bnb_4bit.py, ``param_element_size``.
    """
    total = 0
    for module in modules:
        weight, *rest = [*map(elements, _shapes(module, ranks))] or [0]
        if is_quantized(module, adapters):
            total += weight if adapters.has_8bit_base else packed_bytes(weight)
        else:
            total += weight * precision.dtype.bytes
        total += sum(rest) * precision.dtype.bytes
    yield Request(TAKE, WARM_UP, allocated(total))
    yield Request(GIVE, WARM_UP)


def _divided(model: Model, same: TrainingSetup, resident: Resident) -> Iterator[Request]:
    """A rank's shards of its parts, by name; a bias comes before its weight.

    Source: transformers 5.23, core_model_loading.py, ``convert_and_load_state_dict_in_model``, and
    distributed/sharding_utils.py, ``shard_tensor``: what a rank has of a tensor is cut on the CPU.
    """
    load = [*_warmed_up(_own_modules(model), same.adapters, same.precision, _ranks(same.mesh))]
    for located in modules_as_loaded(model):
        load += (Request(TAKE, HELD, size) for size in _sizes(located.module, same)[::-1])
    yield from load
    yield from _pieces(resident.weights - _held_bytes(load), 1)


def _ranks(mesh: Mesh) -> int:
    """Ranks over which weights are sharded as they are loaded."""
    return mesh.shard_ranks if mesh.loads_divided else 1


def _shapes(module: Module, ranks: int) -> list[Shape]:
    """Of a module's weights as they are loaded, in elements: whole, or a rank's shards."""
    return [Shard(ranks).of(shape) for shape in weight_shapes(module)]


def _sizes(module: Module, same: TrainingSetup) -> list[int]:
    width = weight_width(module, same)
    return [allocated(elements(shape) * width) for shape in _shapes(module, _ranks(same.mesh))]


def _packed(
    keys: Keys, model: Model, same: TrainingSetup
) -> Generator[Request, None, Sequence[Request]]:
    """Weights arrive by name, each packed at once where it is to be; then what PEFT prepares is upcast.

    A bias comes before its weight. The cache is emptied after the upcasts. Returns what comes after the adapters:
    ORPO's trainer casts some of what was upcast back.

    Source: transformers 5.23, core_model_loading.py, ``convert_and_load_state_dict_in_model``; peft 0.21,
    utils/other.py, ``prepare_model_for_kbit_training``; trl 1.16, experimental/utils.py,
    ``peft_module_casting_to_bf16``.
    """
    upcasts = same.adapters.prepare_model_for_kbit_training
    narrow: dict[Located, list[tuple[int, int, int]]] = {}
    for located in modules_as_loaded(model):
        module = located.module
        sizes = _sizes(module, same)
        if is_quantized(module, same.adapters):
            yield from (Request(TAKE, HELD, size) for size in sizes[1:])
            yield from _quantized(keys, module, same, packs=model.quantization is None)
            continue
        loaded = same.precision.dtype.bytes if upcasts else weight_width(module, same)
        shapes = weight_shapes(module)
        for shape, size in zip(shapes[::-1], sizes[::-1], strict=True):
            arrived, whole = (allocated(elements(shape) * of) for of in (loaded, FLOAT32_BYTES))
            if arrived == (whole if upcasts else size):
                yield Request(TAKE, HELD, size)
            else:
                key = keys.new(1)
                yield Request(TAKE, key, arrived)
                narrow.setdefault(located, []).insert(0, (key, whole, size))
    cast_back = list[Request]()
    if upcasts:
        for located in modules_in_order(model):
            for key, whole, size in narrow.get(located, ()):
                wide = HELD if whole == size else keys.new(1)
                yield Request(TAKE, wide, whole)
                yield Request(GIVE, key)
                if wide != HELD:
                    cast_back += (Request(TAKE, HELD, size), Request(GIVE, wide))
        yield Request(EMPTY, HELD)
    return cast_back


def _quantized(
    keys: Keys, module: Module, same: TrainingSetup, *, packs: bool
) -> Iterator[Request]:
    """A weight that stays packed; ``packs``: it arrives in 16 bits, and what it is packed from is freed.

    Source: bitsandbytes 0.50, functional.py, ``quantize_4bit``, nn/modules.py, ``Int8Params._quantize``.
    """
    count = elements(weight_shapes(module)[0])
    packed = module_bytes(module, same) - sum(_sizes(module, same)[1:])
    arrived, key = allocated(count * same.precision.dtype.bytes), keys.new(1)
    if same.adapters.has_8bit_base:
        made = [arrived]  # contiguous, in float16
        stays = [packed - allocated(count), allocated(count)]
    else:
        blocks = ceil_div(count, QUANTIZATION_BLOCK)
        codes, scales = allocated(packed_bytes(count)), allocated(FLOAT32_BYTES * blocks)
        made = []
        stays = [scales, codes, packed - codes - scales]
        if same.adapters.bnb_4bit_use_double_quant:
            nested = allocated(FLOAT32_BYTES * ceil_div(blocks, NESTED_BLOCK))
            rest = packed - codes - allocated(blocks) - nested
            made, stays = [scales, scales], [codes, nested, allocated(blocks), rest]
    if packs:
        yield from (Request(TAKE, key, size) for size in [arrived, *made[:1]])
    yield from (Request(TAKE, HELD, size) for size in stays[:1])
    if packs:
        yield from (Request(TAKE, key, size) for size in made[1:])  # the scales less their mean
    yield from (Request(TAKE, HELD, size) for size in stays[1:] if size > 0)
    yield Request(GIVE_ALL, key)


def _reference(modules: Sequence[Module], same: TrainingSetup, total: int) -> Iterator[Request]:
    """A second model of the same weights, in the order of its modules, or in as many pieces where it is another."""
    sizes = [size for module in modules for size in _sizes(module, same)]
    if sum(sizes) == total:
        yield from (Request(TAKE, HELD, size) for size in sizes)
    else:
        yield from _pieces(total, len(modules))


def _held(tensors: Iterable[Trainable]) -> Iterator[Request]:
    yield from (Request(TAKE, HELD, tensor.bytes) for tensor in tensors)


def _adapters(keys: Keys, modules: Iterable[Module], same: TrainingSetup) -> Iterator[Request]:
    """Adapters beside a packed base: made in float32 on the CPU, cast to their weight's dtype, in the end to float32.

    TRL casts them to bfloat16 in the end. 4-bit weights count as 16 bits, and 8-bit weights do not count.

    Source: peft 0.21, tuners/lora/layer.py, ``update_layer``; tuners/tuners_utils.py,
    ``_move_adapter_to_device_of_base_layer``, ``cast_adapter_dtype``; trl 1.16, trainer/sft_trainer.py
    (``_is_quantized_model``).
    """
    in_the_end: list[tuple[int, int, int]] = []
    recasts = _is_trls(same.task)
    for module in modules:
        is_8bit = same.adapters.has_8bit_base and is_quantized(module, same.adapters)
        is_cast = same.precision.dtype.bytes < FLOAT32_BYTES and not is_8bit
        for tensor in module_adapters(module, same):
            size = allocated(FLOAT32_BYTES * elements(tensor.shape))
            stays = tensor.bytes if recasts or not is_cast else size
            if is_cast and tensor.width == same.precision.dtype.bytes and not recasts:
                yield Request(TAKE, HELD, tensor.bytes)
            elif is_cast:
                own = keys.new(1)
                yield Request(
                    TAKE, own, allocated(same.precision.dtype.bytes * elements(tensor.shape))
                )
                in_the_end.append((own, size, stays))
            elif tensor.bytes == size:
                yield Request(TAKE, HELD, size)
            else:
                own = keys.new(1)
                yield Request(TAKE, own, size)
                in_the_end.append((own, 0, stays))
    wide: list[tuple[int, int]] = []
    for own, size, stays in in_the_end:
        if not size or size == stays:
            wide.append((own, stays))
        else:
            wide.append((keys.new(1), stays))
            yield Request(TAKE, wide[-1][0], size)
            yield Request(GIVE, own)
    for own, stays in wide:
        yield Request(TAKE, HELD, stays)
        yield Request(GIVE, own)


def _is_trls(task: Task) -> bool:
    """Whether one of TRL's trainers trains."""
    if task.objective.is_causal_lm:
        return task.given_loss.tiles_logits
    return bool(task.objective.trl)


def _flat_states(keys: Keys, resident: Resident, mesh: Mesh) -> Iterator[Request]:
    """DeepSpeed's flat states and float32 master weights, before the first step.

    DeepSpeed steps its optimizer once with zero gradients. Stage 3 splits the states into sub-groups. A float32
    gradient of the largest group is allocated meanwhile.
    Source: DeepSpeed 0.19.6, runtime/zero/stage3.py and stage_1_and_2.py, ``initialize_optimizer_states``.
    """
    part, groups = ceil_div(resident.trainable_parameters, mesh.num_gpus), 1
    if mesh.strategy.gathers_modules:
        groups = ceil_div(part, SUB_GROUP)
    yield from _pieces(resident.states.resident_bytes // (1 + STATES), groups)
    yield from _pieces(resident.accumulated, 1)
    key = keys.new(1)
    yield Request(TAKE, key, allocated(FLOAT32_BYTES * ceil_div(part, groups)))
    yield from _pieces(resident.states.resident_bytes * STATES // (1 + STATES), STATES * groups)
    yield Request(GIVE, key)
