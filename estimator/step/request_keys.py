"""Keys, streams and a kernel's temporaries: what the requests of loading, of the step and of the optimizer share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from estimator.step.blocks import (
    GIVE_ALL,
    TAKE,
    Request,
)
from estimator.values.arithmetic import allocated

COMPUTE, GATHER, CAST, REDUCE = range(4)
"""Streams."""
AVERAGE = CAST
"""FSDP 2's for the average between replicas; FSDP 1 casts on it."""
HELD, SCRATCH, WORKSPACES, STEPPED = 0, 1, 2, 4
KEPT, BUCKETS, OLD, OLD_ROOT, WARM_UP, FREE_KEYS = range(5, 11)
"""Keys: what stays, a kernel's temporaries, cuBLAS's two workspaces, the optimizer's temporaries; gradients that
ZeRO-1 keeps of a step, DDP's buckets, shards of layers and of the root before FSDP 1 upcasts them;
the block with which transformers warms the cache up; and the first of all others."""


class Keys:
    """Gives keys that nothing else uses."""

    def __init__(self, first: int) -> None:
        self.first = first
        """The first that is not in use."""

    def new(self, count: int) -> int:
        """The first of so many new ones."""
        self.first += count
        return self.first - count


def taken(sizes: Iterable[int]) -> list[int]:
    """Bytes that a kernel's temporaries take, each; an empty one takes none."""
    return [allocated(size) for size in sizes if size]


def scratch(sizes: Iterable[int]) -> Iterator[Request]:
    """A kernel's temporaries, as ``taken``; freed when it has run."""
    yield from (Request(TAKE, SCRATCH, size) for size in sizes)
    yield Request(GIVE_ALL, SCRATCH)


class StorageKey(NamedTuple):
    """What a storage is known by."""

    key: int
    """-1: it was allocated before the step."""
    slot: int
    """Where its size is found, before it stands for several."""
