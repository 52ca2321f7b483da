"""The tape: a stand-in for autograd whose tensors have a size and a lifetime, and no values.

PyTorch frees a tensor when its last reference goes: a Python name, a node's saved tensor, an input buffer of the
engine, a ``.grad``. So does CPython. Architectures are therefore written here as the same short programs that
transformers runs, on tensors whose :class:`Storage` counts itself in when made and out when collected. What is
alive at which moment then need not be derived: it happens.

The rules of the engine are PyTorch's:

* ready nodes run latest-created first, gradient accumulation before all others
  (torch/csrc/autograd/engine.cpp, ``CompareNodeTaskTime``);
* two gradients for one input are summed in place only if nobody else holds the first
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
from typing import NamedTuple
from weakref import ref

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


class Event(NamedTuple):
    """Bytes that come (sign 1) or go (sign -1)."""

    sign: int
    size: int
    component: int
    operation: str
    """The operator that made them."""
    device: int
    """The GPU that they lie on, from 0; always 0 where one GPU does all."""


class Place(NamedTuple):
    """Where in a step something happens."""

    forward: int = 0
    """In which pass: forward calls are counted, and backward is where the call was."""
    stack: int = 0
    """In which stack of layers of which model."""
    layer: int | None = None
    """At which played layer of it; None outside the layers."""


class Mark(NamedTuple):
    """Where a stretch of the step begins: one layer's forward or backward, or a stage outside the layers."""

    phase: Phase
    stage: str
    """What the stretch is: ``embedding``, ``layer``, ``head``, …"""
    place: Place
    start: int
    """Index of its first event."""
    operation: str


class WholeWeight(NamedTuple):
    """A weight that a module needs whole."""

    key: str
    elements: int
    width: int
    trained: bool


class Call(NamedTuple):
    """A module begins or has ended its work: where DeepSpeed's hooks gather weights and let them go."""

    segment: int
    """Index of the mark that it comes after."""
    start: int
    """How many events come before it."""
    module: str
    """Its name in the layer, or in the model outside the layers."""
    weights: tuple[WholeWeight, ...]
    begins: bool
    is_forward: bool
    """Of the forward pass or of a checkpoint's replay."""


class Storage:
    """Bytes on the GPU, alive as long as this object is."""

    __slots__ = ("bytes", "component", "device", "operation", "tape")

    def __init__(self, tape: Tape, size: int, component: int) -> None:
        self.tape = tape
        self.device = tape.device
        self.bytes = size
        self.component = component
        self.operation = tape.operation
        self._write(1)

    @classmethod
    def existing(cls, tape: Tape, size: int, component: int) -> Storage:
        """Bytes that were there before the step began and are counted elsewhere, until they go."""
        storage = cls.__new__(cls)
        storage.tape, storage.bytes, storage.component = tape, size, component
        storage.operation, storage.device = "", tape.device
        return storage

    def __del__(self) -> None:
        self._write(-1)

    def _write(self, sign: int) -> None:
        self.tape.events.append(
            Event(sign, self.bytes, self.component, self.operation, self.device)
        )

    def keep(self, times: int | None) -> None:
        """From now on what backward needs; ``times``: so many alike."""
        if self.component != TEMPORARIES:
            return
        self._write(-1)
        self.component = ACTIVATIONS
        if times is not None:
            self.bytes *= times
        self._write(1)

    def become(self, component: int) -> None:
        """Count these bytes under another name from now on."""
        self._write(-1)
        self.component = component
        self._write(1)


class Tensor:
    """A number of elements of a width in bytes, on a storage that views share."""

    __slots__ = ("elements", "is_view", "node", "output", "requires_grad", "storage", "width")

    def __init__(
        self, elements: int, width: int, storage: Storage | None, *, is_view: bool = False
    ) -> None:
        self.elements = elements
        self.width = width
        self.storage = storage
        """None: resident all the time and counted elsewhere, as weights are."""
        self.is_view = is_view
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
        self.saved: list[Storage | Placeholder | None] = []
        self.kept: Storage | None = None
        """An attribute of the node, of which neither the engine nor a checkpoint knows."""
        self.edges: list[tuple[Node, int] | None] = []
        self.buffers: list[Tensor | None] = [None]
        self.waiting = 0
        self.leaf: Leaf | None = None


class Leaf:
    """Where a trained tensor's gradient is kept once it has arrived."""

    __slots__ = ("arrived", "component", "grad", "has_grad", "variable")

    def __init__(
        self, component: int, *, has_grad: bool = False, variable: Storage | None = None
    ) -> None:
        self.component = component
        self.variable = variable
        """The leaf itself, which its node keeps alive; None for a parameter, which is counted elsewhere."""
        self.has_grad = has_grad
        """A gradient exists already (accumulation) and is counted elsewhere: the new one is added into it."""
        self.grad: Storage | None = None
        self.arrived: Callable[[Leaf], None] | None = None
        """Who takes the gradient over."""

    def take(self) -> Storage | None:
        """The gradient, which is then the caller's."""
        grad, self.grad = self.grad, None
        return grad


def leaf_node(leaf: Leaf) -> Node:
    """The node that accumulates into a leaf: runs as soon as all its gradients have arrived."""
    node = Node("gradient accumulation", sys.maxsize, "", Place())
    node.leaf = leaf
    return node


class Parameter(Tensor):
    """A weight: counted elsewhere, but its gradient is born and kept on the tape."""

    __slots__ = ("key",)

    def __init__(
        self, key: str, elements: int, width: int, *, trainable: bool, has_grad: bool = False
    ) -> None:
        super().__init__(elements, width, None)
        self.key = key
        self.requires_grad = trainable
        if trainable:
            self.node = leaf_node(Leaf(GRADIENTS, has_grad=has_grad))


class Placeholder:
    """Stands for a tensor that a checkpointed block did not save."""

    __slots__ = ("__weakref__", "frame", "index")

    def __init__(self, frame: Frame, index: int) -> None:
        self.frame = frame
        self.index = index


class StopReplayError(Exception):
    """The last placeholder is filled: nothing after it needs to be computed again."""


class Frame:
    """A checkpointed block: its function, its inputs, and what its replay filled."""

    __slots__ = ("filled", "placeholders", "replay")

    def __init__(self, replay: Callable[[], Tensor]) -> None:
        self.replay = replay
        self.placeholders: list[ref[Placeholder]] = []
        """Dead where the graph that asked for it died in the forward pass: DoRA's dense product."""
        self.filled: list[Storage | None] | None = None


class Tape:
    """Plays one forward and backward pass and writes down what came and went; ``Program`` reads it."""

    def __init__(
        self,
        *,
        autocast_width: int | None,
        records: bool = True,
        is_reentrant: bool = False,
        is_float16: bool = False,
        is_deepspeeds: bool = False,
    ) -> None:
        self.is_deepspeeds = is_deepspeeds
        """Linear layers are DeepSpeed's own function."""
        self.records = records
        """Whether nodes are made and tensors saved for backward; False under ``torch.no_grad``."""
        self.is_reentrant = is_reentrant
        """Checkpoints are of the older kind, which builds no graph in the forward pass."""
        self.is_float16 = is_float16
        """What has 16 bits is float16, not bfloat16."""
        self.attached: list[tuple[Place, Storage]] = []
        """What nodes keep as attributes, by place: it goes with the graph, after the whole backward pass."""
        self._replayed: list[Storage] | None = None
        """The same of a reentrant checkpoint's replay, whose graph goes when it has been run."""
        self.events: list[Event] = []
        self.marks: list[Mark] = []
        self.calls: list[Call] = []
        """Of modules whose weights stage 3 gathers; ``parallel.zero3_coordinator`` says which are there then."""
        self.autocast_width = autocast_width
        """Bytes per element that autocast computes in; None without autocast."""
        self.autocast_active = autocast_width is not None
        self.cast_cache: dict[str, tuple[Place, Tensor]] = {}
        self.operation = ""
        self.device = 0
        """The GPU that works; tensors are made there, and a node's gradients where the node was made."""
        self.stage = ""
        self.place = Place()
        self.passes = 0
        """That have begun."""
        self.enter(Phase.FORWARD, "embedding")
        self.unpacked: list[Storage | None] = []
        """What the running node saved, as its backward function holds it: dead when the engine checks its gradients,
        though the node holds its own references longer, unless a checkpoint's replay made them."""
        self.shards: list[Storage] = []
        """Gradients of shards, which outlive the step."""
        self._alike: int | None = None
        self._sequence = 0
        self._leaves: list[Leaf] = []
        self._forward_frame: Frame | None = None
        self._replay_frame: Frame | None = None

    def begin_pass(self, phase: Phase, stack: int = 0) -> None:
        """A model is called, whose layers are this stack; the first pass begins with the batch."""
        place = Place(self.passes, stack)
        if (phase, place) != (self.marks[-1].phase, self.marks[-1].place):
            self.go_to(phase, "embedding", place)
        self.passes += 1
        self.autocast_active = self.autocast_width is not None

    def enter(self, phase: Phase, stage: str, layer: int | None = None) -> None:
        """End the current stretch and begin another in the same pass."""
        self.go_to(phase, stage, self.place._replace(layer=layer))

    def go_to(self, phase: Phase, stage: str, place: Place) -> None:
        """End the current stretch and begin another anywhere."""
        self.stage, self.place = stage, place
        self.marks.append(Mark(phase, stage, place, len(self.events), self.operation))

    @contextmanager
    def grad(self, *, enabled: bool) -> Iterator[None]:
        """``torch.set_grad_enabled``: without it no node is made and nothing is saved."""
        records, self.records = self.records, self.records and enabled
        try:
            yield
        finally:
            self.records = records

    @contextmanager
    def without_autocast(self) -> Iterator[None]:
        """Operators inside one that autocast has already seen to: it casts an operator's inputs once, at the door."""
        active, self.autocast_active = self.autocast_active, False
        try:
            yield
        finally:
            self.autocast_active = active

    def call(
        self, module: str, weights: tuple[WholeWeight, ...], *, begins: bool, is_forward: bool
    ) -> None:
        """Note that a module begins or has ended its work."""
        segment = len(self.marks) - 1
        self.calls.append(Call(segment, len(self.events), module, weights, begins, is_forward))

    @contextmanager
    def standing_for(self, times: int | None) -> Iterator[None]:
        """One round of a loop for so many alike: each tensor that it is first to save counts as many times.

        What a round leaves for backward adds up, what it only uses does not; so the rounds before and behind, played
        one by one, are as high as they are, and this one is no higher than its last in the forward pass, or its first
        in backward. ``times`` may be 0.
        """
        before, self._alike = self._alike, times
        try:
            yield
        finally:
            self._alike = before

    # -- tensors ------------------------------------------------------------------------------------------------

    def new(self, elements: int, width: int, component: int = TEMPORARIES) -> Tensor:
        """A fresh tensor."""
        return Tensor(elements, width, Storage(self, allocated(elements * width), component))

    def view(self, x: Tensor, elements: int | None = None) -> Tensor:
        """Another tensor on the same storage, without a node of its own."""
        return Tensor(
            x.elements if elements is None else elements, x.width, x.storage, is_view=True
        )

    def begin(
        self,
        name: str,
        inputs: Sequence[Tensor],
        backward: Backward,
        save: Sequence[Tensor | None] = (),
    ) -> Node | None:
        """A node for the coming output, if any input requires a gradient.

        What its backward needs of the inputs is saved now, before the output is allocated: a replay that fills its
        last placeholder here never makes the output.
        """
        if not (self.records and any(x.requires_grad for x in inputs)):
            return None
        self._sequence += 1
        node = Node(name, self._sequence, self.stage, self.place, self.device)
        node.backward = backward
        node.edges = [_edge(x) for x in inputs]
        self._keep(node, save)
        return node

    def finish(self, node: Node | None, output: Tensor, save: Sequence[Tensor] = ()) -> Tensor:
        """Hang the output on its node and save what backward needs of the outputs."""
        if node is not None:
            self._keep(node, save)
            output.requires_grad = True
            output.node = node
        return output

    def record(
        self,
        name: str,
        output: Tensor,
        inputs: Sequence[Tensor],
        backward: Backward,
        save: Sequence[Tensor] = (),
    ) -> Tensor:
        """A node for an output that exists, where backward needs nothing of the inputs."""
        return self.finish(self.begin(name, inputs, backward), output, save)

    def _keep(self, node: Node, save: Sequence[Tensor | None]) -> None:
        for tensor in save:
            if tensor is not None:
                node.saved.append(self._save(tensor))

    def _save(self, tensor: Tensor) -> Storage | Placeholder | None:
        frame = self._replay_frame
        if frame is not None:
            assert frame.filled is not None
            asked_for = frame.placeholders[len(frame.filled)]() is not None
            frame.filled.append(tensor.storage if asked_for else None)
            if tensor.storage is not None:
                tensor.storage.keep(self._alike)
            if len(frame.filled) == len(frame.placeholders):
                raise StopReplayError
            # the replay's own graph holds it too, as long as somebody holds a tensor of that: Gemma 4's shared keys
            return tensor.storage
        frame = self._forward_frame
        if frame is not None:
            placeholder = Placeholder(frame, len(frame.placeholders))
            frame.placeholders.append(ref(placeholder))
            return placeholder
        if tensor.storage is not None:
            tensor.storage.keep(self._alike)
        return tensor.storage

    def attach(self, node: Node | None, x: Tensor) -> None:
        """Keep a tensor as an attribute of a node, as an autograd function does that sets ``ctx.something``.

        Hooks on saved tensors never see it, so a checkpoint that is not reentrant does not drop it; and the engine,
        which releases what was saved once a node has run, leaves it until the graph goes with the loss.
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

    def checkpoint(self, block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Play a block without saving; only its inputs stay, until backward plays it again."""
        if self.is_reentrant:
            return self._checkpoint_reentrant(block, *inputs)
        frame = Frame(lambda: block(*inputs))
        for x in inputs:
            if x.storage is not None and x.storage.component == TEMPORARIES:
                x.storage.become(ACTIVATIONS)
        self._forward_frame = frame
        y = block(*inputs)
        self._forward_frame = None
        return y

    def _checkpoint_reentrant(self, block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """One node for the whole block, which is played without a graph and saves its inputs alone.

        Its backward plays the block again to the end, and runs the graph of that by itself: until then the block's
        input, its output and the output's gradient are held.
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

        node = self.begin("checkpoint", inputs, backward, inputs)
        records, self.records = self.records, False
        y = block(*inputs)
        self.records = records
        return self.finish(node, y)

    @contextmanager
    def _replaying(self) -> Iterator[None]:
        """Under autocast as the forward pass was, with a cache of its own."""
        cache, self.cast_cache = self.cast_cache, {}
        autocast, self.autocast_active = self.autocast_active, self.autocast_width is not None
        try:
            yield
        finally:
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
                unpacked.append(saved)
        return unpacked

    # -- backward -----------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor) -> None:
        """Run the graph from the loss down, as torch's engine does."""
        root = loss.node
        assert root is not None
        loss.node = None
        self.go_to(Phase.BACKWARD, root.stage, root.place)
        root.buffers[0] = self.new(1, 4)
        self._run_graph(root)

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
        self.unpacked = self._unpack(node)
        self.operation = node.name
        result = list(backward(self, buffers))
        del buffers, backward
        self.unpacked, node.saved = [], []
        return result

    def _accumulate(self, node: Node) -> None:
        leaf, gradient = node.leaf, node.buffers[0]
        node.buffers = [None]
        if leaf is None or gradient is None or leaf.has_grad:
            return
        leaf.grad = gradient.storage
        if leaf.grad is not None:
            leaf.grad.become(leaf.component)
        self._leaves.append(leaf)
        del gradient
        if leaf.arrived is not None:
            leaf.arrived(leaf)

    def _sum(self, first: Tensor, second: Tensor) -> Tensor:
        """Two gradients for one input: in place if the first has no other owner, else into a third tensor."""
        # sole owner: the tensor's own reference and getrefcount's argument
        if not first.is_view and first.storage is not None and sys.getrefcount(first.storage) == 2:
            return first
        return self.new(first.elements, first.width)


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
