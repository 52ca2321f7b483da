"""FSDP2: what is gathered before a layer runs, what is freed after it, and how gradients are reduced.

A group of parameters is gathered into one buffer, and each weight is copied out of it. In forward the buffer lives
until the next group is gathered. In backward each group prefetches the one below before it starts. When a group's
gradients are complete, its weights are freed, and its gradients are copied into one buffer, which is reduced and
scattered. That buffer lives until the next group's. The shard's gradient remains, in the stored dtype.

Groups outlive a pass. Every forward call is noted in one order for all passes, those under ``torch.no_grad`` too, so
that backward asks for what was called before the last call. After two passes with gradients a group's are complete,
and are reduced, in the first pass's backward; until then the second's lie whole.

Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py (``unshard``, ``wait_for_unshard``,
``post_backward``, ``finalize_backward``), _fsdp_collectives.py (``foreach_all_gather``, ``foreach_reduce``),
_fsdp_state.py (``_root_post_backward_final_callback``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from estimator.tape.operators import call_back
from estimator.tape.tape import COMMUNICATION, GRADIENTS, WEIGHTS, Leaf, Storage, Tape, Tensor
from estimator.values.arithmetic import allocated

CUT = "own part of a gradient"
"""The operator that copies it."""


class ShardedParameter(NamedTuple):
    """One parameter of a group."""

    shard_elements: int
    """Elements of the largest shard."""
    gathered_width: int
    """Bytes per element when gathered."""
    stored_width: int
    """Bytes per element of the shard and its gradient."""
    leaf: Leaf | None
    """Where its gradient arrives; None if frozen."""
    own_gradient: int = 0
    """Bytes of this rank's part of it, where it is of all ranks' rows of an embedding (``tp_size``)."""


class Fsdp2Traffic:
    """State shared by the groups of one model: ranks, buffers in flight, and the order of the forward pass."""

    def __init__(
        self,
        tape: Tape,
        ranks: int,
        *,
        replicated: bool = False,
        offloads: bool = False,
        reduced_width: int = 0,
    ) -> None:
        self.tape = tape
        self.ranks = ranks
        self.reduced_width = reduced_width
        """Bytes per element of gradients that are reduced, at least; else as gathered."""
        self.replicated = replicated
        """Whether groups of ranks are replicas, so scattered gradients are also averaged between them."""
        self.offloads = offloads
        """Whether shards and their gradients are offloaded to the host."""
        self.order: list[Fsdp2Group] = []
        self.gathered: Storage | None = None
        """The buffer of the last gather in forward."""
        self.reduced: list[Storage] = []
        """Buffers of gradients being reduced; at most one between groups."""
        self.averaged: list[Storage] = []
        """Gradients averaged between replicas, kept until backward ends."""
        self.late: list[Fsdp2Group] = []
        """Groups whose inputs need no gradient, so they are reduced when backward ends."""

    def new(self, size: int, component: int = COMMUNICATION) -> Storage:
        """A new buffer of ``size`` bytes."""
        return Storage(self.tape, allocated(size), component)

    def end_forward(self) -> None:
        """Ends the model's forward: frees the buffer of the last gather."""
        self.tape.operation = "end of forward"
        self.gathered = None

    def end_backward(self) -> None:
        """Frees what lives until the end of backward."""
        for group in self.late:
            group.reduce()
        for group in self.order:
            group.pending = None
            group.free()
        self.averaged.clear()
        self.reduced.clear()
        self.late.clear()
        self.order.clear()


class Fsdp2Group:
    """Parameters that are gathered, freed and reduced together."""

    def __init__(
        self,
        traffic: Fsdp2Traffic,
        members: Sequence[ShardedParameter],
        *,
        reshards: bool,
        was_reduced: bool = False,
    ) -> None:
        self.traffic = traffic
        self.members = members
        self.reshards = reshards
        """Whether weights are freed after forward and gathered again for backward."""
        self.weights: list[Storage] = []
        self.pending: Storage | None = None
        self.places: list[int] = []
        """In the order of the forward passes, one for each call of the module."""
        self._has_shard = False
        """The shard's gradient is there already: what is reduced again is added to it."""
        trained = sum(m.shard_elements * m.stored_width for m in members if m.leaf is not None)
        if was_reduced and trained:  # in an earlier micro-step
            traffic.tape.shards.append(
                Storage.existing(traffic.tape, allocated(trained), GRADIENTS)
            )
            self._has_shard = True

    def gather(self) -> None:
        """Starts the all-gather, unless the weights are present or already being gathered."""
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
        # the only shard is copied: _fsdp_param_group.py, unshard
        self.pending = traffic.new(sum(sent) * traffic.ranks if traffic.ranks > 1 else 0)
        del copied

    def _copy_out(self) -> None:
        traffic = self.traffic
        traffic.tape.operation = "copy weights out of the all-gather"
        for member in self.members:
            size = member.shard_elements * traffic.ranks * member.gathered_width
            self.weights.append(traffic.new(size, WEIGHTS))

    def free(self) -> None:
        """Frees the gathered weights one by one."""
        while self.weights:
            del self.weights[0]

    def before_forward(self) -> None:
        """Gathers and waits. The previous group's buffer lives until the weights are copied out."""
        self.gather()
        if self.pending is not None:
            self._copy_out()
            self.traffic.gathered, self.pending = self.pending, None

    def after_forward(self) -> None:
        """Records the order, and frees the weights unless they stay for backward."""
        self.places.append(len(self.traffic.order))
        self.traffic.order.append(self)
        if self.reshards:
            self.free()

    def before_backward(self) -> None:
        """Gathers the weights unless prefetched, and prefetches the group below."""
        self.gather()
        if self.pending is not None:
            self._copy_out()
            self.pending = None
        place = self.places.pop() if self.places else 0
        if place:
            self.traffic.order[place - 1].gather()

    def reduce(self) -> None:
        """Frees the weights, copies the gradients into one buffer, reduces and scatters it, and keeps the shard's
        gradient.
        """
        if not self.members:
            return
        traffic = self.traffic
        tape = traffic.tape
        with_grad = [m for m in self.members if m.leaf is not None and m.leaf.grad is not None]
        gradients = list[Storage]()
        for member in with_grad:
            gradients.append(self._own_gradient(member))
            if member.leaf is not None:
                member.leaf.grad = None
        self.free()
        tape.operation = "copy gradients into the reduce-scatter"
        if traffic.reduced:
            del traffic.reduced[0]
        if not with_grad:
            return
        least = traffic.reduced_width
        shards = sum(m.shard_elements * max(m.gathered_width, least) for m in with_grad)
        traffic.reduced.append(traffic.new(shards * traffic.ranks))
        # foreach_reduce's loop variable refers to the last gradient until the function returns; a list is cleared from
        # its end
        while len(gradients) > 1:
            del gradients[-2]
        tape.operation = "reduce-scatter"
        scattered = traffic.new(shards)
        if traffic.replicated:
            traffic.averaged.append(scattered)
            tape.operation = "all-reduce"
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

    def _own_gradient(self, member: ShardedParameter) -> Storage:
        """The gradient of what the group has of a parameter: _fsdp_param.py, ``_get_grad_inner_tensor``."""
        assert member.leaf is not None
        assert member.leaf.grad is not None
        if not member.own_gradient:
            return member.leaf.grad
        self.traffic.tape.operation = CUT
        return self.traffic.new(member.own_gradient, GRADIENTS)

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
        return call_back(self.traffic.tape, x, lambda _: self.reduce())

    def leave(self, x: Tensor) -> Tensor:
        """The module's output: its gradient triggers the gather of the weights."""
        self.after_forward()
        return call_back(self.traffic.tape, x, lambda _: self.before_backward())
