"""What FSDP2 shards: its groups, and the tensors of one rank, in elements and bytes.

Every tensor is sharded along its first axis. The last ranks may have fewer rows; storage and communication are padded
to the rows of the first rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from estimator.families.adapters import is_copied
from estimator.families.model_tree import (
    base_model_prefix,
    layer_groups,
    layer_modules,
    outer_modules,
    projector_modules,
    tied_head,
)
from estimator.families.modules import Embedding, Module, Norm
from estimator.families.packed import FLOAT32_BYTES
from estimator.families.registry import family_of
from estimator.families.vision_family import sees
from estimator.families.weights import adapter_tensor_width, buffer_bytes, unquantized_width
from estimator.parallel.computed import computed
from estimator.parallel.placements import (
    Layout,
    Placement,
    Replicate,
    Shard,
    gradient_bytes,
    own_and_added,
    trainable_tensors,
)
from estimator.parallel.tensors import ModelTensor, tensors_of
from estimator.resident.model import Resident, counts, stepped
from estimator.resident.optimizer import Trainable
from estimator.values.arithmetic import allocated, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.refusals import Line, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import MixedPrecision, Model, Offload


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

    def tensors(self, adapters: Adapters) -> list[ModelTensor]:
        """All tensors of its modules."""
        return tensors_of([(module, self.alike) for module in self.modules], adapters)


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


def sharded_width(tensor: ModelTensor, setup: TrainingSetup) -> int:
    """Bytes per element of a stored shard and its gradient.

    Source: derived, from ``upcasts_trained``, ``adapter_tensor_width`` and ``unquantized_width``.
    """
    if tensor.trained and upcasts_trained(setup):
        return FLOAT32_BYTES
    if tensor.is_adapter:
        return adapter_tensor_width(tensor.module, tensor.shape, setup)
    return unquantized_width(setup)


def _placement(tensor: ModelTensor, setup: TrainingSetup) -> Placement:
    """Packed 4-bit weights are on every GPU in full, unless their storage dtype is a float.

    Source: accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model`` (``ignored_params``).
    """
    is_ignored = tensor.packed_width and not setup.adapters.shards_packed
    return Replicate() if is_ignored else Shard(setup.mesh.shard_ranks)


SHARDED = Layout(_placement, sharded_width)
"""Every tensor in rows, padded to those of the first rank; the optimizer sees the first rank's without padding:
torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``_init_sharded_param``, ``to_sharded_dtensor``."""


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
        trained = [tensor for tensor in group.tensors(setup.adapters) if tensor.trained]
        if len({sharded_width(tensor, setup) for tensor in trained}) > 1:
            raise TWO_DTYPES(other=str(not setup.adapters.autocast_adapter_dtype).lower())


def sharded_groups(model: Model, adapters: Adapters) -> list[list[ModelTensor]]:
    """The tensors of each group (derived, from ``fsdp_groups``)."""
    return [group.tensors(adapters) for group in fsdp_groups(model, adapters)]


def sharded_tensors(model: Model, setup: TrainingSetup) -> list[Trainable]:
    """The trained tensors of the first rank under FSDP2, group by group.

    Source: as ``SHARDED``.
    """
    groups = sharded_groups(model, setup.adapters)
    return [SHARDED.held(one, setup) for group in groups for one in group if one.trained]


def unmoved_bytes(tensors: Sequence[ModelTensor], setup: TrainingSetup) -> int:
    """Bytes of weights that stay on the GPU when FSDP2 offloads: scales of packed weights, and unsharded weights.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py, ``_init_sharded_param`` (shards go to the CPU).
    """
    scales = sum(tensor.alike * tensor.scales for tensor in tensors)
    whole = [one for one in tensors if isinstance(_placement(one, setup), Replicate)]
    return scales + gradient_bytes(SHARDED.held(tensor, setup) for tensor in whole)


def reduced_bytes(groups: Iterable[Sequence[ModelTensor]], setup: TrainingSetup) -> int:
    """Bytes of one rank's gradients under FSDP2 after reduction: one flat tensor per group, in the stored dtype.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_collectives.py, ``foreach_reduce``.
    """
    total = 0
    for group in groups:
        parts = [SHARDED.held(tensor, setup) for tensor in group if tensor.trained]
        flat = sum(part.width * elements(part.shape) for part in parts)
        total += allocated(flat) * (parts[0].alike if parts else 0)
    return total


def fsdp2_shards(model: Model, structure: TrainingSetup) -> Resident:
    """What the fullest rank keeps under FSDP2: shards of everything, and unsharded gradients until synchronisation.

        Σ tensors  ⌈rows / ranks⌉ · columns · p     p: 4 if trained under mixed precision, else as loaded

    With offload everything is on the host except gradients that still accumulate.

    Source: as ``SHARDED``, ``reduced_bytes`` and ``unmoved_bytes``.
    """
    groups = sharded_groups(model, structure.adapters)
    own, added = own_and_added(chain.from_iterable(groups))
    gradients = waiting = reduced_bytes(groups, structure)
    if not structure.reduces_every_micro_step:
        waiting = gradient_bytes(trainable_tensors(model, computed(structure)))
    of_model = counts(model, structure.adapters)
    if structure.mesh.offload_param is not Offload.NONE:
        weights = unmoved_bytes(own, structure) + buffer_bytes(model)
        return Resident(weights=weights, accumulated=waiting, **of_model)
    return Resident(
        weights=SHARDED.bytes(own, structure) + buffer_bytes(model),
        adapters=SHARDED.bytes(added, structure),
        gradients=gradients,
        accumulated=waiting,
        **stepped(sharded_tensors(model, structure), structure.optimisation),
        **of_model,
    )
