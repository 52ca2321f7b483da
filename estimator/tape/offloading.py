"""TRL's activation offloading: which saved tensors leave the GPU, and what its streams keep there for a while.

Every saved tensor of at least 1,024 bytes that is no parameter is copied to the host. A stash keeps those among the
last five saved tensors while their copies are under way, also for backward. A tensor that is saved again while the
stash has it stays on the GPU until backward reads it, so the input that q, k and v share is never gone.

In backward a tensor comes back when its node asks for it, and is freed when the next node that brings one back has
run; at once if its own node passed it on.

Source: trl 1.16, models/activation_offloading.py, ``OffloadActivations`` (torchtune's, with streams).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from estimator.tape.tape import OnHost, Storage, Tape, Tensor
from estimator.values.arithmetic import allocated

LEAST_BYTES = 1024
"""Smaller tensors stay: ``min_offload_size``."""
STASHED = 5
"""Saved tensors that the stash reaches back over: ``max_fwd_stash_size``."""
_OWN_REFERENCES = 2
"""Of a storage that the stash alone has: the stash's, and ``getrefcount``'s argument."""


@dataclass(slots=True)
class _Running:
    """A node of backward, and what it brought back."""

    own: list[int]
    before: tuple[int, ...] | None = None
    """What was back when it brought its first; None while it has brought nothing."""


class Offloading:
    """What is where, of the tensors saved for one backward pass."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._saved = 0
        """Tensors saved so far, parameters included: the number of the last."""
        self._stash: dict[int, Storage] = {}
        self._known: WeakKeyDictionary[Storage, int] = WeakKeyDictionary()
        """Storages that the stash has or that were saved again, with the number of the last time."""
        self._back: dict[int, Storage] = {}
        """Brought back in backward."""
        self._running: list[_Running] = []
        """The running nodes, each inside the one before: a reentrant checkpoint's runs a graph of its own."""
        self.left_over: list[Tensor] = []
        """Of the step before: the hooks hold the last node that brought a tensor back, and it what its graph reaches,
        the embedding's output and its gradient where these are a leaf's. Until a node brings back the next."""
        self.disabled = False
        """Inside the head, whose tensors stay."""

    def pack(self, tensor: Tensor) -> Storage | OnHost | None:
        """Save a tensor: what the graph keeps of it."""
        self._saved += 1
        number, storage = self._saved, tensor.storage
        size = tensor.elements * tensor.width
        if self.disabled or storage is None or size < LEAST_BYTES:
            return storage
        if storage in self._known:
            self._known[storage] = number
            return storage
        copy = storage
        if tensor.is_permuted:
            copy = self._tape.contiguous_copy(tensor)
        for old in [saved for saved in self._stash if saved <= number - STASHED]:
            self._forget(old)
        copy.keep(None)
        self._stash[number] = copy
        self._known[storage] = number
        return self._tape.to_host(allocated(size), number)

    def _forget(self, number: int) -> None:
        storage = self._stash.pop(number)
        if self._known.get(storage) == number:
            del self._known[storage]

    def begin_node(self) -> None:
        """A node of backward is about to read what it saved."""
        self._running.append(_Running([]))

    def unpack(self, kept: OnHost) -> Storage:
        """Bring a tensor back. Nodes inside another node free nothing that was back before them."""
        running = self._running[-1]
        self.left_over.clear()
        if running.before is None:
            running.before = tuple(self._back) if len(self._running) == 1 else ()
        if kept.number in self._stash:
            return self._stash[kept.number]
        storage = self._tape.from_host(kept)
        self._back[kept.number] = storage
        running.own.append(kept.number)
        return storage

    def end_node(self) -> None:
        """The node has run."""
        ended = self._running.pop()
        if ended.before is None:
            return
        for number in ended.own:
            if number in self._back and sys.getrefcount(self._back[number]) > _OWN_REFERENCES:
                del self._back[number]
        self._stash.clear()
        for number in ended.before:
            self._back.pop(number, None)

    def end(self) -> None:
        """Backward has ended."""
        self._stash.clear()
        self._back.clear()
