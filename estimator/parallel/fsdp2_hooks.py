"""FSDP2's hooks, with the groups that accelerate chooses: each layer, the embedding, the head, and the root.

Source: accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model``: every layer by the wrap policy; the embedding;
the final norm with the head (and a tied embedding), which stay gathered from forward to backward; the root has
everything else and stays gathered too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from estimator.families.adapters import is_copied
from estimator.families.block import Block, Owned
from estimator.families.family import Rotary
from estimator.families.liger import loss_of
from estimator.families.model_tree import modules_in_order, outer_modules
from estimator.families.rotary import Tables
from estimator.families.weights import buffer_bytes, unquantized_width
from estimator.parallel.computed import computed
from estimator.parallel.fsdp2 import Fsdp2Group, Fsdp2Traffic, ShardedParameter
from estimator.parallel.hooks import Hooks
from estimator.parallel.placement import HEAD
from estimator.parallel.placements import Replicate, Shard
from estimator.parallel.sharding import (
    EMBEDDING,
    LAYER,
    ROOT,
    SHARDED,
    TAIL,
    TOWER,
    fsdp2_shards,
    fsdp_groups,
    joins_norm,
    sharded_groups,
    sharded_width,
    unmoved_bytes,
)
from estimator.parallel.tensor_parallel import TensorParallelHooks, embedding_bytes, part_of
from estimator.parallel.tensors import module_tensors
from estimator.resident.model import Resident, counts
from estimator.tape import operators as op
from estimator.tape.tape import COMMUNICATION, GRADIENTS, WEIGHTS, Parameter, Storage, Tape, Tensor
from estimator.values.arithmetic import allocated, elements
from estimator.values.refusals import Line, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import MixedPrecision, Model, Offload

HALF = 2
"""Bytes per element of what FSDP 2 casts under mixed precision."""
HEAD_OF_LIGER = Refusal(
    "Liger's loss reads the head of {model_type} without calling it, and with adapters FSDP 2 gathers the head only "
    'when it is called ("got mixed torch.Tensor and DTensor"); take loss chunked_trl or fsdp_version 1.',
    Line("liger-kernel", "transformers/model/llama.py", 197, "lm_head_weight=lm_head.weight,"),
)
COPIED_HEAD_OF_TRL = Refusal(
    "loss chunked_trl gathers a copied lm_head outside FSDP 2, so its gradient is not averaged between GPUs; take "
    "loss standard, or leave lm_head out of modules_to_save.",
    Line("trl", "trainer/utils.py", 1637, "weight = weight.full_tensor()"),
)


def check_head(model: Model, setup: TrainingSetup) -> None:
    """Refuses a loss that reads the head's weight when FSDP2 has not gathered it.

    Under PEFT an untied head is a group of its own, gathered only when it is called. Raises ``ValueError`` with one
    sentence.
    Source: liger-kernel 0.8.5, transformers/model/llama.py, ``_liger_for_causal_lm_loss``, and
    ops/fused_linear_cross_entropy.py; trl 1.16, trainer/utils.py, ``add_fused_lm_head`` (with ``full_tensor``
    each rank only gets its own gradient).
    """
    if not setup.mesh.strategy.is_fsdp or setup.mesh.uses_fsdp1 or model.is_tied:
        return
    if joins_norm(model, setup.adapters):
        return
    loss = loss_of(model, setup)
    if loss.fuses_gradient:
        raise HEAD_OF_LIGER(model_type=model.model_type)
    head = [module for module in outer_modules(model) if module.name == "lm_head"]
    if loss.tiles_logits and any(is_copied(module, setup.adapters) for module in head):
        raise COPIED_HEAD_OF_TRL()


class Fsdp2Hooks(Hooks):
    """The groups of a model under FSDP2.

    ``stays``: root, final norm and head are gathered until backward; otherwise they go as they return, as in a call
    without gradients of a model that verl divides.
    """

    def __init__(
        self,
        tape: Tape,
        model: Model,
        setup: TrainingSetup,
        outer: Block,
        ranks: int,
        *,
        stays: bool = True,
    ) -> None:
        super().__init__(tape, model, setup, outer, ranks)
        self._model, self._setup = model, setup
        self._embedding_name = outer.embedding_name
        self._norm_name = outer.final_norm_name
        self._reshards = not setup.mesh.strategy.keeps_gathered
        self._traffic = Fsdp2Traffic(
            tape,
            ranks,
            replicated=setup.mesh.strategy.has_groups,
            offloads=setup.mesh.offload_param is not Offload.NONE,
            reduced_width=4 * setup.reduces_every_micro_step,
        )
        self._tied = model.is_tied
        names = {
            group.name: [module.name for module in group.modules]
            for group in fsdp_groups(model, setup.adapters)
        }
        self._order = _order(model)
        self._joins_norm = joins_norm(model, setup.adapters)
        self._calls_head = loss_of(model, setup).calls_head
        self._reads_head = not (self._calls_head or self._joins_norm or self._tied)
        """Whether the loss reads the head's weight without calling the head, and nothing else in its group is called.
        """
        self._tail = self._group(outer, names[TAIL], reshards=not stays)
        self._root = self._group(outer, names[ROOT], reshards=not stays)
        self._embedding = self._group(outer, names[EMBEDDING], reshards=self._reshards)
        mixed = setup.precision.mixed_precision is not MixedPrecision.NO
        self.casts_inputs = mixed and not setup.mesh.loads_divided
        self._cast: list[Tensor] = []
        """Inputs of the model that its root cast."""
        self._layers: dict[tuple[str, int], Fsdp2Group] = {}

    def layer(self, index: int, block: Block) -> Fsdp2Layer:
        """One layer and its group, the same in every pass."""
        return self._layer(LAYER, index, block)

    def see(self, outer: Block, projector: Block) -> None:
        """The root has what of a tower is in no layer."""
        beside = [member for block in (outer, projector) for member in self._members_of(block)]
        self._root.members = [*self._root.members, *beside]

    def hold_input(self, x: Tensor) -> None:
        """Keep an input of the root, cast by ``cast_forward_inputs``, until the root returns."""
        self._cast.append(x)

    def tower_layer(self, index: int, block: Block) -> Fsdp2Layer:
        """One layer of the tower and its group."""
        return self._layer(TOWER, index, block)

    def _layer(self, stack: str, index: int, block: Block) -> Fsdp2Layer:
        if (stack, index) not in self._layers:
            self._layers[stack, index] = self._group(block, reshards=self._reshards)
        group = self._layers[stack, index]
        return Fsdp2Layer(self, block, group if group.members else None)

    def _group(
        self, block: Block, names: Sequence[str] | None = None, *, reshards: bool
    ) -> Fsdp2Group:
        setup, members = self._setup, self._members_of(block, names)
        was_reduced = setup.reduces_every_micro_step and setup.batch.gradient_accumulation_steps > 1
        return Fsdp2Group(self._traffic, members, reshards=reshards, was_reduced=was_reduced)

    def _members_of(
        self, block: Block, names: Sequence[str] | None = None
    ) -> list[ShardedParameter]:
        """The parameters of these modules in their order, or of all in the order of the model's class."""
        own = [owned for owned in block.owned if names is None or owned.module.name in names]
        places = self._order if names is None else {name: at for at, name in enumerate(names)}
        own.sort(key=lambda owned: places.get(owned.module.name, len(places)))
        return [member for owned in own for member in self._members(owned)]

    def _members(self, owned: Owned) -> Iterator[ShardedParameter]:
        """The parameter itself, after the frozen original if PEFT trains a copy; nothing if it is not sharded."""
        setup, ranks, parameter = self._setup, self._traffic.ranks, owned.parameter
        waits = setup.batch.gradient_accumulation_steps > 1 and not setup.reduces_every_micro_step
        if parameter.requires_grad and waits:
            self._accumulated(parameter)
        leaf = parameter.node.leaf if parameter.node is not None else None
        is_part = parameter.gradient_elements != parameter.elements
        own = parameter.elements * parameter.width * is_part
        for tensor in module_tensors(owned.module, setup.adapters):
            is_whole = isinstance(SHARDED.placement(tensor, setup), Replicate)
            if is_whole or tensor.part != parameter.key.rpartition(".")[2]:
                continue
            shard, packed = elements(Shard(ranks).of(tensor.shape)), tensor.packed_width
            widths = packed or parameter.width, packed or sharded_width(tensor, setup)
            arrives = (leaf, own) if tensor.trained else (None, 0)
            yield ShardedParameter(shard, *widths, *arrives)

    def _accumulated(self, parameter: Parameter) -> None:
        """Without synchronisation, unsharded gradients accumulate until the last micro-step."""
        assert parameter.node is not None
        leaf = parameter.node.leaf
        assert leaf is not None
        size = allocated(parameter.gradient_elements * parameter.width)
        leaf.grad = Storage.existing(self.tape, size, GRADIENTS)

    # -- what happens around the modules ------------------------------------------------------------------------

    def enter_model(self, ids: Tensor) -> None:
        """Gathers the root's weights."""
        self._root.enter(ids)

    def enter(self, module: str, x: Tensor) -> Tensor:
        """The embedding gathers its group; the final norm or the head gathers theirs. The head's input is cast."""
        if module == self._embedding_name:
            return (self._tail if self._tied else self._embedding).enter(x)
        if module == HEAD and self._calls_head:
            x = self.cast(x)
        opens_tail = self._norm_name if self._joins_norm else HEAD
        if module == opens_tail and not (self._tied or self._reads_head):
            return self._tail.enter(x)
        return x

    def leave(self, module: str, x: Tensor) -> Tensor:
        """Frees the embedding's weights, unless the head is tied. Those of final norm and head stay for backward.

        A final norm that is gathered with the head has its output cast: LayerNorm's is float32 under autocast.
        """
        if module == self._norm_name and self._joins_norm:
            return self.cast(x)
        if module == self._embedding_name:
            return x if self._tied else self._embedding.leave(x)
        if module == HEAD and not self._reads_head:
            return self._tail.leave(x)
        return x

    def cast(self, x: Tensor) -> Tensor:
        """An input or output of a wrapped module: in 16 bits under mixed precision, unless it is of whole numbers."""
        return op.cast(self.tape, x, HALF) if self.casts_inputs and x.width == 4 else x

    def read(self, weight: Parameter) -> Tensor:
        """The head's weight for a loss that does not call the head: gathered separately, in the dtype of its shards.

        Source: trl 1.16, trainer/utils.py, ``add_fused_lm_head`` (``weight.full_tensor()``).
        """
        if not self._reads_head:
            return weight
        tape, ranks = self.tape, self._traffic.ranks
        tape.operation = "head gathered by the loss"
        head = self._tail.members[0]
        gathered = tape.new(head.shard_elements * ranks, head.stored_width, WEIGHTS)
        return tape.view(gathered, weight.elements)

    def leave_model(self, loss: Tensor, outputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The root returns: its gradient triggers the gather of the last group before it."""
        if self._root.members:
            loss = self._root.leave(loss)
        self._traffic.end_forward()
        self._cast.clear()
        return loss, outputs

    def end_backward(self) -> None:
        """All gradients have arrived."""
        self._traffic.end_backward()


class Fsdp2Layer(NamedTuple):
    """A wrapped layer: mixed precision casts its float inputs and its output to 16 bits.

    Every layer has its own copies of inputs that all share, outside its checkpoint. Complex tables are not cast.
    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_state.py, ``_cast_forward_inputs`` and
    ``_cast_output_dtype``; accelerate 1.15, utils/dataclasses.py, ``set_mixed_precision`` (``output_dtype``);
    transformers 5.23, modeling_layers.py, ``GradientCheckpointingLayer``.
    """

    hooks: Fsdp2Hooks
    block: Block
    group: Fsdp2Group | None

    def enter(self, x: Tensor) -> Tensor:
        """Casts its inputs, then gathers its weights."""
        block, cast = self.block, self.hooks.cast
        x = cast(x)
        block.alibi = None if block.alibi is None else cast(block.alibi)
        if block.rotary_tables is not None and block.rotary is not Rotary.COMPLEX:
            block.rotary_tables = Tables(*(cast(table) for table in block.rotary_tables))
        return x if self.group is None else self.group.enter(x)

    def leave(self, x: Tensor) -> Tensor:
        """Frees its weights, then casts its output."""
        x = self.hooks.cast(x)
        return x if self.group is None else self.group.leave(x)


class Fsdp2OfPartsHooks(Fsdp2Hooks):
    """FSDP 2 around the modules of a rank that has a part of each layer: two axes of one mesh.

    Its hooks are outside: a module's part is gathered, then its input enters as that of any part.

    Source: transformers 5.23, distributed/mixin.py, ``maybe_distribute_model`` (tensor parallelism first, then
    ``fully_shard``); distributed/tensor_parallel.py, ``install_forward``; configuration_utils.py,
    ``base_model_fsdp_plan``, whose groups are accelerate's.
    """

    def __init__(
        self, tape: Tape, model: Model, setup: TrainingSetup, outer: Block, ranks: int
    ) -> None:
        self._parts = TensorParallelHooks(tape, model, setup, outer, ranks)
        super().__init__(tape, model, setup, outer, ranks)

    def layer(self, index: int, block: Block) -> Fsdp2Layer:
        """The layer's group, and the collectives within."""
        self._parts.layer(index, block)
        return super().layer(index, block)

    def enter(self, module: str, x: Tensor) -> Tensor:
        """Gathers, then enters the part."""
        return self._parts.enter(module, super().enter(module, x))

    def leave(self, module: str, x: Tensor) -> Tensor:
        """Leaves the part, then lets it go."""
        x = self._parts.leave(module, x)
        return super().leave(module, x)


def sharded_parts(model: Model, structure: TrainingSetup) -> Resident:
    """What a rank keeps where FSDP 2 shards the parts: a shard of its part of everything.

    Gradients that wait for the last micro-step lie whole, the embedding's with all ranks' rows.

    Source: as ``divided`` and ``fsdp2_shards``.
    """
    rank = fsdp2_shards(part_of(model, structure.mesh.tp_size), structure)
    own, rows = embedding_bytes(model, structure)
    return replace(
        rank, accumulated=rank.accumulated + rows - own, **counts(model, structure.adapters)
    )


@lru_cache(maxsize=64)
def _order(model: Model) -> Mapping[str, int]:
    """Where a layer's class defines each module."""
    found: dict[str, int] = {}
    for located in modules_in_order(model):
        found.setdefault(located.module.name, len(found))
    return found


def _gathered(model: Model, setup: TrainingSetup, ranks: int) -> tuple[int, int]:
    """Of a second model, elements of a rank's shards, and bytes of all weights, gathered."""
    sent = whole = 0
    width = unquantized_width(computed(setup))
    for tensor in chain.from_iterable(sharded_groups(model, setup.adapters)):
        if not tensor.packed_width:
            shard = elements(Shard(ranks).of(tensor.shape))
            sent += tensor.alike * shard
            whole += tensor.alike * allocated(shard * ranks * width)
    return sent, whole


class FrozenFsdp2Hooks(Hooks):
    """A second model: one group, gathered whole for a call, and freed after it.

    The buffer of the gather lives until the call returns.

    Source: trl 1.16, models/utils.py, ``prepare_fsdp`` (``fully_shard`` of the root alone); torch 2.13,
    distributed/fsdp/_fully_shard/_fsdp_state.py, ``_post_forward`` (``all_gather_state``).
    """

    def __init__(
        self, tape: Tape, model: Model, setup: TrainingSetup, outer: Block, ranks: int
    ) -> None:
        super().__init__(tape, model, setup, outer, ranks)
        self._ranks = ranks
        self._sent, self._whole_bytes = _gathered(model, setup, ranks)
        self._stored, self._width = unquantized_width(setup), unquantized_width(computed(setup))
        self._offloads = setup.mesh.offload_param is not Offload.NONE
        self._stays = setup.mesh.strategy.keeps_gathered
        self._gathered: list[Storage] = []

    def enter_model(self, ids: Tensor) -> None:
        """The whole model is gathered, and its weights are copied out of the buffer."""
        if self._stays:
            return
        tape = self.tape
        tape.operation = "all-gather"
        sent = self._sent * self._width
        cast = None
        if self._stored != self._width or self._offloads:
            cast = Storage(tape, allocated(sent), COMMUNICATION)
        self._gathered = [Storage(tape, allocated(sent * self._ranks), COMMUNICATION)]
        del cast
        self._gathered.append(Storage(tape, self._whole_bytes, WEIGHTS))

    def leave_model(self, loss: Tensor, outputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The weights go, and the buffer after them."""
        while self._gathered:
            self._gathered.pop()
        return loss, outputs


def frozen_fsdp2(tape: Tape, model: Model, setup: TrainingSetup, outer: Block, ranks: int) -> Hooks:
    """The hooks of a second model: verl divides it layer by layer as the trained one, TRL makes one group of it."""
    if setup.task.given_loss.is_verls:
        return Fsdp2Hooks(tape, model, setup, outer, ranks, stays=False)
    return FrozenFsdp2Hooks(tape, model, setup, outer, ranks)


def frozen_shards_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of a second model that stay on a GPU between the steps; ``fsdp_grad_op`` lets nothing go once gathered.

    Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py, ``reshard``.
    """
    tensors = [*chain.from_iterable(sharded_groups(model, setup.adapters))]
    rests = setup.mesh.offload_param is not Offload.NONE
    shards = unmoved_bytes(tensors, setup) if rests else SHARDED.bytes(tensors, setup)
    gathered = 0
    if setup.mesh.strategy.keeps_gathered:
        _, gathered = _gathered(model, setup, setup.mesh.shard_ranks)
    return shards + buffer_bytes(model) + gathered
