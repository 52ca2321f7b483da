"""A minimal tracer: counts every storage that PyTorch makes while a block runs, until it is collected.

On the meta device tensors have sizes and no values, so a step of a model of any size runs in seconds, anywhere.
docs/decisions/0004 says what this can show and what it cannot.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from estimator.values.arithmetic import allocated


class Storages(TorchDispatchMode):
    """While active: bytes alive now, and the maximum since ``restart``."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = 0
        self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}
        self._sizes: Counter[int] = Counter()

    def restart(self) -> int:
        """Returns the maximum since the last call and resets it."""
        highest, self.peak = self.peak, self.alive
        return highest

    def of_size(self, size: int) -> int:
        """How many storages of this many bytes are alive."""
        return self._sizes[allocated(size)]

    def note(self, found: object) -> None:
        """Counts the storages of an operator's outputs, once each."""
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf.untyped_storage())

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata  # the same C++ object for every tensor that shares it
        if key in self._known:
            return
        size = allocated(storage.nbytes())

        def gone(_: object) -> None:
            self.alive -= size
            self._sizes[size] -= 1
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self.alive += size
        self._sizes[size] += 1
        self.peak = max(self.peak, self.alive)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """Runs the operator and counts its outputs; a request for a value gets True or 1, as without padding.

        A tensor that wraps others, as torchao's do, runs its own operators first, and these are counted.
        """
        if any(hasattr(of, "__tensor_flatten__") for of in types):
            return NotImplemented
        if func is torch.ops.aten._local_scalar_dense.default:
            return True if args[0].dtype is torch.bool else 1
        made = func(*args, **(kwargs or {}))
        self.note(made)
        return made


class RealStorages(Storages):
    """For real tensors, which return real values; one that only waits for a collective has no bytes of its own."""

    def note(self, found: object) -> None:
        """Counts all but the tensors that wrap others."""
        if not hasattr(found, "__tensor_flatten__"):
            super().note(found)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """Runs the operator and counts its outputs."""
        if any(hasattr(of, "__tensor_flatten__") for of in types):
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        self.note(made)
        return made
