"""A model's parameters in the groups that accelerate hands to FSDP2: each layer, the embedding, the head, the rest.

Source: accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model``: every layer by the wrap policy; the embedding;
the final norm with the head, which stay gathered from forward to backward (with the embedding where it is tied); the
root has what is left, and stays gathered too.
"""

from __future__ import annotations

from collections.abc import Container

from estimator.architectures.block import ACTIVATION, ROTARY, Block, Owned, Unit
from estimator.arithmetic import allocated, ceil_div
from estimator.memory.fsdp import Group, Member, Traffic
from estimator.memory.sharding import (
    EMBEDDING,
    ROOT,
    TAIL,
    fsdp_groups,
    is_packed_divided,
    member_width,
    packed_width,
    shard_shape,
)
from estimator.memory.tape import GRADIENTS, Parameter, Storage, Tape, Tensor
from estimator.memory.weights import elements, packed_bytes
from estimator.memory.zero import (
    Bucket,
    Called,
    ToHost,
    gathering,
    gradients_in_partition,
    partition,
    sent_from_stage_2,
    sent_from_stage_3,
    width,
)
from estimator.parameters import Bare, Linear, is_quantized
from estimator.placement import HEAD
from estimator.specs import Model, Offload, Strategy, TrainingSetup


def _to_host(model: Model, setup: TrainingSetup, ranks: int) -> ToHost | None:
    if setup.offload_optimizer is Offload.NONE:
        return None
    if setup.strategy is Strategy.ZERO3:
        return sent_from_stage_3(setup, ranks)
    return sent_from_stage_2(partition(model, setup))


class Sharded:
    """The groups of a model under FSDP2; without it nothing happens here."""

    def __init__(
        self,
        tape: Tape,
        model: Model,
        setup: TrainingSetup,
        outer: Block,
        ranks: int,
    ) -> None:
        self.active = setup.strategy.is_fsdp
        self.calls = gathering(model, setup) is not None
        self.bucket = None
        if setup.strategy.is_zero:
            in_part = setup.strategy is not Strategy.ZERO3
            kept = allocated(width(setup) * gradients_in_partition(model, setup)) if in_part else 0
            if in_part and setup.offload_optimizer is not Offload.NONE:
                kept = 0
            self.bucket = Bucket(
                tape, setup, model.hidden_size, kept, ranks, _to_host(model, setup, ranks)
            )
            self._take(outer)
        self.outer = outer
        if self.calls:
            note_calls(tape, outer, setup)
        self._reshards = setup.strategy is not Strategy.FSDP_GRAD_OP
        self.setup = setup
        self.traffic = Traffic(
            tape,
            ranks,
            replicated=setup.strategy is Strategy.HSDP,
            offloads=setup.offload_param is not Offload.NONE,
        )
        names = {
            group.name: {module.name for module in group.modules} for group in fsdp_groups(model)
        }
        self.tail = self._group(outer, names[TAIL], reshards=False)
        self.root = self._group(outer, names[ROOT], reshards=False)
        self.tied = model.tie_word_embeddings
        self.embedding = self._group(outer, names[EMBEDDING], reshards=self._reshards)

    def layer(self, block: Block) -> Group:
        """The group of one layer."""
        if self.bucket is not None:
            self._take(block)
        if self.calls:
            note_calls(self.traffic.tape, block, self.setup)
        return self._group(block, reshards=self._reshards)

    def _take(self, block: Block) -> None:
        assert self.bucket is not None
        for owned in block.owned:
            if owned.parameter.requires_grad:
                self.bucket.take(owned.parameter)

    def _group(self, block: Block, names: Container[str] | None = None, *, reshards: bool) -> Group:
        members = [
            member
            for owned in (block.owned if self.active else ())
            if (names is None or owned.module.name in names)
            and (member := self._member(owned)) is not None
        ]
        return Group(self.traffic, members, reshards=reshards)

    def _member(self, owned: Owned) -> Member | None:
        setup, ranks, parameter = self.setup, self.traffic.ranks, owned.parameter
        if self._is_packed(owned):
            if not is_packed_divided(setup):
                return None
            width = packed_width(setup)
            count = ceil_div(packed_bytes(parameter.elements), width)
            return Member(ceil_div(count, ranks), width, width, None)
        if parameter.requires_grad and setup.gradient_accumulation_steps > 1:
            self._accumulated(parameter)
        leaf = parameter.node.leaf if parameter.node is not None else None
        shard = elements(shard_shape(owned.shape, ranks))
        stored = member_width(setup, is_adapter=owned.is_adapter)
        return Member(shard, parameter.width, stored, leaf)

    def _is_packed(self, owned: Owned) -> bool:
        return is_packed(owned, self.setup)

    def _accumulated(self, parameter: Parameter) -> None:
        """Without synchronisation gradients pile up whole; the last micro-step finds them."""
        assert parameter.node is not None
        leaf = parameter.node.leaf
        assert leaf is not None
        size = allocated(parameter.elements * parameter.width)
        leaf.grad = Storage.standing(self.traffic.tape, size, GRADIENTS)

    # -- what happens around the modules ------------------------------------------------------------------------

    def before_embedding(self, ids: Tensor) -> None:
        """The root's weights and the embedding's are gathered."""
        if self.active:
            self.root.enter(ids)
            (self.tail if self.tied else self.embedding).enter(ids)
        elif self.calls:
            self._embedding_unit.enter(ids)

    def after_embedding(self, hidden: Tensor) -> Tensor:
        """The embedding's weights go, unless the head is the same."""
        if self.calls:
            return self._embedding_unit.leave(hidden)
        return hidden if self.tied or not self.active else self.embedding.leave(hidden)

    @property
    def _embedding_unit(self) -> Unit:
        return self.outer.units[next(iter(self.outer.embeddings.values())).key]

    def before_head(self, hidden: Tensor) -> Tensor:
        """The final norm's and the head's weights are gathered."""
        return hidden if self.tied or not self.active else self.tail.enter(hidden)

    def after_head(self, logits: Tensor) -> Tensor:
        """The head's weights stay for backward."""
        return self.tail.leave(logits) if self.active else logits

    def end_forward(self) -> None:
        """The model returns."""
        if self.active:
            if self.root.members:
                self.root.after_forward()
            self.traffic.end_forward()

    def end_backward(self) -> None:
        """All gradients have arrived."""
        if self.bucket is not None:
            self.bucket.end()
        if self.active:
            self.traffic.end_backward()


def is_packed(owned: Owned, setup: TrainingSetup) -> bool:
    """Whether this is the weight of a linear that a quantiser packs (derived, from ``is_quantized``)."""
    weight = not owned.is_adapter and len(owned.shape) > 1
    return weight and isinstance(owned.module, Linear) and is_quantized(owned.module, setup)


def note_calls(tape: Tape, block: Block, setup: TrainingSetup) -> None:
    """Have a block's modules note when they are called, each with its own weights as PEFT has left them.

    The activation and the rotary tables have none. The experts of a mixture are one module, with all their stacks.

    Source: DeepSpeed 0.19.6, runtime/zero/parameter_offload.py, ``_register_deepspeed_module``; peft 0.21,
    tuners/lora/layer.py (``base_layer``, ``lora_A``, ``lora_B``; a dropout before A).
    """
    modules: dict[str, list[Parameter]] = {}
    for owned in block.owned:
        if is_packed(owned, setup):
            continue
        name, part = owned.module.name, owned.parameter.key.rsplit(".", 1)[1]
        if isinstance(owned.module, Bare):
            name = name.removesuffix(".gate_up_proj").removesuffix(".down_proj")
        elif isinstance(owned.module, Linear) and owned.is_adapter:
            name += ".lora_dropout.lora_A" if part == "lora0" else ".lora_B"
        elif isinstance(owned.module, Linear) and block.linears[name].lora_a is not None:
            name += ".base_layer"
        modules.setdefault(name, []).append(owned.parameter)
    for name, parameters in modules.items():
        block.units[parameters[0].key] = Called(tape, name, parameters)
    if block.index is None:
        head = block.linears[HEAD].weight if HEAD in block.linears else None
        tied = next(iter(block.embeddings.values()))
        block.units[HEAD] = Called(tape, HEAD, [head or tied])
        block.units[ROTARY] = Called(tape, ROTARY, ())
    else:
        block.units[ACTIVATION] = Called(tape, ACTIVATION, ())
