"""A second model, of which nothing is trained: how each strategy holds it, and what its forward call gathers.

TRL hands it to the strategy. DDP and DeepSpeed's stages 1 and 2 leave it whole on every GPU. Stage 3 divides it, with
an engine and a trace of its own. FSDP 1 divides it by the policy of the trained model. FSDP 2 makes one group of it.

verl divides it layer by layer as the trained model, and its shards rest on the CPU.

Source: trl 1.16, models/utils.py, ``prepare_deepspeed`` and ``prepare_fsdp``; trainer/dpo_trainer.py, ``__init__``
(``prepare_model`` with ``evaluation_mode``).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import NamedTuple

from estimator.families.adapters import is_quantized
from estimator.families.block import Block
from estimator.families.modules import weight_shapes
from estimator.families.weights import buffer_bytes
from estimator.parallel.fsdp1 import (
    FlatUnit,
    flat_bytes,
    flat_parameters,
    gathered_width,
    shard_elements,
)
from estimator.parallel.fsdp1_hooks import Fsdp1Hooks
from estimator.parallel.fsdp2_hooks import Fsdp2Hooks
from estimator.parallel.hooks import Hooks
from estimator.parallel.sharding import (
    computed,
    fsdp_groups,
    member_width,
    shard_shape,
    sharded_weight_bytes,
    unmoved_weight_bytes,
)
from estimator.parallel.zero import frozen_part_bytes
from estimator.parallel.zero_hooks import ZeroHooks
from estimator.resident.model import weight_bytes
from estimator.tape.tape import COMMUNICATION, WEIGHTS, Storage, Tape, Tensor
from estimator.values.arithmetic import allocated, elements
from estimator.values.methods import Method
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, MixedPrecision, Model, Offload

AUTOCAST = MappingProxyType(
    {MixedPrecision.BF16: Dtype.BFLOAT16, MixedPrecision.FP16: Dtype.FLOAT16}
)
"""What each autocast computes in."""
NO_MODULE = "nothing"
"""Names no module of any family, so that no layer is adapted."""


def as_frozen(setup: TrainingSetup) -> TrainingSetup:
    """The setup of a model that is loaded as the trained one is, without adapters, and never trained.

    LLaMA-Factory casts what it trains to float32, and leaves this one in autocast's dtype. verl offloads it.

    Source: derived; trl 1.16, models/utils.py (``model.eval()``); verl 0.9.1, workers/engine/fsdp/transformer_impl.py,
    ``_build_fsdp_module`` (``CPUOffload`` where ``forward_only``); llamafactory 0.9.5, model/patcher.py
    (``compute_dtype``), model/adapter.py:313 (``is_trainable``).

    >>> as_frozen(TrainingSetup(gradient_checkpointing=True)).computation.gradient_checkpointing
    False
    """
    dtype = setup.precision.dtype
    if setup.task.given_loss.takes_whole_logits:
        dtype = AUTOCAST.get(setup.precision.mixed_precision, dtype)
    rests = setup.task.given_loss.is_verls and setup.mesh.strategy.is_fsdp
    return setup.replace(
        offload_param=Offload.CPU if rests else setup.mesh.offload_param,
        dtype=dtype,
        method=setup.adapters.method if setup.adapters.uses_adapters else Method.LORA,
        lora_target_modules=(NO_MODULE,),
        modules_to_save=None,
        use_dora=False,
        gradient_checkpointing=False,
        gradient_accumulation_steps=1,
    )


def frozen_hooks(tape: Tape, model: Model, setup: TrainingSetup, outer: Block, ranks: int) -> Hooks:
    """The hooks around the calls of a second model; ``setup`` as ``as_frozen`` gives it."""
    if setup.mesh.uses_fsdp1:
        return FrozenFsdp1Hooks(tape, model, setup, outer, ranks)
    if setup.mesh.strategy.is_fsdp and setup.task.given_loss.is_verls:
        return Fsdp2Hooks(tape, model, setup, outer, ranks, stays=False)
    if setup.mesh.strategy.is_fsdp:
        return FrozenFsdp2Hooks(tape, model, setup, outer, ranks)
    if setup.mesh.strategy.gathers_modules:
        return ZeroHooks(tape, model, setup, outer, ranks)
    return Hooks(tape, model, setup, outer, ranks)


def frozen_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of a second model that stay on a GPU between the steps; ``setup`` as ``as_frozen`` gives it.

    FSDP 1 never lets the root of a model go that does not go backward; ``fsdp_grad_op`` lets nothing go once gathered.

    Source: torch 2.13, distributed/fsdp/_runtime_utils.py, ``_post_forward_reshard``;
    _fully_shard/_fsdp_param_group.py, ``reshard``; DeepSpeed 0.19.6, runtime/zero/partition_parameters.py.
    """
    stays = setup.mesh.strategy.keeps_gathered
    if setup.mesh.uses_fsdp1:
        width = gathered_width(setup, is_adapter=False)
        whole = [
            allocated(
                shard_elements(unit.sizes, width, setup.mesh.shard_ranks)
                * setup.mesh.shard_ranks
                * width
            )
            * unit.alike
            for unit in flat_parameters(model, setup.adapters)
        ]
        gathered = sum(whole) if stays else whole[0]
        rests = setup.mesh.offload_param is not Offload.NONE
        flat = 0 if rests else flat_bytes(model, setup, adapters=False)
        return flat + buffer_bytes(model) + gathered
    if setup.mesh.strategy.is_fsdp:
        members = _members(model, setup, setup.mesh.shard_ranks)
        gathered = sum(member.whole_bytes for member in members)
        rests = setup.mesh.offload_param is not Offload.NONE
        shards = (
            unmoved_weight_bytes(model, setup.adapters)
            if rests
            else sharded_weight_bytes(model, setup)
        )
        return shards + buffer_bytes(model) + (gathered if stays else 0)
    if setup.mesh.strategy.gathers_modules:
        return frozen_part_bytes(model, setup) + buffer_bytes(model)
    return weight_bytes(model, computed(setup))


def reference_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of a reference model of its own, per GPU; 0 where the loss asks none, or the policy without its adapters.

    It is loaded by the policy's name and in the policy's dtype.

    Source: trl 1.16, trainer/dpo_trainer.py:909-927 (``setdefault("dtype", self.model.dtype)``).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> reference_bytes(TINY_LLAMA, TrainingSetup(objective="dpo")) == weight_bytes(TINY_LLAMA, TrainingSetup())
    True
    """
    return frozen_bytes(model, as_frozen(setup)) if setup.keeps_reference else 0


class FrozenFsdp1Hooks(Fsdp1Hooks):
    """The units of a second model under FSDP1: its root is gathered from its first call on (``frozen_bytes``)."""

    def enter_model(self, ids: Tensor) -> None:
        """The root is there."""

    def layer(self, index: int, block: Block) -> FlatUnit | None:
        """The unit of one layer, unless it is there, too."""
        if self.setup.mesh.strategy.keeps_gathered:
            return None
        return super().layer(index, block)


class _Member(NamedTuple):
    """Weights of one shape in the one group of a model."""

    sent: int
    """Elements of the shards."""
    whole_bytes: int
    """Of the weights, gathered."""


def _members(model: Model, setup: TrainingSetup, ranks: int) -> Iterator[_Member]:
    width = member_width(computed(setup), is_adapter=False)
    for group in fsdp_groups(model, setup.adapters):
        for module in group.modules:
            shapes = weight_shapes(module)
            for shape in shapes[1:] if is_quantized(module, setup.adapters) else shapes:
                shard = elements(shard_shape(shape, ranks))
                yield _Member(group.alike * shard, group.alike * allocated(shard * ranks * width))


class FrozenFsdp2Hooks(Hooks):
    """A second model under FSDP2: one group, gathered whole for a call, and freed after it.

    The buffer of the gather lives until the call returns.

    Source: trl 1.16, models/utils.py, ``prepare_fsdp`` (``fully_shard`` of the root alone); torch 2.13,
    distributed/fsdp/_fully_shard/_fsdp_state.py, ``_post_forward`` (``all_gather_state``).
    """

    def __init__(
        self, tape: Tape, model: Model, setup: TrainingSetup, outer: Block, ranks: int
    ) -> None:
        super().__init__(tape, model, setup, outer, ranks)
        self._ranks = ranks
        self._members = list(_members(model, setup, ranks))
        self._stored = member_width(setup, is_adapter=False)
        self._width = member_width(computed(setup), is_adapter=False)
        self._offloads = setup.mesh.offload_param is not Offload.NONE
        self._stays = setup.mesh.strategy.keeps_gathered
        self._gathered: list[Storage] = []

    def enter_model(self, ids: Tensor) -> None:
        """The whole model is gathered, and its weights are copied out of the buffer."""
        if self._stays:
            return
        tape = self.tape
        tape.operation = "all-gather"
        sent = sum(member.sent for member in self._members) * self._width
        cast = None
        if self._stored != self._width or self._offloads:
            cast = Storage(tape, allocated(sent), COMMUNICATION)
        self._gathered = [Storage(tape, allocated(sent * self._ranks), COMMUNICATION)]
        del cast
        whole = sum(member.whole_bytes for member in self._members)
        self._gathered.append(Storage(tape, whole, WEIGHTS))

    def leave_model(self, loss: Tensor, outputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The weights go, and the buffer after them."""
        while self._gathered:
            self._gathered.pop()
        return loss, outputs
