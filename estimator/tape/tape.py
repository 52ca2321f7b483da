"""The tape: a stand-in for autograd whose tensors have sizes and lifetimes but no values.

PyTorch frees a tensor when its last reference goes: a Python name, a node's saved tensor, an input buffer of the
engine, a ``.grad``. CPython does the same. So each architecture is written as the short program that transformers
runs, on tensors whose :class:`Storage` records its own allocation and release. Lifetimes follow from running the
program; nothing derives them.

The engine follows PyTorch's rules (Source: torch 2.13):

* ready nodes run latest-created first, gradient accumulation before all others
  (torch/csrc/autograd/engine.cpp, ``CompareNodeTaskTime``);
* two gradients for one input are summed in place only if nothing else holds the first
  (torch/csrc/autograd/input_buffer.cpp, ``accumulate``);
* a leaf's gradient is stolen, not copied (torch/csrc/autograd/functions/accumulate_grad.h);
* a checkpointed block saves placeholders; the first one opened in backward replays the block, and the replay
  stops when the last placeholder is filled (torch/utils/checkpoint.py, ``_StopRecomputationError``).

Bytes are counted as ``torch.cuda.max_memory_allocated`` counts them: every storage rounded up to 512.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary, ref

from estimator.values.arithmetic import allocated
from estimator.values.specs import Component, Phase

COMPONENTS = tuple(Component)
_INDEX = {component: index for index, component in enumerate(COMPONENTS)}
WEIGHTS = _INDEX[Component.WEIGHTS]
ADAPTERS = _INDEX[Component.ADAPTERS]
GRADIENTS = _INDEX[Component.GRADIENTS]
ACTIVATIONS = _INDEX[Component.ACTIVATIONS]
LOGITS = _INDEX[Component.LOGITS]
TEMPORARIES = _INDEX[Component.TEMPORARIES]
COMMUNICATION = _INDEX[Component.COMMUNICATION]


MOST_READS = 4
"""Tensors that a compiled step computes a value from again and again before it writes it to memory.
torch 2.13, _inductor/config.py, ``realize_reads_threshold``."""
WRITTEN = (": dequantised weight", "attention: additive mask of this layer", "mean of the norm")
"""How operators' names end that a compiled step writes to memory, although they are no kernels of their own."""


class Event(NamedTuple):
    """Bytes allocated (sign 1) or freed (sign -1)."""

    sign: int
    size: int
    component: int
    operation: str
    """The operator that allocated them."""
    device: int
    """Index of the GPU that holds them; always 0 on a single GPU."""
    storage: int = 0
    """Number of the storage that they are; 0 for what was allocated before the step."""


_event: Callable[[type[Event], tuple[int, int, int, str, int, int]], Event] = tuple.__new__


class Place(NamedTuple):
    """A position in a step."""

    forward: int = 0
    """Index of the forward pass; backward belongs to the pass that built its graph."""
    stack: int = 0
    """Index of the stack of layers; each model has its own."""
    layer: int | None = None
    """Index of the layer among those played; None outside the layers."""


class Mark(NamedTuple):
    """Start of a segment of the step: one layer's forward or backward, or a stage outside the layers."""

    phase: Phase
    stage: str
    """``embedding``, ``layer``, ``head``, …"""
    place: Place
    start: int
    """Index of its first event."""
    operation: str


class WholeWeight(NamedTuple):
    """A weight that a module needs unsharded."""

    key: str
    elements: int
    width: int
    trained: bool


class CallMark(NamedTuple):
    """A module's call begins or returns: the points where DeepSpeed's hooks gather and release weights."""

    segment: int
    """Index of the mark before it."""
    start: int
    """Number of events before it."""
    module: str
    """The module's name within the layer; outside the layers, within the model."""
    weights: tuple[WholeWeight, ...]
    begins: bool
    is_forward: bool
    """In the forward pass or in a checkpoint's replay."""

    @property
    def unplaced(self) -> CallMark:
        """The same call without its place on the tape and its weights' elements."""
        weights = tuple(weight._replace(elements=0) for weight in self.weights)
        return self._replace(segment=0, start=0, weights=weights)


class Scratch(NamedTuple):
    """What a kernel allocates for itself, at a place on the tape."""

    start: int
    """Number of events before it."""
    rule: Callable[..., tuple[int, ...]]
    """Bytes of its temporaries, from these numbers and the card (``estimator.tape.scratch``)."""
    numbers: tuple[int, ...]
    device: int


class Storage:
    """Bytes on the GPU, allocated while this object lives."""

    __slots__ = (
        "__weakref__",
        "bytes",
        "component",
        "device",
        "narrow",
        "number",
        "operation",
        "sources",
        "tape",
    )

    def __init__(
        self, tape: Tape, size: int, component: int, sources: list[Storage] | None = None
    ) -> None:
        self.tape = tape
        self.sources = sources
        """None: allocated. Else what a compiled step computes it from wherever it is read, which lives as long."""
        self.device = tape.device
        self.bytes = size
        self.component = component
        self.narrow: Storage | None = None
        """The same values in a narrower dtype, if these are a cast of them."""
        self.operation = tape.operation
        tape.storages += 1
        self.number = tape.storages
        if sources is None:
            self._write(1)

    @classmethod
    def existing(cls, tape: Tape, size: int, component: int) -> Storage:
        """Bytes allocated before the step and counted elsewhere; the tape records only their release."""
        storage = cls.__new__(cls)
        storage.sources, storage.narrow = None, None
        storage.tape, storage.bytes, storage.component = tape, size, component
        storage.operation, storage.device, storage.number = "", tape.device, 0
        return storage

    def __del__(self) -> None:
        if self.sources is None:
            self._write(-1)

    def allocate(self) -> None:
        """Write it to memory: a kernel that cannot be fused reads it, or it leaves the graph."""
        if self.sources is not None:
            self._write(1)
            self.sources = None

    @property
    def read(self) -> list[Storage]:
        """What a fused kernel that needs it reads."""
        return [self] if self.sources is None else self.sources

    def _write(self, sign: int) -> None:
        # as Event(…), which takes three times as long
        self.tape.events.append(
            _event(
                Event,
                (sign, self.bytes, self.component, self.operation, self.device, self.number),
            )
        )

    def keep(self, times: int | None) -> None:
        """Count as an activation saved for backward; ``times``: how many equal tensors this one stands for."""
        if self.sources is not None:
            self._keep_sources(times)
            return
        if self.component != TEMPORARIES:
            return
        self._write(-1)
        self.component = ACTIVATIONS
        if times is not None:
            self.bytes *= times
        self._write(1)

    def _keep_sources(self, times: int | None) -> None:
        """Save what it is computed from; or itself, if that is less: one tensor instead of several."""
        assert self.sources is not None
        several = sum(source.component == TEMPORARIES for source in self.sources) > 1
        if several and not self.tape.is_replaying:  # whose graph is backward's own, and is not cut
            least = self.narrow or self
            least.allocate()
            if least is self:
                self.keep(times)
                return
            self.sources = [least]
        for source in self.sources:
            source.keep(times)

    def become(self, component: int) -> None:
        """Count these bytes under another component from now on."""
        if self.sources is not None and component == LOGITS:
            self.component = component
            return
        self.allocate()
        self._write(-1)
        self.component = component
        self._write(1)


class Tensor:
    """``elements`` numbers of ``width`` bytes each, on a storage that views share."""

    __slots__ = (
        "elements",
        "is_permuted",
        "is_view",
        "node",
        "output",
        "requires_grad",
        "storage",
        "width",
    )

    def __init__(
        self, elements: int, width: int, storage: Storage | None, *, is_view: bool = False
    ) -> None:
        self.elements = elements
        self.width = width
        self.storage = storage
        """None: resident throughout and counted elsewhere, as weights are."""
        self.is_view = is_view
        self.is_permuted = False
        """Its dimensions lie in another order than it names them: not contiguous."""
        self.requires_grad = False
        self.node: Node | None = None
        self.output = 0
        """Which of the node's outputs this is."""


Backward = Callable[["Tape", list["Tensor | None"]], Sequence["Tensor | None"]]


class Node:
    """One entry of the graph: how to turn output gradients into input gradients."""

    __slots__ = (
        "backward",
        "buffers",
        "device",
        "edges",
        "is_kernel",
        "kept",
        "leaf",
        "name",
        "place",
        "saved",
        "sequence",
        "stage",
        "waiting",
    )

    def __init__(self, name: str, sequence: int, stage: str, place: Place, device: int = 0) -> None:
        self.name = name
        self.device = device
        self.sequence = sequence
        self.stage = stage
        self.place = place
        self.backward: Backward | None = None
        self.saved: list[Storage | OnHost | Placeholder | None] = []
        self.kept: Storage | None = None
        """A tensor kept as an attribute of the node, unknown to the engine and to checkpoints."""
        self.edges: list[tuple[Node, int] | None] = []
        self.buffers: list[Tensor | None] = [None]
        self.waiting = 0
        self.leaf: Leaf | None = None
        self.is_kernel = True
        """Of a compiled step: it is a kernel of its own, which reads and writes memory."""


SUM_OF_GRADIENTS = "sum of a weight's gradients"
"""The operator where a weight that is read twice has its gradients added up."""


class Leaf:
    """Holds a trained tensor's accumulated gradient (its ``.grad``)."""

    __slots__ = ("arrived", "component", "grad", "has_grad", "identity", "variable")

    def __init__(
        self, component: int, *, has_grad: bool = False, variable: Storage | None = None
    ) -> None:
        self.component = component
        self.variable = variable
        """The leaf's storage, kept alive by its node; None for a parameter, which is counted elsewhere."""
        self.has_grad = has_grad
        """A gradient from an earlier micro-batch exists and is counted elsewhere; the new one is added to it."""
        self.grad: Storage | None = None
        self.identity = object()
        """Outlives the leaf where something is kept under it."""
        self.arrived: Callable[[Leaf], None] | None = None
        """Hook called when the gradient has been accumulated."""

    def take(self) -> Storage | None:
        """Return the gradient and give up ownership of it."""
        grad, self.grad = self.grad, None
        return grad


def leaf_node(leaf: Leaf) -> Node:
    """A leaf's accumulation node: runs as soon as all gradients for the leaf have arrived."""
    node = Node("gradient accumulation", sys.maxsize, "", Place())
    node.leaf = leaf
    return node


class Parameter(Tensor):
    """A weight. Its own bytes are counted elsewhere; its gradient is allocated on the tape."""

    __slots__ = ("gradient_elements", "key")

    def __init__(
        self, key: str, elements: int, width: int, *, trainable: bool, has_grad: bool = False
    ) -> None:
        super().__init__(elements, width, None)
        self.key = key
        self.gradient_elements = elements
        """Of what a lookup's backward makes: more where a rank has part of the rows, and gradients of all."""
        self.requires_grad = trainable
        if trainable:
            self.node = leaf_node(Leaf(GRADIENTS, has_grad=has_grad))


class Placeholder:
    """Stands for a tensor that a checkpointed block did not save."""

    __slots__ = ("__weakref__", "frame", "index")

    def __init__(self, frame: Frame, index: int) -> None:
        self.frame = frame
        self.index = index


class OnHost:
    """A saved tensor that was copied to the host; the bytes are those that it takes on the GPU again."""

    __slots__ = ("bytes", "number")

    def __init__(self, size: int, number: int) -> None:
        self.bytes = size
        self.number = number
        """Which of the saved tensors it is, where TRL's hooks count them; else 0."""


class SavedTensorHooks(Protocol):
    """What happens to a tensor that is saved for backward, as with ``torch.autograd.graph.saved_tensors_hooks``."""

    disabled: bool
    """Tensors are saved as they are, as inside a nested context without hooks."""
    left_over: list[Tensor]
    """What the hooks still hold when the step ends."""

    def pack(self, tensor: Tensor) -> Storage | OnHost | None:
        """Called when a tensor is saved: returns what the graph keeps of it."""

    def unpack(self, kept: OnHost) -> Storage:
        """Called when a node of backward reads the tensor: returns it on the GPU."""

    def begin_node(self) -> None:
        """Called before a node of backward reads what it saved."""

    def end_node(self) -> None:
        """Called when the node has run."""

    def end(self) -> None:
        """Called when backward has ended."""


class HostCopy(NamedTuple):
    """Bytes copied to the host, where they stay until backward fetches them."""

    segment: int
    """Index of the mark before it."""
    bytes: int


class StopReplayError(Exception):
    """The last placeholder is filled, so the rest of the block need not be recomputed."""


class Frame:
    """A checkpointed block: the function that recomputes it, its placeholders, and the recomputed tensors."""

    __slots__ = ("attention", "filled", "placeholders", "replay")

    def __init__(self, replay: Callable[[], Tensor]) -> None:
        self.replay = replay
        self.attention: list[list[Tensor]] = []
        """Outputs of each attention kernel, which a selective checkpoint keeps, the next to be read first."""
        self.placeholders: list[ref[Placeholder]] = []
        """A reference is dead if its graph was freed during the forward pass, as that of DoRA's dense product is."""
        self.filled: list[Storage | None] | None = None


class Tape:
    """Plays one forward and backward pass and records every allocation and release; ``Program`` reads them."""

    _allocates = True
    """Whether new tensors are written to memory; else they are parts of fused kernels."""
    _usual = True
    """The same between operators: whether the model's call is over, or was never compiled."""
    _only: Storage | None = None
    """The only tensor that the running operator reads."""
    left_over = 0
    """Bytes that stay after backward until the next, as ``Offloading.left_over``."""
    _replayed: list[Storage] | None = None
    """Tensors kept as node attributes by a reentrant checkpoint's replay, whose graph is freed once it has run."""
    storages = 0
    """Storages made so far."""
    device = 0
    """The GPU in use: new tensors are allocated on it, gradients on the GPU of their node."""
    operation = ""
    stage = ""
    passes = 0
    """Number of passes begun."""
    _alike: int | None = None
    _sequence = 0
    _forward_frame: Frame | None = None
    _replay_frame: Frame | None = None

    def __init__(
        self,
        *,
        autocast_width: int | None,
        records: bool = True,
        is_reentrant: bool = False,
        offloads_checkpoints: bool = False,
        keeps_attention: bool = False,
        saved_tensor_hooks: Callable[[Tape], SavedTensorHooks] | None = None,
        is_float16: bool = False,
        is_deepspeeds: bool = False,
        is_compiled: bool = False,
    ) -> None:
        self.is_compiled = is_compiled
        """The step is one graph forward and one backward, as ``torch.compile`` makes them."""
        self.masks: WeakKeyDictionary[Storage, Tensor] = WeakKeyDictionary()
        """Of a compiled step: the additive mask made of a boolean one, which all layers share."""
        self._reads: list[Storage] = []
        """What the operator reads whose tensors are being made."""
        self.held: list[Storage] = []
        """Of a compiled step: gradients that are added to those of earlier micro-batches once the graph has run."""
        self.is_deepspeeds = is_deepspeeds
        """Linear layers use DeepSpeed's autograd function."""
        self.records = records
        """Whether nodes are made and tensors saved for backward; False under ``torch.no_grad``."""
        self.is_reentrant = is_reentrant
        """Checkpoints are reentrant: the older kind, which builds no graph in the forward pass."""
        self.offloads_checkpoints = offloads_checkpoints
        """The inputs of checkpointed blocks are copied to the host."""
        self.keeps_attention = keeps_attention
        """Checkpoints are selective: they keep what attention kernels return, and their replay reads it."""
        self.saved_tensor_hooks = saved_tensor_hooks(self) if saved_tensor_hooks else None
        """TRL's hooks around a training step, which copy saved tensors to the host."""
        self.host_copies: list[HostCopy] = []
        self.is_float16 = is_float16
        """The 16-bit dtype is float16, not bfloat16."""
        self.attached: list[tuple[Place, Storage]] = []
        """Tensors kept as node attributes, by place; freed with the graph, after the whole backward pass."""
        self.first_products: dict[bool, int] = {}
        """Number of events before the first matrix product returns, in the forward pass and in autograd's thread: the
        moments at which cuBLAS gets its workspaces."""
        self.scratches: list[Scratch] = []
        """What kernels allocate for themselves, which is on no component's account."""
        self.events: list[Event] = []
        self.marks: list[Mark] = []
        self.calls: list[CallMark] = []
        """Calls of modules whose weights ZeRO-3 gathers; ``parallel.zero3_coordinator`` derives which are resident."""
        self.autocast_width = autocast_width
        """Bytes per element of autocast's compute dtype; None without autocast."""
        self.autocast_active = autocast_width is not None
        self.cast_cache: dict[object, tuple[Place, Tensor]] = {}
        """By a weight's key or a leaf's identity."""
        self.place = Place()
        self.enter(Phase.FORWARD, "embedding")
        self.unpacked: list[Storage | None] = []
        """Saved tensors of the running node, as its backward function holds them. Released when the engine validates
        the gradients; the node's own references last longer, unless a checkpoint's replay made the tensors."""
        self.shards: list[Storage] = []
        """Gradient shards, which outlive the tape."""
        self._leaves: list[Leaf] = []

    def close(self) -> None:
        """The step has been read: let go of gradients, which hold the tape as it holds them, and of its events."""
        self._leaves.clear()
        self.cast_cache.clear()
        self.events = []

    def begin_pass(self, phase: Phase, stack: int = 0) -> None:
        """Begin a forward call of the model whose layers are this stack. The first pass begins with the batch."""
        place = Place(self.passes, stack)
        if (phase, place) != (self.marks[-1].phase, self.marks[-1].place):
            self.go_to(phase, "embedding", place)
        self.passes += 1
        self.autocast_active = self.autocast_width is not None

    def enter(self, phase: Phase, stage: str, layer: int | None = None) -> None:
        """End the current segment and begin another in the same pass."""
        self.go_to(phase, stage, self.place._replace(layer=layer))

    def go_to(self, phase: Phase, stage: str, place: Place) -> None:
        """End the current segment and begin another at any place."""
        self.stage, self.place = stage, place
        self.marks.append(Mark(phase, stage, place, len(self.events), self.operation))

    @contextmanager
    def grad(self, *, enabled: bool) -> Iterator[None]:
        """``torch.set_grad_enabled``: where False, no node is made and nothing is saved."""
        records, self.records = self.records, self.records and enabled
        try:
            yield
        finally:
            self.records = records

    @contextmanager
    def without_autocast(self) -> Iterator[None]:
        """Operators inside another operator: autocast casts inputs once, at the outer operator."""
        active, self.autocast_active = self.autocast_active, False
        try:
            yield
        finally:
            self.autocast_active = active

    @contextmanager
    def keeping_saved(self) -> Iterator[None]:
        """The head, whose saved tensors TRL does not offload: activation_offloading.py, ``noop_ctx``."""
        if self.saved_tensor_hooks is None:
            yield
            return
        self.saved_tensor_hooks.disabled = True
        yield
        self.saved_tensor_hooks.disabled = False

    def call(
        self, module: str, weights: tuple[WholeWeight, ...], *, begins: bool, is_forward: bool
    ) -> None:
        """Record that a module's call begins or returns."""
        segment = len(self.marks) - 1
        self.calls.append(CallMark(segment, len(self.events), module, weights, begins, is_forward))

    @contextmanager
    def standing_for(self, times: int | None) -> Iterator[None]:
        """Let one iteration stand for ``times`` equal ones: each tensor that it is the first to save counts so often.

        Saved tensors add up over the iterations; temporaries do not. Iterations played before and after this one keep
        their exact heights. This one's height is that of the last it stands for in forward, of the first in backward.
        ``times`` may be 0.
        """
        before, self._alike = self._alike, times
        try:
            yield
        finally:
            self._alike = before

    # -- tensors ------------------------------------------------------------------------------------------------

    def new(self, elements: int, width: int, component: int = TEMPORARIES) -> Tensor:
        """Allocate a tensor; in a compiled step, name what is computed where it is read."""
        sources = None
        is_fused = not self._allocates and component in (TEMPORARIES, LOGITS)
        if is_fused and not self.operation.endswith(WRITTEN):
            sources = list(self._reads)
        size = allocated(elements * width)
        return Tensor(elements, width, Storage(self, size, component, sources))

    def scratch(self, rule: Callable[..., tuple[int, ...]], *numbers: int) -> None:
        """A kernel runs now that allocates temporaries by this rule of ``estimator.tape.scratch``."""
        self.scratches.append(Scratch(len(self.events), rule, numbers, self.device))

    def multiplied(self) -> None:
        """A matrix product runs now, whose output has been allocated."""
        in_backward = self.marks[-1].phase is Phase.BACKWARD
        self.first_products.setdefault(in_backward, len(self.events))

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Operators that a compiler leaves as they are: each reads and writes memory."""
        before = self._usual
        self.fuse(on=False)
        yield
        self.fuse(on=not before)

    def write(self, x: Tensor) -> None:
        """Write to memory what a compiled step has not, so that all layers are alike: inductor writes as much."""
        if x.storage is not None:
            x.storage.allocate()

    def fuse(self, *, on: bool) -> None:
        """A compiled model's call begins or ends; outside of it each operator is a kernel."""
        self._allocates = self._usual = not (on and self.is_compiled)

    def view(self, x: Tensor, elements: int | None = None) -> Tensor:
        """Another tensor on the same storage, without a node."""
        return Tensor(
            x.elements if elements is None else elements, x.width, x.storage, is_view=True
        )

    def begin(
        self,
        name: str,
        inputs: Sequence[Tensor],
        backward: Backward,
        save: Sequence[Tensor | None] = (),
        *,
        is_kernel: bool = False,
    ) -> Node | None:
        """Create the node of an output to come, if any input requires a gradient.

        Inputs that backward needs are saved now, before the output is allocated: a replay that fills its last
        placeholder here never allocates the output.
        """
        is_kernel = is_kernel or self._usual
        if self.is_compiled:
            self._read(inputs, is_kernel=is_kernel)
            self._allocates = is_kernel
        if not (self.records and any(x.requires_grad for x in inputs)):
            return None
        self._sequence += 1
        node = Node(name, self._sequence, self.stage, self.place, self.device)
        node.backward = backward
        node.is_kernel = is_kernel
        node.edges = [_edge(x) for x in inputs]
        self._keep(node, save)
        if self.is_compiled:  # what was saved just now may have been written
            self._read(inputs, is_kernel=is_kernel)
        return node

    def _read(self, inputs: Sequence[Tensor], *, is_kernel: bool) -> None:
        """Remember what the next output is computed from; a kernel's inputs lie in memory."""
        storages = [x.storage for x in inputs if x.storage is not None]
        if is_kernel:
            for storage in storages:
                storage.allocate()
        self._reads = list(dict.fromkeys(chain(*(storage.read for storage in storages))))
        self._only = storages[0] if len(storages) == 1 else None

    def finish(self, node: Node | None, output: Tensor, save: Sequence[Tensor] = ()) -> Tensor:
        """Attach the output to its node and save the outputs that backward needs."""
        if self.is_compiled:
            self._computed(output)
        if node is not None:
            self._keep(node, save)
            output.requires_grad = True
            output.node = node
        return output

    def _computed(self, output: Tensor) -> None:
        """The output of a fused operator is computed from what the operator reads, unless that is too much."""
        storage, reads = output.storage, self._reads
        self._reads, self._allocates = [], self._usual
        only, self._only = self._only, None
        if storage is None or storage.sources is None:
            return
        storage.sources = list(dict.fromkeys([*storage.sources, *reads]))
        is_cast = self.operation == "cast to float32" and only is not storage  # not a view of it
        if is_cast and only is not None and only.sources is not None:
            storage.narrow = only.narrow or only
        if len(storage.sources) > MOST_READS:
            (storage.narrow or storage).allocate()
            if storage.narrow is not None:
                storage.sources = [storage.narrow]

    def record(
        self,
        name: str,
        output: Tensor,
        inputs: Sequence[Tensor],
        backward: Backward,
        save: Sequence[Tensor] = (),
    ) -> Tensor:
        """Create a node for an existing output whose backward needs none of the inputs."""
        return self.finish(self.begin(name, inputs, backward), output, save)

    def _keep(self, node: Node, save: Sequence[Tensor | None]) -> None:
        for tensor in save:
            if tensor is not None:
                node.saved.append(self._save(tensor))

    def _save(self, tensor: Tensor) -> Storage | OnHost | Placeholder | None:
        frame = self._replay_frame
        if frame is not None:
            assert frame.filled is not None
            asked_for = frame.placeholders[len(frame.filled)]() is not None
            frame.filled.append(tensor.storage if asked_for else None)
            if tensor.storage is not None:
                tensor.storage.keep(self._alike)
            if len(frame.filled) == len(frame.placeholders):
                raise StopReplayError
            # the replay's own graph holds it too, while any tensor of that graph is alive: Gemma 4's shared keys
            return tensor.storage
        frame = self._forward_frame
        if frame is not None:
            placeholder = Placeholder(frame, len(frame.placeholders))
            frame.placeholders.append(ref(placeholder))
            return placeholder
        kept: Storage | OnHost | None = tensor.storage
        if self.saved_tensor_hooks is not None:
            kept = self.saved_tensor_hooks.pack(tensor)
        if isinstance(kept, Storage):
            kept.keep(self._alike)
        return kept

    def attach(self, node: Node | None, x: Tensor) -> None:
        """Keep a tensor as an attribute of a node, as an autograd function does by setting ``ctx.something``.

        Saved-tensor hooks never see it, so a non-reentrant checkpoint does not drop it. The engine releases only saved
        tensors once a node has run, so this one lives until the graph is freed with the loss.
        Source: torch 2.13, torch/csrc/autograd/python_function.cpp, ``PyNode::release_variables``;
        torch/utils/checkpoint.py.
        """
        if node is None or x.storage is None:
            return
        if x.storage.component == TEMPORARIES:
            x.storage.become(ACTIVATIONS)
        if self._replayed is not None:
            self._replayed.append(x.storage)
        elif self._replay_frame is None:
            self.attached.append((self.place, x.storage))
        else:
            node.kept = x.storage

    # -- checkpointing ------------------------------------------------------------------------------------------

    @property
    def is_replaying(self) -> bool:
        """Whether a checkpointed block is being computed again."""
        return self._replay_frame is not None

    def checkpoint(self, block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Play a block without saving its tensors; only its inputs stay until backward replays it."""
        for x in inputs:
            self.write(x)
        if self.is_reentrant and not self.is_compiled:  # dynamo makes both kinds the same
            return self._checkpoint_reentrant(block, *inputs)
        if (self.offloads_checkpoints or self.saved_tensor_hooks is not None) and self.records:
            frame = Frame(self._replay_from_host(block, inputs))
        else:
            frame = Frame(lambda: block(*inputs))
            for x in inputs:
                if x.storage is not None and x.storage.component == TEMPORARIES:
                    x.storage.become(ACTIVATIONS)
        self._forward_frame = frame
        y = block(*inputs)
        self._forward_frame = None
        return y

    def _replay_from_host(
        self, block: Callable[..., Tensor], inputs: Sequence[Tensor]
    ) -> Callable[[], Tensor]:
        """Copy the inputs to the host; the replay brings them back, and holds them while it runs.

        Source: torch 2.13, autograd/graph.py, ``save_on_cpu``; utils/checkpoint.py, ``_CheckpointFrame.get_inputs``;
        transformers 5.23, modeling_utils.py, ``_activation_checkpointing_enable``.
        """
        sizes = [(x.elements, x.width, x.requires_grad, self._pack_input(x)) for x in inputs]

        def replay() -> Tensor:
            again = []
            for elements, width, needed, kept in sizes:
                x = Tensor(elements, width, self._unpack_one(kept))
                if needed:
                    x.requires_grad, x.node = True, leaf_node(Leaf(TEMPORARIES))
                again.append(x)
            return block(*again)

        return replay

    def _pack_input(self, x: Tensor) -> Storage | OnHost | None:
        """Save a checkpoint's input; transformers' hooks around the checkpoint stand inside TRL's around the step."""
        if self.saved_tensor_hooks is not None and not self.offloads_checkpoints:
            kept = self.saved_tensor_hooks.pack(x)
            if kept is x.storage and kept is not None:
                kept.keep(None)
            return kept
        return None if x.storage is None else self.to_host(x.storage.bytes)

    def to_host(self, size: int, number: int = 0) -> OnHost:
        """Copy a saved tensor to the host."""
        self.host_copies.append(HostCopy(len(self.marks) - 1, size))
        return OnHost(size, number)

    def from_host(self, kept: OnHost) -> Storage:
        """Copy it back."""
        operation, self.operation = self.operation, "copied back from the host"
        storage = Storage(self, kept.bytes, ACTIVATIONS)
        self.operation = operation
        return storage

    def contiguous_copy(self, x: Tensor) -> Storage:
        """What is copied to the host of a tensor that is not contiguous."""
        operation, self.operation = self.operation, "contiguous copy for the host"
        storage = Storage(self, allocated(x.elements * x.width), ACTIVATIONS)
        self.operation = operation
        return storage

    def _unpack_one(self, kept: OnHost | Storage | None) -> Storage | None:
        if not isinstance(kept, OnHost):
            return kept
        if kept.number and self.saved_tensor_hooks is not None:
            return self.saved_tensor_hooks.unpack(kept)
        return self.from_host(kept)

    def attention_outputs(self, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
        """What an attention kernel returns, by elements and width: new tensors, or in the replay of a selective
        checkpoint those that the forward pass has kept.

        Source: trl 1.16, models/selective_activation_checkpointing.py, ``_build_policy_fn``; torch 2.13,
        utils/checkpoint.py, ``_CachingTorchDispatchMode``, ``_CachedTorchDispatchMode``.
        """
        if self.keeps_attention and self._replay_frame is not None:
            return self._replay_frame.attention.pop(0)
        tensors = [self.new(elements, width) for elements, width in sizes]
        if self.keeps_attention and self._forward_frame is not None:
            for x in tensors:
                if x.storage is not None:
                    x.storage.become(ACTIVATIONS)
            self._forward_frame.attention.append(
                [Tensor(x.elements, x.width, x.storage) for x in tensors]
            )
        return tensors

    def _checkpoint_reentrant(self, block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """One node for the whole block, played without a graph; it saves only the inputs.

        Its backward replays the block to the end and runs the graph of the replay on its own. Meanwhile the block's
        input, its output and the output's gradient stay allocated.
        Source: torch 2.13, torch/utils/checkpoint.py, ``CheckpointFunction``.
        """
        sizes = [(x.elements, x.width, x.requires_grad) for x in inputs]

        def backward(t: Tape, g: list[Tensor | None]) -> list[Tensor | None]:
            leaves = [Leaf(TEMPORARIES) for _ in sizes]
            again = []
            for leaf, (elements, width, needed), storage in zip(
                leaves, sizes, t.unpacked, strict=True
            ):
                inner = Tensor(elements, width, storage)
                if needed:
                    inner.requires_grad, inner.node = True, leaf_node(leaf)
                again.append(inner)
            t._replayed = []
            with t._replaying():
                y = block(*again)
            assert y.node is not None
            y.node.buffers[y.output] = g[0]
            t._run_graph(y.node)
            t._replayed = None
            return [
                Tensor(elements, width, leaf.take()) if needed else None
                for leaf, (elements, width, needed) in zip(leaves, sizes, strict=True)
            ]

        if self.offloads_checkpoints:
            node = self.begin("checkpoint", inputs, backward)
            if node is not None:
                node.saved += [self._pack_input(x) for x in inputs]
        else:
            node = self.begin("checkpoint", inputs, backward, inputs)
        records, self.records = self.records, False
        y = block(*inputs)
        self.records = records
        return self.finish(node, y)

    @contextmanager
    def _replaying(self) -> Iterator[None]:
        """Replay under the forward pass's autocast, with a separate weight cache."""
        cache, self.cast_cache = self.cast_cache, {}
        autocast, self.autocast_active = self.autocast_active, self.autocast_width is not None
        usual = self._usual
        self.fuse(on=True)
        try:
            yield
        finally:
            self.fuse(on=not usual)
            self.autocast_active = autocast
            self.cast_cache = cache

    def _replay(self, frame: Frame) -> None:
        frame.filled = []
        self._replay_frame = frame
        with self._replaying(), suppress(StopReplayError):
            frame.replay()
        self._replay_frame = None

    def _unpack(self, node: Node) -> list[Storage | None]:
        unpacked: list[Storage | None] = []
        for saved in node.saved:
            if isinstance(saved, Placeholder):
                frame = saved.frame
                if frame.filled is None:
                    self._replay(frame)
                assert frame.filled is not None
                unpacked.append(frame.filled[saved.index])
                frame.filled[saved.index] = None
            else:
                unpacked.append(self._unpack_one(saved))
        return unpacked

    # -- backward -----------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor) -> None:
        """Run the graph from the loss, as torch's engine does."""
        root = loss.node
        assert root is not None
        if loss.storage is not None:
            loss.storage.allocate()
        loss.node = None
        self.go_to(Phase.BACKWARD, root.stage, root.place)
        root.buffers[0] = self.new(1, 4)
        self._run_graph(root)
        self.held.clear()
        self.masks.clear()
        if self.saved_tensor_hooks is not None:
            self.saved_tensor_hooks.end()

    def _run_graph(self, root: Node) -> None:
        _count_dependencies(root)
        ready: list[tuple[int, int, Node]] = [(-root.sequence, 0, root)]
        ticket = 0
        while ready:
            node = heapq.heappop(ready)[2]
            gradients = self._run(node)
            edges, node.edges = node.edges, []
            for position, edge in enumerate(edges):
                if edge is None:
                    continue
                target, output = edge
                gradient = gradients[position] if gradients else None
                if gradients:
                    gradients[position] = None
                if gradient is not None:
                    pending = target.buffers[output]
                    target.buffers[output] = None
                    if pending is not None and target.leaf is not None:
                        self.operation = SUM_OF_GRADIENTS
                    target.buffers[output] = (
                        gradient if pending is None else self._sum(pending, gradient)
                    )
                    del pending
                del gradient
                target.waiting -= 1
                if target.waiting == 0:
                    ticket += 1
                    heapq.heappush(ready, (-target.sequence, ticket, target))
            del gradients, node, edges

    def _run(self, node: Node) -> list[Tensor | None]:
        if node.leaf is not None:
            self._accumulate(node)
            return []
        if (node.stage, node.place) != (self.stage, self.place):
            self.go_to(Phase.BACKWARD, node.stage, node.place)
        self.operation, self.device = node.name, node.device
        buffers, node.buffers = node.buffers, [None]
        backward, node.backward = node.backward, None
        assert backward is not None
        if self.saved_tensor_hooks is not None:
            self.saved_tensor_hooks.begin_node()
        self.unpacked = self._unpack(node)
        self.operation = node.name
        if self.is_compiled:
            self._allocates = node.is_kernel
            self._read_back(buffers, is_kernel=node.is_kernel)
        result = list(backward(self, buffers))
        self._reads, self._allocates = [], self._usual
        del buffers, backward
        self.unpacked, node.saved = [], []
        if self.saved_tensor_hooks is not None:
            self.saved_tensor_hooks.end_node()
        return result

    def _read_back(self, buffers: Sequence[Tensor | None], *, is_kernel: bool) -> None:
        """The same for a node of backward, whose kernel reads gradients and what was saved."""
        gradients = [x.storage for x in buffers if x is not None and x.storage is not None]
        saved = [storage for storage in self.unpacked if storage is not None]
        if is_kernel:
            for storage in (*gradients, *saved):
                storage.allocate()
            self._reads = []
        else:
            both = (*gradients, *saved)
            self._reads = list(dict.fromkeys(chain(*(storage.read for storage in both))))

    def _accumulate(self, node: Node) -> None:
        leaf, gradient = node.leaf, node.buffers[0]
        node.buffers = [None]
        if leaf is None or gradient is None:
            return
        if leaf.has_grad:
            if self.is_compiled and gradient.storage is not None:
                gradient.storage.allocate()
                self.held.append(gradient.storage)
            return
        leaf.grad = gradient.storage
        if leaf.grad is not None:
            leaf.grad.become(leaf.component)
        self._leaves.append(leaf)
        del gradient
        if leaf.arrived is not None:
            leaf.arrived(leaf)

    def _sum(self, first: Tensor, second: Tensor) -> Tensor:
        """Sum two gradients of one input: in place if the first has no other owner, else into a new tensor."""
        if self.is_compiled:
            return self._summed(first, second)
        # sole owner: the tensor's own reference and getrefcount's argument
        if not first.is_view and first.storage is not None and sys.getrefcount(first.storage) == 2:
            return first
        return self.new(first.elements, first.width)

    def _summed(self, first: Tensor, second: Tensor) -> Tensor:
        """A sum of gradients in a compiled step, which is computed where it is read, unless that reads too much."""
        storages = [x.storage for x in (first, second) if x.storage is not None]
        sources = dict.fromkeys(chain(*(storage.read for storage in storages)))
        sums = Storage(self, allocated(first.elements * first.width), TEMPORARIES, list(sources))
        if len(sums.read) > MOST_READS:
            sums.allocate()
        return Tensor(first.elements, first.width, sums)


def _edge(x: Tensor) -> tuple[Node, int] | None:
    return None if x.node is None else (x.node, x.output)


def _count_dependencies(root: Node) -> None:
    seen = {id(root)}
    stack = [root]
    while stack:
        for edge in stack.pop().edges:
            if edge is None:
                continue
            edge[0].waiting += 1
            if id(edge[0]) not in seen:
                seen.add(id(edge[0]))
                stack.append(edge[0])
