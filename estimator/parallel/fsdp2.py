"""FSDP2 on a tape: what is gathered before a layer runs, what is freed after it, how gradients are reduced.

A group of parameters is gathered into one buffer, from which each weight is copied out; in forward the buffer lives
until the next group's is there. In backward each group asks for the one below it before it begins. When a group's
gradients are complete its weights go, and its gradients are copied into one buffer that is reduced and scattered;
that buffer lives until the next group's. What stays is the shard's gradient in the stored dtype.

Groups outlive a pass. Every forward call is noted in one order for all passes, those under ``torch.no_grad`` too, so
that backward asks for what was called before the last call. After two passes with gradients a group's are complete,
and are reduced, in the first pass's backward; until then the second's lie whole.

Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py (``unshard``, ``wait_for_unshard``,
``post_backward``, ``finalize_backward``), _fsdp_collectives.py (``foreach_all_gather``, ``foreach_reduce``),
_fsdp_state.py (``_root_post_backward_final_callback``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from estimator.tape.tape import COMMUNICATION, GRADIENTS, WEIGHTS, Leaf, Storage, Tape, Tensor
from estimator.values.arithmetic import allocated


class ShardedParameter(NamedTuple):
    """One parameter of a group."""

    shard_elements: int
    """Of the largest shard."""
    gathered_width: int
    """Bytes per element when gathered."""
    stored_width: int
    """Bytes per element of the shard and its gradient."""
    leaf: Leaf | None
    """Where its gradient arrives; None if frozen."""


class Fsdp2Traffic:
    """What the groups of one model share: ranks, buffers in flight, and the order of the forward pass."""

    def __init__(
        self, tape: Tape, ranks: int, *, replicated: bool = False, offloads: bool = False
    ) -> None:
        self.tape = tape
        self.ranks = ranks
        self.replicated = replicated
        """Groups of ranks are replicas, so that what was scattered is averaged between them."""
        self.offloads = offloads
        """Shards and their gradients rest on the host."""
        self.order: list[Fsdp2Group] = []
        self.gathered: Storage | None = None
        """The buffer of the last gather in forward."""
        self.reduced: list[Storage] = []
        """Buffers of gradients that are being reduced; one at most between groups."""
        self.averaged: list[Storage] = []
        """What replicas average, kept until backward ends."""
        self.late: list[Fsdp2Group] = []
        """Groups whose inputs need no gradient: they are reduced when backward ends."""

    def new(self, size: int, component: int = COMMUNICATION) -> Storage:
        """A fresh buffer of so many bytes."""
        return Storage(self.tape, allocated(size), component)

    def end_forward(self) -> None:
        """The model's forward returns: the last gather's buffer goes."""
        self.tape.operation = "end of forward"
        self.gathered = None

    def end_backward(self) -> None:
        """What only the end of backward sets free."""
        for group in self.late:
            group.reduce()
        for group in self.order:
            group.pending = None
            group.places.clear()
            group.free()
        self.averaged.clear()
        self.reduced.clear()
        self.late.clear()
        self.order.clear()


class Fsdp2Group:
    """Parameters that are gathered, freed and reduced together."""

    def __init__(
        self, traffic: Fsdp2Traffic, members: Sequence[ShardedParameter], *, reshards: bool
    ) -> None:
        self.traffic = traffic
        self.members = members
        self.reshards = reshards
        """Freed after forward, and gathered again for backward."""
        self.weights: list[Storage] = []
        self.pending: Storage | None = None
        self.places: list[int] = []
        """In the order of the forward passes, one for each call of the module."""
        self._has_shard = False
        """The shard's gradient is there already: what is reduced again is added to it."""

    def gather(self) -> None:
        """Send the shards around, if the weights are neither here nor on their way."""
        if self.weights or self.pending is not None or not self.members:
            return
        traffic = self.traffic
        traffic.tape.operation = "all-gather"
        sent = [m.shard_elements * m.gathered_width for m in self.members]
        copied = traffic.new(
            sum(
                size
                for m, size in zip(self.members, sent, strict=True)
                if m.stored_width != m.gathered_width or traffic.offloads
            )
        )
        self.pending = traffic.new(sum(sent) * traffic.ranks)
        del copied

    def _copy_out(self) -> None:
        traffic = self.traffic
        traffic.tape.operation = "weights out of the all-gather"
        for member in self.members:
            size = member.shard_elements * traffic.ranks * member.gathered_width
            self.weights.append(traffic.new(size, WEIGHTS))

    def free(self) -> None:
        """Let the gathered weights go, one after the other."""
        while self.weights:
            del self.weights[0]

    def before_forward(self) -> None:
        """Gather and wait; the buffer of the group before lives until the weights are copied out."""
        self.gather()
        if self.pending is not None:
            self._copy_out()
            self.traffic.gathered, self.pending = self.pending, None

    def after_forward(self) -> None:
        """Note the order, and free the weights unless backward finds them still here."""
        self.places.append(len(self.traffic.order))
        self.traffic.order.append(self)
        if self.reshards:
            self.free()

    def before_backward(self) -> None:
        """Gather what was not prefetched, and prefetch what comes below."""
        self.gather()
        if self.pending is not None:
            self._copy_out()
            self.pending = None
        place = self.places.pop() if self.places else 0
        if place:
            self.traffic.order[place - 1].gather()

    def reduce(self) -> None:
        """Free the weights; copy the gradients into one buffer, reduce and scatter it; keep the shard's."""
        traffic = self.traffic
        tape = traffic.tape
        with_grad = [m for m in self.members if m.leaf is not None and m.leaf.grad is not None]
        gradients = [m.leaf.grad for m in with_grad if m.leaf is not None]
        for member in with_grad:
            if member.leaf is not None:
                member.leaf.grad = None
        self.free()
        tape.operation = "reduce-scatter"
        if traffic.reduced:
            del traffic.reduced[0]
        if not with_grad:
            return
        shards = sum(m.shard_elements * m.gathered_width for m in with_grad)
        traffic.reduced.append(traffic.new(shards * traffic.ranks))
        # foreach_reduce's loop still has a name for the last gradient until it returns
        while len(gradients) > 1:
            del gradients[0]
        scattered = traffic.new(shards)
        if traffic.replicated:
            traffic.averaged.append(scattered)
        stored = sum(m.shard_elements * m.stored_width for m in with_grad)
        if stored == shards:
            scattered.become(GRADIENTS)
            kept = scattered
        else:
            kept = traffic.new(stored, GRADIENTS)
        del scattered
        gradients.clear()
        if not (traffic.offloads or self._has_shard):
            tape.shards.append(kept)
            self._has_shard = True

    # -- around a module ----------------------------------------------------------------------------------------

    def enter(self, x: Tensor) -> Tensor:
        """The module's input: weights are there from now on, and reduced when its gradient is.

        Under ``torch.no_grad`` nothing is registered: _fsdp_param_group.py, ``_register_post_backward_hook``.
        """
        self.before_forward()
        if not self.traffic.tape.records:
            return x
        if not x.requires_grad:
            if self not in self.traffic.late:
                self.traffic.late.append(self)
            return x
        return _call_back(self.traffic.tape, x, self.reduce)

    def leave(self, x: Tensor) -> Tensor:
        """The module's output: its gradient calls for the weights."""
        self.after_forward()
        return _call_back(self.traffic.tape, x, self.before_backward)


def _call_back(tape: Tape, x: Tensor, call: Callable[[], None]) -> Tensor:
    """The same tensor behind a node that changes nothing and calls when the gradient comes by."""

    def backward(_: Tape, gradients: list[Tensor | None]) -> list[Tensor | None]:
        call()
        return [gradients[0]]

    operation = tape.operation
    out = tape.record("gather", tape.view(x), [x], backward)
    tape.operation = operation
    return out
