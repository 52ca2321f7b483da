"""PyTorch's caching allocator: what blocks a run's requests get, what is taken from the driver, and where it dies.

A freed block stays cached. A request takes the smallest cached block of its stream that is large enough and splits off
the rest; free neighbours are merged. Where the card has no room for a new segment, all wholly free segments go back to
the driver first, and the run dies if that is not enough. What a request over 1 MiB leaves of its block is kept with it
if it is at most 1 MiB, so blocks are larger than tensors.

Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``malloc``, ``get_allocation_size``, ``get_free_block``,
``should_split``, ``free_block``, ``try_merge_blocks``, ``release_cached_blocks``; its defaults.

The lines of ``_play`` are compiled where numba is installed (decision 7); without it the same lines are interpreted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

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
NO_ROOM = -2
"""What ``_play`` says where a run has more blocks than it was given numbers for."""

TAKE, TAKE_ONCE, GIVE, GIVE_BEFORE, GIVE_LATE, GIVE_ALL, EMPTY = range(7)
"""What a request does: allocate a tensor under a key; the same unless the key has one; free the newest of a key; free
the one before it; free the newest two gathers later; free all tensors of a key; ``torch.cuda.empty_cache``."""


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
            request.what in (GIVE, GIVE_BEFORE, GIVE_LATE)
        )
        most = max(most, alive)
    return most, alive


def play(log: Log, limit: int = NO_LIMIT) -> Played:
    """Play a log on a card that gives the allocator at most ``limit`` bytes."""
    blocks = 2 * log.most + 1024
    while True:
        result = _played(log, limit, blocks)
        allocated, reserved, died, repetition, request = result
        if died != NO_ROOM:
            return Played(allocated, reserved, None if died < 0 else died, repetition, request)
        blocks *= 2


def _played(log: Log, limit: int, blocks: int) -> array[int]:
    result = array("q", [0] * 5)
    work = [_numbers(blocks) for _ in range(6)]
    _player()(
        *log.requests,
        *log.spans,
        *log.order,
        limit,
        *work,
        _numbers(2 * STREAMS * blocks),
        _numbers(2 * STREAMS),
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
    try:
        return njit(cache=True, nogil=True)(_play)
    except RuntimeError:  # no folder for its cache
        return njit(nogil=True)(_play)


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
    held: array[int],
    address: array[int],
    before: array[int],
    after: array[int],
    state: array[int],
    below: array[int],
    pools: array[int],
    lengths: array[int],
    newest: array[int],
    late: array[int],
    result: array[int],
) -> None:
    """Play requests. Blocks and keys are numbered from 1, so that 0 is none.

    held, address, before, after: each block's bytes, and its place among its segment's blocks. state: pool, and 1 if
    free. below: the block of the same key that is next to be freed; of an unused number, the next unused one. pools:
    free blocks by pool, sorted by bytes and address.
    """
    width = len(held)
    unused, fresh, next_address = 0, 1, 0
    in_use, most_in_use, reserved, most_reserved = 0, 0, 0, 0
    waiting = 0
    result[2] = -1
    for place in range(len(stretches)):
        stretch = stretches[place]
        for repetition in range(times[place]):
            for request in range(starts[stretch], ends[stretch]):
                what, key = whats[request], keys[request]
                if what <= TAKE_ONCE:
                    if what == TAKE_ONCE and newest[key]:
                        continue
                    size, stream = sizes[request], streams[request]
                    is_small = size <= SMALL
                    pool = 2 * stream + (0 if is_small else 1)
                    if stream == 1 and waiting >= IN_FLIGHT:
                        give = late[0]
                        for index in range(1, waiting):
                            late[index - 1] = late[index]
                        waiting -= 1
                    else:
                        give = 0
                elif what == EMPTY:
                    give = 0
                else:
                    give = newest[key]
                    if give == 0:
                        continue
                    if what == GIVE_BEFORE:
                        above, give = give, below[give]
                        if give == 0:
                            continue
                        below[above] = below[give]
                    else:
                        newest[key] = below[give]
                    if what == GIVE_LATE:
                        if waiting < MOST_LATE:
                            late[waiting] = give
                            waiting += 1
                            continue
                        oldest = late[0]
                        for index in range(1, waiting):
                            late[index - 1] = late[index]
                        late[waiting - 1] = give
                        give = oldest
                while give:
                    # free a block: merge it with its free neighbours and cache it
                    block = give
                    its_pool = state[block] // 2
                    base = its_pool * width
                    in_use -= held[block]
                    for side in range(2):
                        other = after[block] if side == 0 else before[block]
                        if other and state[other] % 2 == 1:
                            low, high = 0, lengths[its_pool]
                            while low < high:
                                middle = (low + high) // 2
                                one = pools[base + middle]
                                if held[one] < held[other] or (
                                    held[one] == held[other] and address[one] < address[other]
                                ):
                                    low = middle + 1
                                else:
                                    high = middle
                            lengths[its_pool] -= 1
                            for index in range(low, lengths[its_pool]):
                                pools[base + index] = pools[base + index + 1]
                            first, second = (block, other) if side == 0 else (other, block)
                            held[first] += held[second]
                            after[first] = after[second]
                            if after[second]:
                                before[after[second]] = first
                            below[second] = unused
                            unused = second
                            block = first
                    state[block] = 2 * its_pool + 1
                    low, high = 0, lengths[its_pool]
                    while low < high:
                        middle = (low + high) // 2
                        one = pools[base + middle]
                        if held[one] < held[block] or (
                            held[one] == held[block] and address[one] < address[block]
                        ):
                            low = middle + 1
                        else:
                            high = middle
                    for index in range(lengths[its_pool], low, -1):
                        pools[base + index] = pools[base + index - 1]
                    pools[base + low] = block
                    lengths[its_pool] += 1
                    give = 0
                    if what == GIVE_ALL:
                        give = newest[key]
                        if give:
                            newest[key] = below[give]
                if TAKE_ONCE < what < EMPTY:
                    continue
                block, asked = 0, 0
                if what != EMPTY:
                    base = pool * width
                    low, high = 0, lengths[pool]
                    while low < high:
                        middle = (low + high) // 2
                        if held[pools[base + middle]] < size:
                            low = middle + 1
                        else:
                            high = middle
                    if low < lengths[pool]:
                        block = pools[base + low]
                        lengths[pool] -= 1
                        for index in range(low, lengths[pool]):
                            pools[base + index] = pools[base + index + 1]
                    elif is_small:
                        asked = SMALL_SEGMENT
                    elif size < WHOLE:
                        asked = LARGE_SEGMENT
                    else:
                        asked = (size + SMALL_SEGMENT - 1) // SMALL_SEGMENT * SMALL_SEGMENT
                if what == EMPTY or reserved + asked > limit:
                    # every wholly free segment goes back
                    for one_pool in range(2 * STREAMS):
                        kept = 0
                        at = one_pool * width
                        for index in range(lengths[one_pool]):
                            one = pools[at + index]
                            if before[one] == 0 and after[one] == 0:
                                reserved -= held[one]
                                below[one] = unused
                                unused = one
                            else:
                                pools[at + kept] = one
                                kept += 1
                        lengths[one_pool] = kept
                    if reserved + asked > limit:
                        result[0], result[1] = most_in_use, most_reserved
                        result[2], result[3], result[4] = place, repetition, request
                        return
                if what == EMPTY:
                    continue
                if block == 0:
                    if unused:
                        block = unused
                        unused = below[block]
                    else:
                        if fresh >= width:
                            result[2] = NO_ROOM
                            return
                        block = fresh
                        fresh += 1
                    reserved += asked
                    most_reserved = max(most_reserved, reserved)
                    held[block], address[block] = asked, next_address
                    before[block], after[block] = 0, 0
                    next_address += asked
                rest = held[block] - size
                if (is_small and rest >= LEAST) or rest > SMALL:
                    if unused:
                        other = unused
                        unused = below[other]
                    else:
                        if fresh >= width:
                            result[2] = NO_ROOM
                            return
                        other = fresh
                        fresh += 1
                    held[block], held[other] = size, rest
                    address[other] = address[block] + size
                    before[other], after[other] = block, after[block]
                    if after[block]:
                        before[after[block]] = other
                    after[block] = other
                    state[other] = 2 * pool + 1
                    low, high = 0, lengths[pool]
                    while low < high:
                        middle = (low + high) // 2
                        one = pools[base + middle]
                        if held[one] < rest or (
                            held[one] == rest and address[one] < address[other]
                        ):
                            low = middle + 1
                        else:
                            high = middle
                    for index in range(lengths[pool], low, -1):
                        pools[base + index] = pools[base + index - 1]
                    pools[base + low] = other
                    lengths[pool] += 1
                state[block] = 2 * pool
                below[block] = newest[key]
                newest[key] = block
                in_use += held[block]
                most_in_use = max(most_in_use, in_use)
    result[0], result[1] = most_in_use, most_reserved
