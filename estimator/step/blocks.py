"""PyTorch's caching allocator: what blocks a run's requests get, what is taken from the driver, and where it dies.

A freed block stays cached. A request takes the smallest cached block of its stream that is large enough and splits off
the rest; free neighbours are merged. Where the card has no room for a new segment, all wholly free segments go back to
the driver first, and the run dies if that is not enough. What a request over 1 MiB leaves of its block is kept with it
if it is at most 1 MiB, so blocks are larger than tensors.

With ``expandable_segments`` each stream has two segments that grow by pages where they end, blocks are split to 512
bytes, and what goes back are wholly free pages.

Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``malloc``, ``get_allocation_size``, ``get_free_block``,
``should_split``, ``free_block``, ``try_merge_blocks``, ``release_cached_blocks``; its defaults. Segments that grow:
``find_expandable_block``, ``map_block``, ``unmap_block``.

The lines of ``_play`` are compiled where numba is installed (decision 7); without it the same lines are interpreted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from operator import itemgetter
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

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
STREAMS = 4
"""Streams at most; a cached block is reused only on the stream that allocated it."""
IN_FLIGHT = 2
"""Gathers by which FSDP1's CPU may run ahead: torch 2.13, distributed/fsdp/_limiter_utils.py, ``_FreeEventQueue``."""
MOST_LATE = 64
"""Gathered tensors that wait at most; the oldest of more is free."""
NO_LIMIT = 2**62
SPAN = LARGE_SEGMENT << 30
"""Bytes of address space of a segment that grows: more than any card has (torch takes 9/8 of the card)."""
UNMAPPED = -2
"""State of addresses without memory."""
NO_ROOM = -2
"""What ``_play`` says where a run has more blocks than it was given numbers for."""

TAKE, TAKE_ONCE, GIVE, GIVE_BEFORE, GIVE_OLDEST, GIVE_LATE, GIVE_ALL, WAIT, EMPTY = range(9)
"""What a request does: allocate a tensor under a key; the same unless the key has one; free the newest of a key; free
the one before it; free the oldest; free the newest two gathers later; free all of a key; wait for the card; give all
wholly free segments back to the driver (``torch.cuda.empty_cache``)."""


class Request(NamedTuple):
    """One line of the allocator's log."""

    what: int
    key: int
    """Tensors of one key are freed newest first."""
    size: int = 0
    """Bytes, a multiple of 512."""
    stream: int = 0


class Log(NamedTuple):
    """Stretches of requests, and the order in which they run."""

    requests: Sequence[array[int]]
    """What, key, size and stream of all requests."""
    spans: Sequence[array[int]]
    """First request of each stretch, and the one after its last."""
    order: Sequence[array[int]]
    """The stretches in order of time, and how many times each runs in a row."""
    keys: int
    """Number of keys."""
    most: int
    """Bound of the tensors alive at once."""

    @property
    def length(self) -> int:
        """Number of requests."""
        starts, ends = self.spans
        return sum(times * (ends[it] - starts[it]) for it, times in zip(*self.order, strict=True))


class Played(NamedTuple):
    """What became of a run."""

    allocated: int
    """Most bytes of blocks in use at once (``torch.cuda.max_memory_allocated``)."""
    reserved: int
    """Most bytes of segments (``torch.cuda.max_memory_reserved``)."""
    died: int | None
    """Index in the order of the stretch whose request the card refuses; None where the run goes through."""
    repetition: int = 0
    """How many times the stretch ran before in a row."""
    request: int = 0
    """The request that is refused."""


def log_of(stretches: Sequence[Sequence[Request]], order: Sequence[tuple[int, int]]) -> Log:
    """Requests as the arrays that ``play`` reads; ``order``: stretches, and how many times each runs in a row.

    >>> play(log_of([[Request(TAKE, 0, 512), Request(GIVE, 0)]], [(0, 3)]))
    Played(allocated=512, reserved=2097152, died=None, repetition=0, request=0)
    """
    flat = [request for stretch in stretches for request in stretch]
    bounds = [*accumulate(map(len, stretches), initial=0)]
    alive = most = 0
    counts = [_counted(stretch) for stretch in stretches]
    for number, times in order:
        rise, net = counts[number]
        most = max(most, alive + rise, alive + (times - 1) * net + rise)
        alive = max(0, alive + times * net)
    return Log(
        [array("q", map(itemgetter(column), flat)) for column in range(4)],
        [array("q", bounds[:-1]), array("q", bounds[1:])],
        [array("q", map(itemgetter(column), order)) for column in range(2)],
        1 + max((request.key for request in flat), default=0),
        most,
    )


def _counted(stretch: Sequence[Request]) -> tuple[int, int]:
    """Tensors of a stretch at their most, and how many it adds; those that it frees at once are left out."""
    alive = most = 0
    for request in stretch:
        alive += (request.what in (TAKE, TAKE_ONCE)) - (
            request.what in (GIVE, GIVE_BEFORE, GIVE_OLDEST, GIVE_LATE)
        )
        most = max(most, alive)
    return most, alive


def rounded(log: Log, divisions: int) -> Log:
    """The same requests, each rounded up to the next of ``divisions`` steps between two powers of two.

    >>> log = log_of([[Request(TAKE, 0, 1_300_992)]], [(0, 1)])
    >>> [*rounded(log, 4).requests[2]], [*rounded(log, 1).requests[2]]
    ([1310720], [1300992])

    Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``roundup_power2_next_division``.
    """
    if divisions == 1:
        return log
    whats, keys, sizes, streams = log.requests
    return log._replace(
        requests=[whats, keys, array("q", (_rounded(size, divisions) for size in sizes)), streams]
    )


def _rounded(size: int, divisions: int) -> int:
    if size <= LEAST * divisions:
        return size
    step = (1 << (size.bit_length() - 1)) // divisions
    return (size + step - 1) // step * step


def play(
    log: Log, limit: int = NO_LIMIT, expandable: bool = False, ahead: int = IN_FLIGHT
) -> Played:
    """Play a log on a card that gives the allocator at most ``limit`` bytes.

    ``expandable``: with ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``. ``ahead``: gathers by which the CPU runs
    ahead of the card; none where a card finishes everything at once.
    """
    blocks = 2 * log.most + 1024
    while True:
        result = _played(log, limit, expandable, ahead, blocks)
        allocated, reserved, died, repetition, request = result
        if died != NO_ROOM:
            return Played(allocated, reserved, None if died < 0 else died, repetition, request)
        blocks *= 2


def _played(log: Log, limit: int, expandable: bool, ahead: int, blocks: int) -> array[int]:
    result = array("q", [0] * 5)
    _player()(
        *log.requests,
        *log.spans,
        *log.order,
        limit,
        expandable,
        ahead,
        *(_numbers(blocks) for _ in range(6)),
        _numbers(2),
        _numbers(2 * STREAMS * blocks),
        *(_numbers(2 * STREAMS) for _ in range(4)),
        _numbers(log.keys),
        _numbers(MOST_LATE),
        result,
    )
    return result


def _numbers(count: int) -> array[int]:
    return array("q", bytes(8 * count))


@cache
def _player() -> Callable[..., None]:
    """``_play``, compiled where numba is installed and remembered on disk where a folder can be written."""
    try:
        from numba import njit  # noqa: PLC0415 - half a second, and not needed for a refusal
    except ImportError:
        return _play

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, nogil=True)(function)
        except RuntimeError:  # no folder for its cache
            return njit(nogil=True)(function)

    known = dict(globals())
    for function in (
        *(_index, _add, _drop, _new, _join, _cut, _free, _free_oldest),
        *(_reach, _start, _pages, _grow, _shrink, _give_back),
    ):
        known[function.__name__] = compiled(FunctionType(function.__code__, known))
    played: Callable[..., None] = compiled(FunctionType(_play.__code__, known))
    return played


BlockArrays: TypeAlias = "tuple[array[int], ...]"
"""What is known of each block, by its number from 1 on; 0 is none: its bytes, its address, the numbers of its segment's
blocks before and after it, its state, and the number below it. The state: twice its pool, and 1 more if it is free; or
``UNMAPPED``. Below it: the block of the same key that is next to be freed; of an unused number, the next unused one.
Last, the first unused number, and the first that never was used."""
PoolArrays: TypeAlias = "tuple[array[int], array[int]]"
"""The free blocks of each pool, by bytes and address, and how many there are."""
SegmentArrays: TypeAlias = "tuple[array[int], ...]"
"""Of each pool's segment that grows: its first block, its last, which is unmapped and endless, and how many others are
unmapped."""


# What every request needs takes its arrays one by one: unpacking a tuple of them costs as much as a request.


def _index(
    held: array[int],
    address: array[int],
    free: array[int],
    base: int,
    count: int,
    size: int,
    at: int,
) -> int:
    """How many of a pool's blocks, which begin at ``base``, are smaller, or as large and lower."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        one = free[base + middle]
        if held[one] < size or (held[one] == size and address[one] < at):
            low = middle + 1
        else:
            high = middle
    return low


def _add(
    held: array[int],
    address: array[int],
    state: array[int],
    free: array[int],
    lengths: array[int],
    pool: int,
    block: int,
) -> None:
    """Cache a free block."""
    base = pool * len(held)
    at = _index(held, address, free, base, lengths[pool], held[block], address[block])
    for index in range(lengths[pool], at, -1):
        free[base + index] = free[base + index - 1]
    free[base + at] = block
    lengths[pool] += 1
    state[block] = 2 * pool + 1


def _drop(free: array[int], lengths: array[int], base: int, pool: int, at: int) -> int:
    """Take a block out of the cache."""
    block = free[base + at]
    lengths[pool] -= 1
    for index in range(at, lengths[pool]):
        free[base + index] = free[base + index + 1]
    return block


def _new(below: array[int], unused: array[int]) -> int:
    """An unused number; 0 where there is none."""
    block = unused[0]
    if block:
        unused[0] = below[block]
    elif unused[1] < len(below):
        block = unused[1]
        unused[1] += 1
    return block


def _join(
    held: array[int],
    before: array[int],
    after: array[int],
    below: array[int],
    unused: array[int],
    first: int,
    second: int,
) -> None:
    """Make two neighbours one, under the first one's number."""
    held[first] += held[second]
    after[first] = after[second]
    if after[second]:
        before[after[second]] = first
    below[second] = unused[0]
    unused[0] = second


def _cut(
    held: array[int],
    address: array[int],
    before: array[int],
    after: array[int],
    below: array[int],
    unused: array[int],
    block: int,
    size: int,
) -> int:
    """Leave a block so many bytes. Returns the rest, in no state yet; 0 where numbers run out."""
    rest = _new(below, unused)
    if rest:
        held[rest], address[rest] = held[block] - size, address[block] + size
        before[rest], after[rest] = block, after[block]
        if after[block]:
            before[after[block]] = rest
        held[block], after[block] = size, rest
    return rest


def _free(
    held: array[int],
    address: array[int],
    before: array[int],
    after: array[int],
    state: array[int],
    below: array[int],
    unused: array[int],
    free: array[int],
    lengths: array[int],
    block: int,
) -> None:
    """Merge a block with its free neighbours and cache it."""
    pool = state[block] // 2
    base = pool * len(held)
    for side in range(2):
        other = after[block] if side == 0 else before[block]
        if other and state[other] % 2 == 1:
            at = _index(held, address, free, base, lengths[pool], held[other], address[other])
            _drop(free, lengths, base, pool, at)
            first, second = (block, other) if side == 0 else (other, block)
            _join(held, before, after, below, unused, first, second)
            block = first
    _add(held, address, state, free, lengths, pool, block)


def _free_oldest(blocks: BlockArrays, pools: PoolArrays, late: array[int], waiting: int) -> int:
    """Free the block that waits longest. Returns how many wait then."""
    held, address, before, after, state, below, unused = blocks
    _free(held, address, before, after, state, below, unused, *pools, late[0])
    for index in range(1, waiting):
        late[index - 1] = late[index]
    return waiting - 1


def _reach(blocks: BlockArrays, block: int) -> int:
    """Bytes that a free block has or can have where its segment grows."""
    held, other = blocks[0], blocks[3][block]
    return held[block] + (held[other] if other and blocks[4][other] == UNMAPPED else 0)


def _start(blocks: BlockArrays, growing: SegmentArrays, pool: int, size: int) -> int:
    """The block of a pool's segment at whose lowest address there is room for a request, mapped or not."""
    held, _, before, after, state, _, _ = blocks
    heads, tails, holes = growing
    block = heads[pool] if holes[pool] else tails[pool]
    while True:
        if state[block] == UNMAPPED:
            lower = before[block]
            start = lower if lower and state[lower] % 2 == 1 else block
            room, one = 0, start
            while room < size and one and (state[one] == UNMAPPED or state[one] % 2 == 1):
                room += held[one]
                one = after[one]
            if room >= size:
                return start
        block = after[block]


def _pages(blocks: BlockArrays, block: int, size: int, page: int) -> int:
    """Bytes that must be mapped from a block on to hold a request."""
    held, after, state = blocks[0], blocks[3], blocks[4]
    asked = 0
    while size > 0:
        part = held[block]
        if state[block] == UNMAPPED:
            part = (min(part, size) + page - 1) // page * page
            asked += part
        size -= part
        block = after[block]
    return asked


def _grow(
    blocks: BlockArrays,
    pools: PoolArrays,
    growing: SegmentArrays,
    pool: int,
    block: int,
    size: int,
    page: int,
) -> bool:
    """Map pages from a block on until it holds a request; it is in no pool then. False where numbers run out."""
    held, address, before, after, state, below, unused = blocks
    (free, lengths), base = pools, pool * len(held)
    _, tails, holes = growing
    if state[block] != UNMAPPED:
        at = _index(held, address, free, base, lengths[pool], held[block], address[block])
        _drop(free, lengths, base, pool, at)
    while state[block] == UNMAPPED or held[block] < size:
        grown = block if state[block] == UNMAPPED else after[block]
        wanted = size if grown == block else size - held[block]
        part = (min(held[grown], wanted) + page - 1) // page * page
        if part < held[grown]:
            rest = _cut(held, address, before, after, below, unused, grown, part)
            if rest == 0:
                return False
            state[rest] = UNMAPPED
            if tails[pool] == grown:
                tails[pool] = rest
        else:
            holes[pool] -= 1
        state[grown] = 2 * pool
        if grown != block:
            _join(held, before, after, below, unused, block, grown)
        other = after[block]
        if other and state[other] % 2 == 1:
            at = _index(held, address, free, base, lengths[pool], held[other], address[other])
            _drop(free, lengths, base, pool, at)
            _join(held, before, after, below, unused, block, other)
    return True


def _shrink(blocks: BlockArrays, pools: PoolArrays, growing: SegmentArrays, pool: int) -> int:
    """Unmap a pool's wholly free pages. Returns their bytes; -1 where numbers run out."""
    held, address, before, after, state, below, unused = blocks
    (free, lengths), base = pools, pool * len(held)
    _, tails, holes = growing
    page = LARGE_SEGMENT if pool % 2 else SMALL_SEGMENT
    given, at = 0, 0
    while at < lengths[pool]:
        block = free[base + at]
        begin = (address[block] + page - 1) // page * page
        end = (address[block] + held[block]) // page * page
        if begin >= end:
            at += 1
            continue
        _drop(free, lengths, base, pool, at)
        given += end - begin
        if end < address[block] + held[block]:
            rest = _cut(held, address, before, after, below, unused, block, end - address[block])
            if rest == 0:
                return -1
            _add(held, address, state, free, lengths, pool, rest)
        if begin > address[block]:
            rest = _cut(held, address, before, after, below, unused, block, begin - address[block])
            if rest == 0:
                return -1
            _add(held, address, state, free, lengths, pool, block)
            block = rest
        state[block] = UNMAPPED
        holes[pool] += 1
        for side in range(2):
            other = after[block] if side == 0 else before[block]
            if other and state[other] == UNMAPPED:
                first, second = (block, other) if side == 0 else (other, block)
                if tails[pool] == second:
                    tails[pool] = first
                holes[pool] -= 1
                _join(held, before, after, below, unused, first, second)
                block = first
        at = 0  # what is left of it may stand anywhere in the pool
    return given


def _give_back(
    blocks: BlockArrays, pools: PoolArrays, growing: SegmentArrays, expandable: bool
) -> int:
    """Give what is wholly free back: segments, or pages of those that grow. Returns bytes; -1 where numbers run out."""
    held, _, before, after, _, below, unused = blocks
    free, lengths = pools
    given = 0
    for pool in range(2 * STREAMS):
        if expandable:
            part = _shrink(blocks, pools, growing, pool)
            if part < 0:
                return -1
            given += part
            continue
        kept, base = 0, pool * len(held)
        for index in range(lengths[pool]):
            one = free[base + index]
            if before[one] == 0 and after[one] == 0:
                given += held[one]
                below[one] = unused[0]
                unused[0] = one
            else:
                free[base + kept] = one
                kept += 1
        lengths[pool] = kept
    return given


def _play(
    whats: array[int],
    keys: array[int],
    sizes: array[int],
    streams: array[int],
    starts: array[int],
    ends: array[int],
    stretches: array[int],
    times: array[int],
    limit: int,
    expandable: bool,
    ahead: int,
    held: array[int],
    address: array[int],
    before: array[int],
    after: array[int],
    state: array[int],
    below: array[int],
    unused: array[int],
    free: array[int],
    lengths: array[int],
    heads: array[int],
    tails: array[int],
    holes: array[int],
    newest: array[int],
    late: array[int],
    result: array[int],
) -> None:
    """Play requests. ``newest``: the block of each key that is freed first. ``late``: blocks that wait to be freed."""
    blocks = held, address, before, after, state, below, unused
    pools, growing = (free, lengths), (heads, tails, holes)
    next_address = 0
    in_use, most_in_use, reserved, most_reserved = 0, 0, 0, 0
    waiting = 0
    unused[1] = 1
    result[2] = -1
    for place in range(len(stretches)):
        stretch = stretches[place]
        for repetition in range(times[place]):
            for request in range(starts[stretch], ends[stretch]):
                what, key = whats[request], keys[request]
                if what >= WAIT:
                    while waiting:
                        waiting = _free_oldest(blocks, pools, late, waiting)
                    if what == EMPTY:
                        given = _give_back(blocks, pools, growing, expandable)
                        if given < 0:
                            result[2] = NO_ROOM
                            return
                        reserved -= given
                    continue
                if what > TAKE_ONCE:
                    give = newest[key]
                    if what == GIVE_BEFORE and give:
                        above, give = give, below[give]
                        if give:
                            below[above] = below[give]
                    elif what == GIVE_OLDEST and give and below[give]:
                        above = give
                        while below[give]:
                            above, give = give, below[give]
                        below[above] = 0
                    elif give:
                        newest[key] = below[give]
                    while give:
                        in_use -= held[give]
                        if what == GIVE_LATE and ahead:
                            if waiting == MOST_LATE:
                                waiting = _free_oldest(blocks, pools, late, waiting)
                            late[waiting] = give
                            waiting += 1
                        else:
                            _free(
                                held,
                                address,
                                before,
                                after,
                                state,
                                below,
                                unused,
                                free,
                                lengths,
                                give,
                            )
                        give = newest[key] if what == GIVE_ALL else 0
                        if give:
                            newest[key] = below[give]
                    continue
                if what == TAKE_ONCE and newest[key]:
                    continue
                size, stream = sizes[request], streams[request]
                is_small = size <= SMALL
                pool = 2 * stream + (0 if is_small else 1)
                if stream == 1 and waiting and waiting >= ahead:
                    waiting = _free_oldest(blocks, pools, late, waiting)
                base, page = pool * len(held), SMALL_SEGMENT if is_small else LARGE_SEGMENT
                at = _index(held, address, free, base, lengths[pool], size, 0)
                if at < lengths[pool]:
                    while (
                        expandable
                        and at + 1 < lengths[pool]
                        and _reach(blocks, free[base + at + 1]) < _reach(blocks, free[base + at])
                    ):
                        at += 1
                    block = _drop(free, lengths, base, pool, at)
                else:
                    block, asked = 0, page
                    if expandable:
                        if tails[pool] == 0:
                            tail = _new(below, unused)
                            if tail == 0:
                                result[2] = NO_ROOM
                                return
                            held[tail], address[tail], state[tail] = SPAN, pool * SPAN, UNMAPPED
                            before[tail], after[tail] = 0, 0
                            heads[pool], tails[pool] = tail, tail
                        block = _start(blocks, growing, pool, size)
                        asked = _pages(blocks, block, size, page)
                    elif size >= WHOLE:
                        asked = (size + SMALL_SEGMENT - 1) // SMALL_SEGMENT * SMALL_SEGMENT
                    if reserved + asked > limit:
                        while waiting:
                            waiting = _free_oldest(blocks, pools, late, waiting)
                        given = _give_back(blocks, pools, growing, expandable)
                        if given < 0:
                            result[2] = NO_ROOM
                            return
                        reserved -= given
                        if expandable:
                            block = _start(blocks, growing, pool, size)
                            asked = _pages(blocks, block, size, page)
                        if reserved + asked > limit:
                            result[0], result[1] = most_in_use, most_reserved
                            result[2], result[3], result[4] = place, repetition, request
                            return
                    reserved += asked
                    most_reserved = max(most_reserved, reserved)
                    if expandable:
                        if not _grow(blocks, pools, growing, pool, block, size, page):
                            result[2] = NO_ROOM
                            return
                    else:
                        block = _new(below, unused)
                        if block == 0:
                            result[2] = NO_ROOM
                            return
                        held[block], address[block] = asked, next_address
                        before[block], after[block] = 0, 0
                        next_address += asked
                rest = held[block] - size
                if ((is_small or expandable) and rest >= LEAST) or rest > SMALL:
                    other = _new(
                        below, unused
                    )  # as in ``_cut``, whose call takes half as long as all else
                    if other == 0:
                        result[2] = NO_ROOM
                        return
                    held[block], held[other] = size, rest
                    address[other] = address[block] + size
                    before[other], after[other] = block, after[block]
                    if after[block]:
                        before[after[block]] = other
                    after[block] = other
                    _add(held, address, state, free, lengths, pool, other)
                state[block] = 2 * pool
                below[block] = newest[key]
                newest[key] = block
                in_use += held[block]
                most_in_use = max(most_in_use, in_use)
    result[0], result[1] = most_in_use, most_reserved
