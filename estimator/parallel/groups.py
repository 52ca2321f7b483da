"""A model's parameters in the groups that accelerate hands to FSDP2: each layer, the embedding, the head, the rest.

Source: accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model``: every layer by the wrap policy; the embedding;
the final norm with the head, which stay gathered from forward to backward (with the embedding where it is tied); the
root has what is left, and stays gathered too.
"""

from __future__ import annotations

from collections.abc import Container

from estimator.families.block import ACTIVATION, ROTARY, Block, Owned, Unit
from estimator.families.liger import loss_of
from estimator.families.parameters import Bare, Linear, is_copied, is_quantized, outer_modules
from estimator.families.weights import elements, packed_bytes
from estimator.parallel.fsdp2 import Group, Member, Traffic
from estimator.parallel.placement import HEAD
from estimator.parallel.sharding import (
    EMBEDDING,
    ROOT,
    TAIL,
    fsdp_groups,
    is_packed_divided,
    joins_norm,
    member_width,
    packed_width,
    shard_shape,
)
from estimator.parallel.zero import (
    Bucket,
    Called,
    ToHost,
    after_backward,
    gathering,
    kept_gradients,
    partition,
    sent_from_stage_2,
    sent_from_stage_3,
    width,
)
from estimator.tape.tape import GRADIENTS, WEIGHTS, Parameter, Storage, Tape, Tensor
from estimator.values.arithmetic import allocated, ceil_div
from estimator.values.refusals import Line, Refusal
from estimator.values.specs import Loss, Model, Offload, Strategy, TrainingSetup

HEAD_OF_LIGER = Refusal(
    "Liger's loss reads the head of {model_type} without calling it, and beside adapters FSDP 2 gathers it only when "
    "it "
    'is called ("got mixed torch.Tensor and DTensor"); take loss chunked_trl or fsdp_version 1.',
    Line("liger-kernel", "transformers/model/llama.py", 197, "lm_head_weight=lm_head.weight,"),
)
COPIED_HEAD_OF_TRL = Refusal(
    "loss chunked_trl gathers a copied lm_head past FSDP 2, so that its gradient is not averaged between GPUs; take "
    "loss standard, or leave lm_head out of modules_to_save.",
    Line("trl", "trainer/utils.py", 1637, "weight = weight.full_tensor()"),
)


def check_head(model: Model, setup: TrainingSetup) -> None:
    """Refuse a loss that reads the head's weight where FSDP2 has not gathered it.

    Beneath PEFT a head that is not tied is a group of its own, and calling it is what gathers it. Raises ``ValueError``
    with one sentence.
    Source: liger-kernel 0.8.5, transformers/model/llama.py, ``_liger_for_causal_lm_loss``, and
    ops/fused_linear_cross_entropy.py; trl 1.16, trainer/utils.py, ``add_fused_lm_head`` (of ``full_tensor`` each
    rank gets its own gradient back alone).
    """
    if not setup.strategy.is_fsdp or setup.uses_fsdp1 or model.tie_word_embeddings:
        return
    if joins_norm(model, setup):
        return
    loss = loss_of(model, setup)
    if loss is Loss.LIGER:
        raise HEAD_OF_LIGER(model_type=model.model_type)
    head = [module for module in outer_modules(model) if module.name == "lm_head"]
    if loss is Loss.CHUNKED_TRL and any(is_copied(module, setup) for module in head):
        raise COPIED_HEAD_OF_TRL()


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
            kept = 0
            if setup.strategy is Strategy.ZERO1:
                kept = after_backward(model, setup)
            elif setup.strategy is Strategy.ZERO2 and setup.offload_optimizer is Offload.NONE:
                kept = allocated(width(setup) * max(kept_gradients(model, setup)))
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
        self.model = model
        self.tied = model.tie_word_embeddings
        names = {
            group.name: {module.name for module in group.modules}
            for group in fsdp_groups(model, setup)
        }
        self.joins_norm = joins_norm(model, setup)
        calls_head = loss_of(model, setup) in (Loss.STANDARD, Loss.CHUNKED_TORCHTUNE)
        self.reads_head = self.active and not (calls_head or self.joins_norm or self.tied)
        """A loss that takes the head's weight without calling the head, in whose group nothing else is called."""
        self.tail = self._group(outer, names[TAIL], reshards=False)
        self.root = self._group(outer, names[ROOT], reshards=False)
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
            if names is None or owned.module.name in names
            for member in self._members(owned)
        ]
        return Group(self.traffic, members, reshards=reshards)

    def _members(self, owned: Owned) -> list[Member]:
        """The parameter itself, and the frozen original beside a copy that PEFT trains."""
        setup, ranks, parameter = self.setup, self.traffic.ranks, owned.parameter
        if self._is_packed(owned):
            if not is_packed_divided(setup):
                return []
            width = packed_width(setup)
            count = ceil_div(packed_bytes(parameter.elements), width)
            return [Member(ceil_div(count, ranks), width, width, None)]
        if parameter.requires_grad and setup.gradient_accumulation_steps > 1:
            self._accumulated(parameter)
        leaf = parameter.node.leaf if parameter.node is not None else None
        shard = elements(shard_shape(owned.shape, ranks))
        is_copy = not owned.is_adapter and is_copied(owned.module, setup)
        stored = member_width(setup, is_adapter=owned.is_adapter, is_copy=is_copy)
        member = Member(shard, parameter.width, stored, leaf)
        if not is_copy:
            return [member]
        original = Member(shard, parameter.width, member_width(setup, is_adapter=False), None)
        return [original, member]

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

    def before_norm(self, hidden: Tensor) -> Tensor:
        """The final norm's weights are gathered, and the head's with them."""
        return self._enter_tail(hidden) if self.joins_norm else hidden

    def before_head(self, hidden: Tensor) -> Tensor:
        """The head's weights are gathered where they have not come with the final norm's."""
        return hidden if self.joins_norm or self.reads_head else self._enter_tail(hidden)

    def before_chunk(self, chunk: Tensor) -> Tensor:
        """The head alone is called once for each chunk of a text; what has come with the norm is there for all."""
        return chunk if self.joins_norm else self.before_head(chunk)

    def read_head(self, weight: Parameter) -> Tensor:
        """The head's weight for a loss that does not call the head: gathered by itself, in the dtype of its shards.

        Source: trl 1.16, trainer/utils.py, ``add_fused_lm_head`` (``weight.full_tensor()``).
        """
        if not self.reads_head:
            return weight
        tape, ranks = self.traffic.tape, self.traffic.ranks
        tape.operation = "the head, gathered by the loss"
        rows = self.model.vocab_size
        padded = ranks * ceil_div(rows, ranks) * (weight.elements // rows)
        whole = tape.new(padded, member_width(self.setup, is_adapter=False), WEIGHTS)
        return tape.view(whole, weight.elements)

    def _enter_tail(self, hidden: Tensor) -> Tensor:
        return hidden if self.tied or not self.active else self.tail.enter(hidden)

    def after_head(self, logits: Tensor) -> Tensor:
        """The head's weights stay for backward."""
        return self.tail.leave(logits) if self.active and not self.reads_head else logits

    def end_forward(self, loss: Tensor) -> Tensor:
        """The model returns: its gradient calls for what was gathered last before it."""
        if self.active:
            if self.root.members:
                loss = self.root.leave(loss)
            self.traffic.end_forward()
        return loss

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
            for stack in (".gate_up_proj", ".up_proj", ".down_proj"):
                name = name.removesuffix(stack)
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
