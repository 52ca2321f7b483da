"""PyTorch's caching allocator: which segments it requests from the driver, and which cached blocks it reuses.

A freed block stays cached. A request takes the smallest cached block of its stream that is large enough and splits off
the rest; free neighbours are merged. Cached segments are returned to the driver only when the GPU is full. So a process
reserves more than its tensors ever take at once; the difference is fragmentation.

Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``get_allocation_size``, ``get_free_block``, ``should_split``,
``free_block``, ``release_cached_blocks``; its defaults, without ``expandable_segments``.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from estimator.values.arithmetic import ceil_div

MIB = 2**20
SMALL = MIB
"""Bytes up to which a tensor comes from the small pool (``kSmallSize``)."""
SMALL_SEGMENT = 2 * MIB
"""Segment size of the small pool in bytes (``kSmallBuffer``)."""
LARGE_SEGMENT = 20 * MIB
"""Segment size in bytes for large requests below ``WHOLE`` (``kLargeBuffer``)."""
WHOLE = 10 * MIB
"""Bytes from which a request gets its own segment, rounded up to ``SMALL_SEGMENT`` (``kMinLargeAlloc``)."""
LEAST = 512
"""Bytes of the smallest block (``kMinBlockSize``)."""

Pool = list[tuple[int, int]]
"""Free blocks, sorted by size, then address."""


Block = tuple[int, int, Pool]
"""An allocated block: its address, its bytes, and its pool."""


def segment_bytes(size: int) -> int:
    """Bytes requested from the driver for an allocation of ``size`` bytes that no cached block fits.

    Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``get_allocation_size``.

    >>> [segment_bytes(size) // MIB for size in (512, 3 * MIB, 11 * MIB)]
    [2, 20, 12]
    """
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < WHOLE:
        return LARGE_SEGMENT
    return ceil_div(size, SMALL_SEGMENT) * SMALL_SEGMENT


class Allocator:
    """The blocks of one process on one GPU. Sizes are bytes, multiples of 512."""

    def __init__(self, limit: int | None = None) -> None:
        self.reserved = 0
        """Bytes of all segments."""
        self.highest = 0
        """Maximum of ``reserved`` so far."""
        self._limit = limit
        self._pools: dict[tuple[bool, int], Pool] = {}
        self._free_from: dict[int, int] = {}
        """Bytes of each free block, by its address."""
        self._free_to: dict[int, int] = {}
        """Address of each free block, by its end."""
        self._segments: dict[int, int] = {}
        self._next = 0

    def take(self, size: int, stream: int = 0) -> Block:
        """Allocate a block of ``size`` bytes."""
        is_small = size <= SMALL
        pool = self._pools.setdefault((is_small, stream), [])
        place = bisect_left(pool, (size,))
        if place < len(pool):
            held, address = pool.pop(place)
            del self._free_from[address], self._free_to[address + held]
        else:
            held, address = self._grow(size)
        rest = held - size
        if rest >= LEAST if is_small else rest > SMALL:
            self._put(pool, address + size, rest)
            held = size
        return address, held, pool

    def give(self, block: Block) -> None:
        """Free a block: cache it, merged with its free neighbours."""
        address, size, pool = block
        after = self._free_from.pop(address + size, None)
        if after is not None:
            self._drop(pool, address + size, after)
            size += after
        before = self._free_to.pop(address, None)
        if before is not None:
            joined = self._free_from.pop(before)
            pool.pop(bisect_left(pool, (joined, before)))
            address, size = before, size + joined
        self._put(pool, address, size)

    def _grow(self, size: int) -> tuple[int, int]:
        asked = segment_bytes(size)
        if self._limit is not None and self.reserved + asked > self._limit:
            self._release()
        address = self._next
        self._next += asked + 1  # a gap, so that blocks of two segments never merge
        self._segments[address] = asked
        self.reserved += asked
        self.highest = max(self.highest, self.reserved)
        return asked, address

    def _release(self) -> None:
        """Return every wholly free segment to the driver."""
        for pool in self._pools.values():
            for size, address in [it for it in pool if self._segments.get(it[1]) == it[0]]:
                del self._free_from[address], self._segments[address]
                self._drop(pool, address, size)
                self.reserved -= size

    def _put(self, pool: Pool, address: int, size: int) -> None:
        insort(pool, (size, address))
        self._free_from[address] = size
        self._free_to[address + size] = address

    def _drop(self, pool: Pool, address: int, size: int) -> None:
        pool.pop(bisect_left(pool, (size, address)))
        del self._free_to[address + size]
