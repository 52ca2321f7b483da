"""What each strategy shards: the tensors of one rank, in elements and bytes.

FSDP2 shards every tensor along its first axis. The last ranks may have fewer rows; storage and communication are
padded to the rows of the first rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from estimator.families.adapters import is_copied, is_quantized
from estimator.families.model_tree import (
    base_model_prefix,
    layer_groups,
    layer_modules,
    outer_modules,
    projector_modules,
    tied_head,
)
from estimator.families.modules import Embedding, Module, Norm, weight_shapes
from estimator.families.registry import family_of
from estimator.families.vision_family import sees
from estimator.families.weights import (
    FLOAT32_BYTES,
    adapter_tensors,
    adapter_width,
    copied_shapes,
    packed_bytes,
    scale_bytes,
    tensors_bytes,
    trained_shapes,
    unquantized_width,
)
from estimator.resident.optimizer import Trainable
from estimator.values.arithmetic import allocated, ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.refusals import Line, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, MixedPrecision, Model, Part

UINT8 = "uint8"
"""bitsandbytes' default dtype for packed 4-bit weights."""

Shape = tuple[int, ...]


def shard_shape(shape: Shape, ranks: int) -> Shape:
    """Elements per axis of the first rank's shard of a tensor, the largest: the first axis in ``ranks`` parts.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``_init_sharded_param`` (``_chunk_with_empty``).

    >>> shard_shape((10, 4), 4)
    (3, 4)
    """
    return (ceil_div(shape[0], ranks), *shape[1:])


def upcasts_trained(setup: TrainingSetup) -> bool:
    """Whether accelerate casts trained weights to float32 before FSDP shards them.

    It does so under mixed precision, unless the base is 4-bit; verl never does, nor transformers, which divides a model
    as it is loaded. Each gather then sends 16 bits per element.
    Source: accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model`` ("Upcast to fp32 master weights").
    """
    if setup.reduces_every_micro_step or setup.mesh.loads_divided:
        return False
    mixed = setup.precision.mixed_precision is not MixedPrecision.NO
    return setup.mesh.strategy.is_fsdp and mixed and not setup.adapters.has_4bit_base


class ShardGroup(NamedTuple):
    """Modules that FSDP2 gathers and reduces together, and the number of identical groups."""

    name: str
    modules: tuple[Module, ...]
    alike: int = 1


EMBEDDING, TAIL, ROOT, LAYER, TOWER = "embedding", "tail", "root", "layer", "tower"


def joins_norm(model: Model, adapters: Adapters) -> bool:
    """Whether the final norm is gathered with the head; otherwise it belongs to the root.

    Source: accelerate 1.15, utils/fsdp_utils.py, ``_find_final_norm``: a child of the base model with Norm in its
    class name, which PEFT's ``ModulesToSaveWrapper`` does not have, and which a model with a tower has only below its
    text model; peft 0.21, tuners/lora/model.py.
    """
    if sees(model, adapters) or not family_of(model).finds_final_norm:
        return False
    if not adapters.uses_adapters:
        return True
    # PEFT's "model" is the causal model that it wraps, which has no norm among its children
    found = base_model_prefix(model) != "model"
    return found and not any(is_copied(norm, adapters) for norm in final_norms(model))


def final_norms(model: Model) -> list[Norm]:
    """The norm before the head, if there is one.

    Source: derived, from ``outer_modules``; BLOOM has another after its embedding.
    """
    return [
        module
        for module in outer_modules(model)
        if isinstance(module, Norm) and module.name != "word_embeddings_layernorm"
    ]


def fsdp_groups(model: Model, adapters: Adapters) -> tuple[ShardGroup, ...]:
    """The groups that accelerate makes: the embedding, the final norm with the head, the root, and each layer.

    A tied embedding is in the head's group. A module that PEFT copied counts twice, as original and copy. Each layer
    of a vision tower is a group, and the root has what else the tower and its projector have.

    Source: transformers 5.23, modeling_utils.py, ``post_init`` (``_no_split_modules`` of every submodel); accelerate
    1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model``; ``joins_norm``.
    """
    outer = outer_modules(model)
    first = next(module for module in outer if isinstance(module, Embedding))
    head = [module for module in outer if module.name == "lm_head"]
    tail = [*(final_norms(model) if joins_norm(model, adapters) else []), *head]
    if model.is_tied:
        tail.append(first)
    root = tuple(module for module in outer if module is not first and module not in tail)
    tower: list[ShardGroup] = []
    if model.vision is not None and sees(model, adapters):
        root += (*outer_modules(model.vision.tower), *projector_modules(model.vision, model))
        tower += (
            ShardGroup(TOWER, layer_modules(model.vision.tower, lowest), count)
            for lowest, count in layer_groups(model.vision.tower)
        )
    embedding = () if model.is_tied else (first,)
    return (
        ShardGroup(EMBEDDING, embedding),
        ShardGroup(TAIL, tuple(tail)),
        ShardGroup(ROOT, root),
        *tower,
        *(
            ShardGroup(LAYER, layer_modules(model, lowest), count)
            for lowest, count in layer_groups(model)
        ),
    )


def member_width(
    setup: TrainingSetup, *, is_adapter: bool, is_copy: bool = False, part: Part = Part.TEXT
) -> int:
    """Bytes per element of a stored shard and its gradient; ``is_copy``: of a module that PEFT copies; ``part``: whose.

    Source: derived, from ``upcasts_trained``, ``adapter_width`` and ``unquantized_width``.
    """
    is_whole = not setup.adapters.uses_adapters and part not in setup.adapters.frozen_parts
    if (is_adapter or is_copy or is_whole) and upcasts_trained(setup):
        return FLOAT32_BYTES
    return adapter_width(setup) if is_adapter else unquantized_width(setup)


def packed_width(adapters: Adapters) -> int:
    """Bytes per element of the storage dtype of packed weights (``bnb_4bit_quant_storage``).

    Source: bitsandbytes 0.50, functional.py, ``quantize_4bit(quant_storage=…)``.
    """
    return (
        1
        if adapters.bnb_4bit_quant_storage == UINT8
        else Dtype(adapters.bnb_4bit_quant_storage).bytes
    )


def loads_sharded(setup: TrainingSetup) -> bool:
    """Whether each GPU loads only its shards, so that loading never needs more than a step.

    A quantised model under ZeRO-3 is on each GPU in full until DeepSpeed shards it: transformers 5.23,
    quantizers/quantizer_bnb_4bit.py, ``update_device_map``, and modeling_utils.py, ``get_init_context``.
    Source: accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_load_full_state_dict``; DeepSpeed 0.19.6,
    runtime/zero/partition_parameters.py, ``Init``.
    """
    return setup.mesh.strategy.is_fsdp or sharded_on_init(setup)


def sharded_on_init(setup: TrainingSetup) -> bool:
    """Whether each weight is sharded when the model is created, as at stage 3 for all but quantised models.

    DeepSpeed then casts nothing, so PEFT's adapters stay float32, and it replaces ``linear`` by its own function.
    Source: transformers 5.23, modeling_utils.py, ``get_init_context`` (``needs_zero3_init``); DeepSpeed 0.19.6,
    runtime/engine.py, ``_cast_module_mixed_precision`` (``is_zero_init_model``); runtime/zero/partition_parameters.py,
    ``_enable_mem_efficient_linear``.
    """
    return setup.mesh.strategy.gathers_modules and not (
        setup.adapters.has_4bit_base or setup.adapters.load_in_8bit
    )


def computed(setup: TrainingSetup) -> TrainingSetup:
    """The setup as the forward pass sees it: under mixed precision all sharded weights are gathered in 16 bits.

    This includes adapters and what PEFT cast to float32, so no operator casts a weight again.

    Source: accelerate 1.15, utils/dataclasses.py, ``set_mixed_precision`` (``param_dtype``, ``reduce_dtype``);
    DeepSpeed 0.19.6, runtime/engine.py, ``_configure_distributed_model`` (``module.bfloat16()``).
    """
    divided = setup.mesh.strategy.shards_states
    # each micro-step reduces its gradients, or adds them to the flat buffer
    if setup.mesh.strategy.shards_gradients and (
        setup.mesh.strategy.is_zero or setup.mesh.uses_fsdp1
    ):
        setup = replace(setup, batch=setup.batch.without_accumulation())
    if setup.mesh.strategy.is_zero and setup.precision.mixed_precision is not MixedPrecision.NO:
        # accelerate 1.15, _prepare_deepspeed: no autocast for a model that DeepSpeed has cast
        setup = setup.replace(mixed_precision=MixedPrecision.NO)
        divided_in_16_bits = True
    else:
        divided_in_16_bits = setup.precision.mixed_precision is not MixedPrecision.NO
    if not divided or not divided_in_16_bits or setup.mesh.loads_divided:
        return setup  # transformers 5.23, distributed/fsdp.py: no policy by itself, and autocast as on one GPU
    autocasts = setup.precision.mixed_precision is not MixedPrecision.NO
    return setup.replace(
        dtype=Dtype.BFLOAT16,
        mixed_precision=MixedPrecision.BF16 if autocasts else MixedPrecision.NO,
        autocast_adapter_dtype=setup.adapters.autocast_adapter_dtype and sharded_on_init(setup),
        prepare_model_for_kbit_training=False,
    )


class TrainedTensor(NamedTuple):
    """One trained tensor of a module, unsharded."""

    shape: Shape
    width: int
    """Bytes per element of its shards."""


def trained_parts(module: Module, setup: TrainingSetup) -> list[TrainedTensor]:
    """The trained tensors of a module under FSDP2: its weights, or its adapters and its copy; elements and bytes.

    Source: derived, from ``member_width``; DoRA's magnitudes of packed weights are float32 (``adapter_tensors``).
    """
    if not setup.adapters.uses_adapters:
        width = member_width(setup, is_adapter=False, part=module.part)
        return [TrainedTensor(shape, width) for shape in trained_shapes(module, setup.adapters)]
    upcast = upcasts_trained(setup)
    copied = member_width(setup, is_adapter=False, is_copy=True)
    return [
        *(
            TrainedTensor(tensor.shape, FLOAT32_BYTES if upcast else tensor.width)
            for tensor in adapter_tensors(module, setup)
        ),
        *(TrainedTensor(shape, copied) for shape in copied_shapes(module, setup.adapters)),
    ]


TIED_COPY = Refusal(
    "modules_to_save names the embedding or the head of {model_type}, which are one tied weight: FSDP 2 finds the "
    "original in two of its groups and refuses it; leave both out, or take ddp.",
    Line(
        "torch",
        "distributed/fsdp/_fully_shard/_fsdp_state.py",
        225,
        "parameter already managed by another FSDP group",
    ),
)
TWO_DTYPES = Refusal(
    "FSDP 2 needs a single dtype for the trained tensors of each group, but here adapters and other trained tensors "
    "differ; set mixed_precision bf16 on a base that is not packed, or autocast_adapter_dtype {other}.",
    Line(
        "torch",
        "distributed/fsdp/_fully_shard/_fsdp_param_group.py",
        284,
        "FSDP expects uniform original parameter dtype",
    ),
)


def check_groups(model: Model, setup: TrainingSetup) -> None:
    """Refuses what FSDP2 refuses: trained tensors of two dtypes in one group, and a tied weight in two groups.

    Raises ``ValueError`` with one sentence.
    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py, ``_init_mp_dtypes``, and _fsdp_state.py,
    ``_validate_no_duplicate_params``; accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model`` (a head whose
    embedding was copied is no longer tied).
    """
    if not setup.mesh.strategy.is_fsdp or setup.mesh.uses_fsdp1 or not setup.adapters.uses_adapters:
        return
    groups = fsdp_groups(model, setup.adapters)
    first = next(module for module in outer_modules(model) if isinstance(module, Embedding))
    ends: tuple[Module, ...] = (first, *tied_head(model))
    if model.is_tied and any(is_copied(module, setup.adapters) for module in ends):
        raise TIED_COPY(model_type=model.model_type)
    for group in groups:
        parts = [part for module in group.modules for part in trained_parts(module, setup)]
        if len({part.width for part in parts}) > 1:
            raise TWO_DTYPES(other=str(not setup.adapters.autocast_adapter_dtype).lower())


def sharded_tensors(model: Model, setup: TrainingSetup) -> list[Trainable]:
    """The trained tensors of the first rank under FSDP2: the optimizer sees these shards, without padding.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``to_sharded_dtensor``.
    """
    return [
        Trainable(
            shard_shape(part.shape, setup.mesh.shard_ranks),
            part.width,
            group.alike,
            isinstance(module, Embedding),
        )
        for group in fsdp_groups(model, setup.adapters)
        for module in group.modules
        for part in trained_parts(module, setup)
    ]


def sharded_weight_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of one rank's weights under FSDP2, without adapters: every tensor padded to the rows of the first rank.

        Σ tensors  ⌈rows / ranks⌉ · columns · p     p: 4 if trained under mixed precision, else as loaded

    Packed 4-bit weights are on every GPU in full, unless their storage dtype is a float. Their scales always are.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``_init_sharded_param``.
    """
    ranks, total = setup.mesh.shard_ranks, 0
    for group in fsdp_groups(model, setup.adapters):
        for module in group.modules:
            shapes = weight_shapes(module)
            if is_quantized(module, setup.adapters):
                total += group.alike * _packed_shard(shapes[0], setup.adapters, setup.mesh)
                shapes = shapes[1:]
            shards = [shard_shape(shape, ranks) for shape in shapes]
            width = member_width(setup, is_adapter=False, part=module.part)
            total += group.alike * tensors_bytes(shards, width)
    return total


def unmoved_weight_bytes(model: Model, adapters: Adapters) -> int:
    """Bytes of weights that stay on the GPU when FSDP2 offloads: scales of packed weights, and unsharded weights.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``_init_sharded_param`` (shards go to the CPU);
    accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model`` (``ignored_params``).
    """
    total = 0
    for group in fsdp_groups(model, adapters):
        for module in group.modules:
            if is_quantized(module, adapters):
                count = elements(weight_shapes(module)[0])
                scales = scale_bytes(count, double_quant=adapters.bnb_4bit_use_double_quant)
                packed = 0 if adapters.shards_packed else allocated(packed_bytes(count))
                total += group.alike * (packed + scales)
    return total


def _packed_shard(shape: Shape, adapters: Adapters, mesh: Mesh) -> int:
    count = elements(shape)
    scales = scale_bytes(count, double_quant=adapters.bnb_4bit_use_double_quant)
    packed = packed_bytes(count)
    if adapters.shards_packed:
        width = packed_width(adapters)
        packed = ceil_div(ceil_div(packed, width), mesh.shard_ranks) * width
    return allocated(packed) + scales


def sharded_adapter_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of one rank's shards of adapters and of modules that PEFT copied, under FSDP2.

    Source: as ``sharded_weight_bytes``.
    """
    if not setup.adapters.uses_adapters:
        return 0
    return sum(
        group.alike * tensors_bytes([shard_shape(part.shape, setup.mesh.shard_ranks)], part.width)
        for group in fsdp_groups(model, setup.adapters)
        for module in group.modules
        for part in trained_parts(module, setup)
    )


def sharded_gradient_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of one rank's gradients under FSDP2 after reduction: one flat tensor per group, in the stored dtype.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_collectives.py, ``foreach_reduce``.
    """
    return sum(
        group.alike
        * allocated(
            sum(
                part.width * elements(shard_shape(part.shape, setup.mesh.shard_ranks))
                for module in group.modules
                for part in trained_parts(module, setup)
            )
        )
        for group in fsdp_groups(model, setup.adapters)
    )
