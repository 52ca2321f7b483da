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
from typing import Any, NamedTuple

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
        _numbers(2 * STREAMS * blocks),
        *(_numbers(2 * STREAMS) for _ in range(4)),
        _numbers(log.keys),
        _numbers(MOST_LATE),
        _numbers(2),
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
        _index,
        _add,
        _drop,
        _new,
        _join,
        _release,
        _reach,
        _start,
        _pages,
        _map,
        _unmap,
    ):
        known[function.__name__] = compiled(FunctionType(function.__code__, known))
    played: Callable[..., None] = compiled(FunctionType(_play.__code__, known))
    return played


# Blocks are numbered from 1, so that 0 is none. held, address, before, after: each block's bytes, and its place among
# its segment's blocks. state: its pool, and 1 if free; or UNMAPPED. pools: free blocks by pool, by bytes and address.
# below: the block of the same key that is next to be freed; of an unused number, the next unused one. free: the first
# unused number, and the first that never was used. heads, tails, holes: the first block of a pool's segment that grows,
# its last, which is unmapped and endless, and how many other blocks are unmapped.


def _index(
    pools: array[int],
    base: int,
    count: int,
    held: array[int],
    address: array[int],
    size: int,
    place: int,
) -> int:
    """How many of a pool's blocks are smaller, or as large and lower."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        one = pools[base + middle]
        if held[one] < size or (held[one] == size and address[one] < place):
            low = middle + 1
        else:
            high = middle
    return low


def _add(
    block: int,
    pool: int,
    pools: array[int],
    lengths: array[int],
    held: array[int],
    address: array[int],
    state: array[int],
) -> None:
    """Cache a free block."""
    base = pool * len(held)
    at = _index(pools, base, lengths[pool], held, address, held[block], address[block])
    for index in range(lengths[pool], at, -1):
        pools[base + index] = pools[base + index - 1]
    pools[base + at] = block
    lengths[pool] += 1
    state[block] = 2 * pool + 1


def _drop(at: int, pool: int, pools: array[int], lengths: array[int], held: array[int]) -> int:
    """Take a block out of the cache."""
    base = pool * len(held)
    block = pools[base + at]
    lengths[pool] -= 1
    for index in range(at, lengths[pool]):
        pools[base + index] = pools[base + index + 1]
    return block


def _new(below: array[int], free: array[int]) -> int:
    """An unused number; 0 where there is none."""
    block = free[0]
    if block:
        free[0] = below[block]
    elif free[1] < len(below):
        block = free[1]
        free[1] += 1
    return block


def _join(
    first: int,
    second: int,
    held: array[int],
    before: array[int],
    after: array[int],
    below: array[int],
    free: array[int],
) -> None:
    """Make two neighbours one, under the first one's number."""
    held[first] += held[second]
    after[first] = after[second]
    if after[second]:
        before[after[second]] = first
    below[second] = free[0]
    free[0] = second


def _release(
    block: int,
    pools: array[int],
    lengths: array[int],
    held: array[int],
    address: array[int],
    before: array[int],
    after: array[int],
    state: array[int],
    below: array[int],
    free: array[int],
) -> None:
    """Merge a block with its free neighbours and cache it."""
    pool = state[block] // 2
    for side in range(2):
        other = after[block] if side == 0 else before[block]
        if other and state[other] % 2 == 1:
            at = _index(
                pools,
                pool * len(held),
                lengths[pool],
                held,
                address,
                held[other],
                address[other],
            )
            _drop(at, pool, pools, lengths, held)
            first, second = (block, other) if side == 0 else (other, block)
            _join(first, second, held, before, after, below, free)
            block = first
    _add(block, pool, pools, lengths, held, address, state)


def _reach(block: int, held: array[int], after: array[int], state: array[int]) -> int:
    """Bytes that a free block has or can have where its segment grows."""
    other = after[block]
    return held[block] + (held[other] if other and state[other] == UNMAPPED else 0)


def _start(
    pool: int,
    size: int,
    held: array[int],
    before: array[int],
    after: array[int],
    state: array[int],
    heads: array[int],
    tails: array[int],
    holes: array[int],
) -> int:
    """The block of a pool's segment at whose lowest address there is room for a request, mapped or not."""
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


def _pages(
    block: int, size: int, page: int, held: array[int], after: array[int], state: array[int]
) -> int:
    """Bytes that must be mapped from a block on to hold a request."""
    asked = 0
    while size > 0:
        if state[block] == UNMAPPED:
            part = (min(held[block], size) + page - 1) // page * page
            asked += part
            size -= part
        else:
            size -= held[block]
        block = after[block]
    return asked


def _map(
    block: int,
    pool: int,
    size: int,
    page: int,
    pools: array[int],
    lengths: array[int],
    held: array[int],
    address: array[int],
    before: array[int],
    after: array[int],
    state: array[int],
    below: array[int],
    free: array[int],
    tails: array[int],
    holes: array[int],
) -> bool:
    """Map pages from a block on until it holds a request; it is in no pool then. False where numbers run out."""
    if state[block] != UNMAPPED:
        at = _index(
            pools,
            pool * len(held),
            lengths[pool],
            held,
            address,
            held[block],
            address[block],
        )
        _drop(at, pool, pools, lengths, held)
    while state[block] == UNMAPPED or held[block] < size:
        grown = block if state[block] == UNMAPPED else after[block]
        wanted = size if grown == block else size - held[block]
        part = (min(held[grown], wanted) + page - 1) // page * page
        if part < held[grown]:
            rest = _new(below, free)
            if rest == 0:
                return False
            held[rest], address[rest], state[rest] = (
                held[grown] - part,
                address[grown] + part,
                UNMAPPED,
            )
            before[rest], after[rest] = grown, after[grown]
            if after[grown]:
                before[after[grown]] = rest
            held[grown], after[grown] = part, rest
            if tails[pool] == grown:
                tails[pool] = rest
        else:
            holes[pool] -= 1
        state[grown] = 2 * pool
        if grown != block:
            _join(block, grown, held, before, after, below, free)
        other = after[block]
        if other and state[other] % 2 == 1:
            at = _index(
                pools,
                pool * len(held),
                lengths[pool],
                held,
                address,
                held[other],
                address[other],
            )
            _drop(at, pool, pools, lengths, held)
            _join(block, other, held, before, after, below, free)
    return True


def _unmap(
    pool: int,
    page: int,
    pools: array[int],
    lengths: array[int],
    held: array[int],
    address: array[int],
    before: array[int],
    after: array[int],
    state: array[int],
    below: array[int],
    free: array[int],
    tails: array[int],
    holes: array[int],
) -> int:
    """Give a pool's wholly free pages back. Returns their bytes; -1 where numbers run out."""
    given, at = 0, 0
    while at < lengths[pool]:
        block = pools[pool * len(held) + at]
        begin = (address[block] + page - 1) // page * page
        end = (address[block] + held[block]) // page * page
        if begin >= end:
            at += 1
            continue
        _drop(at, pool, pools, lengths, held)
        given += end - begin
        upper = address[block] + held[block] - end
        if upper:
            rest = _new(below, free)
            if rest == 0:
                return -1
            held[rest], address[rest] = upper, end
            before[rest], after[rest] = block, after[block]
            if after[block]:
                before[after[block]] = rest
            held[block], after[block] = held[block] - upper, rest
            _add(rest, pool, pools, lengths, held, address, state)
        lower = begin - address[block]
        if lower:
            rest = _new(below, free)
            if rest == 0:
                return -1
            held[rest], address[rest] = held[block] - lower, begin
            before[rest], after[rest] = block, after[block]
            if after[block]:
                before[after[block]] = rest
            held[block], after[block] = lower, rest
            _add(block, pool, pools, lengths, held, address, state)
            block = rest
        state[block] = UNMAPPED
        holes[pool] += 1
        other = after[block]
        if other and state[other] == UNMAPPED:
            if tails[pool] == other:
                tails[pool] = block
            holes[pool] -= 1
            _join(block, other, held, before, after, below, free)
        other = before[block]
        if other and state[other] == UNMAPPED:
            if tails[pool] == block:
                tails[pool] = other
            holes[pool] -= 1
            _join(other, block, held, before, after, below, free)
        at = 0  # what is left of it may stand anywhere in the pool
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
    pools: array[int],
    lengths: array[int],
    heads: array[int],
    tails: array[int],
    holes: array[int],
    newest: array[int],
    late: array[int],
    free: array[int],
    result: array[int],
) -> None:
    """Play requests. ``newest``: the block of each key that is freed first. ``late``: blocks that wait to be freed."""
    width = len(held)
    next_address = 0
    in_use, most_in_use, reserved, most_reserved = 0, 0, 0, 0
    waiting = 0
    free[1] = 1
    result[2] = -1
    for place in range(len(stretches)):
        stretch = stretches[place]
        for repetition in range(times[place]):
            for request in range(starts[stretch], ends[stretch]):
                what, key = whats[request], keys[request]
                if what == EMPTY:
                    # as a request that no card can grant
                    size, is_small, pool, give = NO_LIMIT + 1, False, 1, 0
                elif what <= TAKE_ONCE:
                    if what == TAKE_ONCE and newest[key]:
                        continue
                    size, stream = sizes[request], streams[request]
                    is_small = size <= SMALL
                    pool = 2 * stream + (0 if is_small else 1)
                    give = 0
                    if stream == 1 and waiting and waiting >= ahead:
                        _release(
                            late[0],
                            pools,
                            lengths,
                            held,
                            address,
                            before,
                            after,
                            state,
                            below,
                            free,
                        )
                        waiting -= 1
                        for index in range(waiting):
                            late[index] = late[index + 1]
                elif what == WAIT:
                    while waiting:
                        waiting -= 1
                        _release(
                            late[waiting],
                            pools,
                            lengths,
                            held,
                            address,
                            before,
                            after,
                            state,
                            below,
                            free,
                        )
                    continue
                else:
                    give = newest[key]
                    if give == 0:
                        continue
                    if what == GIVE_BEFORE:
                        above, give = give, below[give]
                        if give == 0:
                            continue
                        below[above] = below[give]
                    elif what == GIVE_OLDEST and below[give]:
                        above = give
                        while below[give]:
                            above, give = give, below[give]
                        below[above] = 0
                    else:
                        newest[key] = below[give]
                    if what == GIVE_LATE and ahead:
                        in_use -= held[give]
                        if waiting == MOST_LATE:
                            _release(
                                late[0],
                                pools,
                                lengths,
                                held,
                                address,
                                before,
                                after,
                                state,
                                below,
                                free,
                            )
                            waiting -= 1
                            for index in range(waiting):
                                late[index] = late[index + 1]
                        late[waiting] = give
                        waiting += 1
                        continue
                while give:
                    in_use -= held[give]
                    _release(give, pools, lengths, held, address, before, after, state, below, free)
                    give = 0
                    if what == GIVE_ALL:
                        give = newest[key]
                        if give:
                            newest[key] = below[give]
                if TAKE_ONCE < what < EMPTY:
                    continue
                base, page = pool * width, SMALL_SEGMENT if is_small else LARGE_SEGMENT
                at = _index(pools, base, lengths[pool], held, address, size, 0)
                if at < lengths[pool]:
                    while (
                        expandable
                        and at + 1 < lengths[pool]
                        and _reach(pools[base + at + 1], held, after, state)
                        < _reach(pools[base + at], held, after, state)
                    ):
                        at += 1
                    block = _drop(at, pool, pools, lengths, held)
                else:
                    if what == EMPTY:
                        asked = size
                    elif expandable:
                        if tails[pool] == 0:
                            block = _new(below, free)
                            if block == 0:
                                result[2] = NO_ROOM
                                return
                            held[block], address[block], state[block] = SPAN, pool * SPAN, UNMAPPED
                            before[block], after[block] = 0, 0
                            heads[pool], tails[pool] = block, block
                        block = _start(pool, size, held, before, after, state, heads, tails, holes)
                        asked = _pages(block, size, page, held, after, state)
                    elif size < WHOLE:
                        asked = page
                    else:
                        asked = (size + SMALL_SEGMENT - 1) // SMALL_SEGMENT * SMALL_SEGMENT
                    if reserved + asked > limit:
                        # what waits is waited for
                        while waiting:
                            waiting -= 1
                            _release(
                                late[waiting],
                                pools,
                                lengths,
                                held,
                                address,
                                before,
                                after,
                                state,
                                below,
                                free,
                            )
                        # what is wholly free goes back: segments, or pages of those that grow
                        for one_pool in range(2 * STREAMS):
                            if expandable:
                                given = _unmap(
                                    one_pool,
                                    LARGE_SEGMENT if one_pool % 2 else SMALL_SEGMENT,
                                    pools,
                                    lengths,
                                    held,
                                    address,
                                    before,
                                    after,
                                    state,
                                    below,
                                    free,
                                    tails,
                                    holes,
                                )
                                if given < 0:
                                    result[2] = NO_ROOM
                                    return
                                reserved -= given
                                continue
                            kept = 0
                            start = one_pool * width
                            for index in range(lengths[one_pool]):
                                one = pools[start + index]
                                if before[one] == 0 and after[one] == 0:
                                    reserved -= held[one]
                                    below[one] = free[0]
                                    free[0] = one
                                else:
                                    pools[start + kept] = one
                                    kept += 1
                            lengths[one_pool] = kept
                        if what == EMPTY:
                            continue
                        if expandable:
                            block = _start(
                                pool, size, held, before, after, state, heads, tails, holes
                            )
                            asked = _pages(block, size, page, held, after, state)
                        if reserved + asked > limit:
                            result[0], result[1] = most_in_use, most_reserved
                            result[2], result[3], result[4] = place, repetition, request
                            return
                    reserved += asked
                    most_reserved = max(most_reserved, reserved)
                    if expandable:
                        if not _map(
                            block,
                            pool,
                            size,
                            page,
                            pools,
                            lengths,
                            held,
                            address,
                            before,
                            after,
                            state,
                            below,
                            free,
                            tails,
                            holes,
                        ):
                            result[2] = NO_ROOM
                            return
                    else:
                        block = _new(below, free)
                        if block == 0:
                            result[2] = NO_ROOM
                            return
                        held[block], address[block] = asked, next_address
                        before[block], after[block] = 0, 0
                        next_address += asked
                rest = held[block] - size
                if ((is_small or expandable) and rest >= LEAST) or rest > SMALL:
                    other = _new(below, free)
                    if other == 0:
                        result[2] = NO_ROOM
                        return
                    held[block], held[other] = size, rest
                    address[other] = address[block] + size
                    before[other], after[other] = block, after[block]
                    if after[block]:
                        before[after[block]] = other
                    after[block] = other
                    _add(other, pool, pools, lengths, held, address, state)
                state[block] = 2 * pool
                below[block] = newest[key]
                newest[key] = block
                in_use += held[block]
                most_in_use = max(most_in_use, in_use)
    result[0], result[1] = most_in_use, most_reserved
