"""DeepSpeed's ZeRO: what a rank holds under each stage, and what becomes of weights and gradients on the tape.

Every trained weight is kept in 16 bits, and once more in float32 in flat parts, one a rank, which the optimizer steps.
Buckets are as Trainer fills ``auto``: reduce h², prefetch 0.9 h², persistence threshold 10 h elements (h: hidden size).

Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, stage3.py and partitioned_param_coordinator.py, as each says;
transformers 5.23, integrations/deepspeed.py, ``trainer_config_finalize``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from estimator.arithmetic import allocated, ceil_div
from estimator.memory.optimizer import States, Trainable, optimizer_states, step_transient
from estimator.memory.sharding import adapter_shapes, trained_shapes
from estimator.memory.tape import (
    COMMUNICATION,
    GRADIENTS,
    TEMPORARIES,
    WEIGHTS,
    Leaf,
    Parameter,
    Storage,
    Tape,
    Tensor,
)
from estimator.memory.weights import FLOAT32_BYTES, elements, quantized_bytes
from estimator.parameters import (
    Module,
    is_quantized,
    layer_groups,
    layer_modules,
    outer_modules,
    weight_shapes,
)
from estimator.specs import MixedPrecision, Model, Strategy, TrainingSetup

SUB_GROUP = 10**9
"""Elements of a rank that are stepped together: DeepSpeed 0.19.6, runtime/zero/config.py, ``sub_group_size``."""
REUSE_DISTANCE = 10**9
"""Elements within which a gathered weight that is used again is kept: the same file, ``max_reuse_distance``."""


class Whole(NamedTuple):
    """One tensor of the model, and whether it is trained."""

    elements: int
    trained: bool


def width(setup: TrainingSetup) -> int:
    """Bytes per element of the weights that are computed with: 2 under bf16 or fp16, else 4.

    Source: DeepSpeed 0.19.6, runtime/engine.py, ``_cast_module_mixed_precision`` and ``__check_params``.
    """
    return FLOAT32_BYTES if setup.mixed_precision is MixedPrecision.NO else 2


def _modules(model: Model) -> Iterable[tuple[Module, int]]:
    for module in outer_modules(model):
        yield module, 1
    for lowest, count in layer_groups(model):
        for module in layer_modules(model, lowest):
            yield module, count


def _tensors(module: Module, setup: TrainingSetup) -> list[Whole]:
    """Of one module: its own weights that are not packed, and its adapters."""
    own = weight_shapes(module)[1 if is_quantized(module, setup) else 0 :]
    return [
        *(Whole(elements(shape), not setup.uses_adapters) for shape in own),
        *(Whole(elements(shape), True) for shape in adapter_shapes(module, setup)),
    ]


def trained_elements(model: Model, setup: TrainingSetup) -> list[int]:
    """Elements of every trained tensor, in the order of the model: embedding, layers, head.

    Source: torch 2.13, ``Module.named_parameters``.
    """
    outer = outer_modules(model)
    first = [elements(shape) for shape in trained_shapes(outer[0], setup)]
    last = [elements(shape) for module in outer[1:] for shape in trained_shapes(module, setup)]
    layers = [
        elements(shape)
        for lowest, count in layer_groups(model)
        for shape in [s for m in layer_modules(model, lowest) for s in trained_shapes(m, setup)]
        * count
    ]
    return [*first, *layers, *last]


def partition(model: Model, setup: TrainingSetup) -> int:
    """Elements of one rank's part of all trained weights, laid end to end and padded to twice the ranks.

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py (``nccl_start_alignment_factor``).
    """
    total = sum(trained_elements(model, setup))
    return 2 * ceil_div(total, 2 * setup.num_gpus)


def gradients_in_partition(model: Model, setup: TrainingSetup) -> int:
    """Elements of the gradients that the fullest rank of stages 1 and 2 keeps: whole tensors, where its part cuts them.

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``copy_grads_in_partition``.
    """
    sizes, part = trained_elements(model, setup), partition(model, setup)
    ends = list(accumulate(sizes))
    most = max(sizes)
    for boundary in (0, *ends[:-1]):
        # the rank whose part holds this boundary, and the one that starts behind it
        for rank in (boundary // part, max(0, boundary - 1) // part):
            start, end = rank * part, min((rank + 1) * part, ends[-1])
            low = bisect_right(ends, start)
            high = bisect_left(ends, end)
            most = max(most, ends[high] - (ends[low] - sizes[low]))
    return most


class Held(NamedTuple):
    """Bytes that one rank holds, by what they are."""

    weights: int
    gradients: int
    """That are there at the step."""
    standing: int
    """Of these, what is there already when a micro-step begins."""
    transient: int
    states: States
    """With the float32 weights that the optimizer steps."""
    communication: int


def held(model: Model, setup: TrainingSetup) -> Held:
    """Bytes of one rank under ZeRO, the fullest.

        stage 1, 2   2 N + (4 + k) N/W + gradients       stage 3   (2 + 2 + 4 + k) N/W + small weights whole
        N: trained weights; W: ranks; k: the optimizer's states in float32, 8 for AdamW

    At the step the part's gradients are laid end to end, 2 N/W, and turned into float32, 4 N/W; at stage 3 by groups
    of 10⁹ elements.

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``step``; stage3.py, ``_prepare_fp32_grad_for_sub_group``.
    """
    ranks, size = setup.num_gpus, width(setup)
    stage3 = setup.strategy is Strategy.ZERO3
    whole = [(t, n) for module, n in _modules(model) for t in _tensors(module, setup)]
    packed = sum(n * _packed(module, setup) for module, n in _modules(model))
    trained = sum(n * t.elements for t, n in whole if t.trained)
    frozen = sum(n * t.elements for t, n in whole if not t.trained)
    hidden = model.hidden_size
    if stage3:
        part = sum(n * ceil_div(t.elements, ranks) for t, n in whole if t.trained)
        rest = sum(n * ceil_div(t.elements, ranks) for t, n in whole if not t.trained)
        small = sum(n * t.elements for t, n in whole if t.elements <= 10 * hidden)
        weights = size * (part + rest + small) + packed
        stepped = min(part, SUB_GROUP)
        gradients = standing = allocated(size * part)
        # float32 weights are their own masters: stage3.py, _create_fp32_partitions
        master = 0 if size == FLOAT32_BYTES else FLOAT32_BYTES * part
    else:
        part = stepped = partition(model, setup)
        weights = size * (trained + frozen) + packed
        gradients = allocated(size * gradients_in_partition(model, setup))
        standing = 0
        if setup.gradient_accumulation_steps > 1:
            standing = size * trained if setup.strategy is Strategy.ZERO1 else gradients
        master = FLOAT32_BYTES * part
    flat = [Trainable((part,), FLOAT32_BYTES, 1)]
    of_step = [Trainable((stepped,), FLOAT32_BYTES, 1)]
    states = optimizer_states(flat, setup.optim, setup.optim_state_dtype)
    transient = max(
        stepped * (size + (FLOAT32_BYTES if size < FLOAT32_BYTES else 0)),
        stepped * FLOAT32_BYTES + step_transient(of_step, setup.optim, setup.optim_state_dtype),
    )
    return Held(
        weights=weights,
        gradients=gradients,
        standing=standing,
        transient=transient,
        states=States(states.resident_bytes + master, states.paged_bytes),
        communication=size * hidden**2 if stage3 else 0,
    )


def _packed(module: Module, setup: TrainingSetup) -> int:
    if not is_quantized(module, setup):
        return 0
    count = elements(weight_shapes(module)[0])
    return quantized_bytes(count, double_quant=setup.bnb_4bit_use_double_quant)


def kept_for_backward(model: Model, setup: TrainingSetup) -> int:
    """Bytes of the weights that stage 3 holds when forward ends, as backward wants them soon; the highest layer's not.

    The trace runs up to the head and down again: a weight x elements below the top is used again after 2 x elements,
    and after 3 x where checkpoints replay the layers. It is kept if that is less than 10⁹.

    Error: whole layers are counted; one more may be kept in part.
    Source: DeepSpeed 0.19.6, runtime/zero/partitioned_param_coordinator.py, ``__params_to_release``.
    """
    outer = {module.name: module for module in outer_modules(model)}
    head = elements(weight_shapes(outer["lm_head"])[0]) if "lm_head" in outer else 0
    layer = sum(
        t.elements for m in layer_modules(model) for t in _tensors(m, setup) if t.elements > 0
    )
    passes = 3 if setup.gradient_checkpointing else 2
    above = max(0, REUSE_DISTANCE - 2 * head)
    layers = min(model.num_hidden_layers, above // (passes * layer))
    return width(setup) * max(0, layers - 1) * layer


class Bucket:
    """Gradients on their way to their rank: small ones are copied into a buffer, larger ones wait for the next."""

    def __init__(self, tape: Tape, setup: TrainingSetup, hidden: int, kept: int) -> None:
        self.tape = tape
        self.stage = setup.strategy
        self.limit = hidden**2
        self.size = self.limit * width(setup)
        self.kept_bytes = kept
        """Of the gradients that this rank keeps at stages 1 and 2."""
        self.buffer: Storage | None = None
        self.kept: Storage | None = None
        self.elements = 0
        self.waiting: list[Storage] = []

    def take(self, parameter: Parameter) -> None:
        """Take over the gradients of a parameter."""
        count = parameter.elements
        if parameter.node is not None and parameter.node.leaf is not None:
            parameter.node.leaf.arrived = lambda leaf: self._arrive(leaf, count)

    def _arrive(self, leaf: Leaf, elements: int) -> None:
        tape = self.tape
        if self.buffer is None and self.stage is not Strategy.ZERO3:
            tape.operation = "bucket"
            self.buffer = Storage(tape, allocated(self.size), COMMUNICATION)
        if self.stage is Strategy.ZERO1 or leaf.grad is None:
            return
        gradient, leaf.grad = leaf.grad, None
        if self.elements + elements > self.limit:
            self.flush()
        if elements > self.limit:
            self.waiting.append(gradient)
        self.elements += elements

    def flush(self) -> None:
        """Reduce what has come together, and let it go."""
        tape = self.tape
        tape.operation = "reduction of gradients"
        if self.stage is Strategy.ZERO3:
            # reduce_scatter_coalesced lays the tensors end to end by rank: runtime/comm/coalesced_collectives.py
            size = sum(storage.bytes for storage in self.waiting) or self.size
            copied = Storage(tape, size, TEMPORARIES) if self.elements else None
            del copied
        elif self.kept is None and self.kept_bytes:
            self.kept = Storage(tape, self.kept_bytes, GRADIENTS)
        self.waiting.clear()
        self.elements = 0

    def end(self) -> None:
        """Backward is over."""
        self.flush()
        self.buffer = None


class Fetched:
    """Weights of one layer, or of the embedding or the head, that stage 3 gathers where they are needed."""

    def __init__(self, tape: Tape, size: int, *, stays: bool) -> None:
        self.tape = tape
        self.size = allocated(size)
        self.members = (size,)
        self.stays = stays
        """From forward to backward, being used again soon."""
        self.beside: Storage | None = None
        """Weights of layers below that are kept for the same reason; gone when this one's backward is over."""
        self.weights: Storage | None = None

    def fetch(self) -> None:
        """Gather what is not there."""
        if self.weights is None:
            self.tape.operation = "all-gather"
            self.weights = Storage(self.tape, self.size, WEIGHTS)

    def release(self) -> None:
        """Let the gathered weights go."""
        self.weights = self.beside = None

    def enter(self, x: Tensor) -> Tensor:
        """The module's input: its weights go when its gradient has come."""
        self.fetch()
        return call_back(self.tape, x, self.release) if x.requires_grad else x

    def leave(self, x: Tensor) -> Tensor:
        """The module's output: its gradient calls for the weights."""
        if not self.stays:
            self.release()
        return call_back(self.tape, x, self.fetch)


def call_back(tape: Tape, x: Tensor, call: Callable[[], None]) -> Tensor:
    """The same tensor behind a node that changes nothing and calls when the gradient comes by."""

    def backward(_: Tape, gradients: list[Tensor | None]) -> Sequence[Tensor | None]:
        call()
        return [gradients[0]]

    operation = tape.operation
    out = tape.record("gather", tape.view(x), [x], backward)
    tape.operation = operation
    return out
