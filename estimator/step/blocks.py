"""PyTorch's caching allocator: what blocks a run's requests get, what is taken from the driver, and where it dies.

A freed block stays cached. A request takes the smallest cached block of its stream that is large enough and splits off
the rest; free neighbours are merged. Where the card has no room for a new segment, all wholly free segments go back to
the driver first, and the run dies if that is not enough. What a request over 1 MiB leaves of its block is kept with it
if it is at most 1 MiB, so blocks are larger than tensors.

With ``expandable_segments`` each stream has two segments that grow by pages where they end, blocks are split to 512
bytes, and what goes back are wholly free pages. With ``max_split_size_mb`` larger blocks are kept whole for requests as
large, and on a full card only as many of them go back first as the request needs.

``garbage_collection_threshold`` does nothing here, as in torch 2.13 unless ``per_process_memory_fraction`` is below 1
(played with and without): ``garbage_collect_cached_blocks`` is called where ``set_fraction`` is true.

Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``malloc``, ``get_allocation_size``, ``get_free_block``,
``should_split``, ``free_block``, ``try_merge_blocks``, ``release_available_cached_blocks``, ``release_cached_blocks``;
its defaults. Segments that grow:
``find_expandable_block``, ``map_block``, ``unmap_block``.

The lines of ``_play`` are compiled where numba is installed (decision 7); without it the same lines are interpreted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from operator import itemgetter
from types import FunctionType
from typing import Any, NamedTuple

from estimator.values.facets.allocator import Allocator

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
CLASSES = 512
"""Size classes of a pool's free blocks: eight between two powers of two, up to 2^63 bytes. Each is in order of bytes
and addresses, and short: in five models' runs a block that is freed passes one to three others."""
UNTOUCHED = 6144 * MIB // 5
"""Bytes of a card, 1.2 GiB, that transformers leaves free when it warms the cache up."""
MOST_BEGUN = 3
"""Memories of cards from which a run is played on: as many as are kept of one, for the bytes they take. Ours."""
NO_ROOM = -2
"""What ``_play`` says where a run has more blocks than it was given numbers for."""

TAKE, TAKE_ONCE, GIVE, GIVE_BEFORE, GIVE_OLDEST, GIVE_LATE, GIVE_ALL, WAIT, EMPTY = range(9)
"""What a request does: allocate a tensor under a key; the same unless the key has one; free the newest of a key; free
the one before it; free the oldest; free the newest two gathers later; free all of a key; wait for the card; give all
wholly free segments back to the driver (``torch.cuda.empty_cache``)."""
_ADDS = dict.fromkeys(range(EMPTY + 1), 0) | {TAKE: 1, TAKE_ONCE: 1}
_ADDS |= dict.fromkeys((GIVE, GIVE_BEFORE, GIVE_OLDEST, GIVE_LATE), -1)
"""Tensors that a request adds; ``GIVE_ALL`` frees any number."""


class Settings(NamedTuple):
    """How the allocator cuts its blocks."""

    expandable: bool = False
    """``expandable_segments``."""
    max_split: int = NO_LIMIT
    """Bytes of a block from which it is not split (``max_split_size_mb``)."""


PLAIN = Settings()


def settings_of(given: Allocator) -> Settings:
    """The settings of ``PYTORCH_CUDA_ALLOC_CONF`` that decide how blocks are cut; its megabytes are MiB.

    >>> settings_of(Allocator(max_split_size_mb=128))
    Settings(expandable=False, max_split=134217728)

    Source: torch 2.13, c10/core/AllocatorConfig.cpp, ``parseMaxSplitSize``.
    """
    most = given.max_split_size_mb
    return Settings(given.expandable_segments, NO_LIMIT if most is None else most * MIB)


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
    warms_up: bool = False
    """Whether the first request is the block with which transformers warms the cache up."""

    @property
    def length(self) -> int:
        """Number of requests."""
        starts, ends = self.spans
        return sum(
            times * (ends[stretch] - starts[stretch])
            for stretch, times in zip(*self.order, strict=True)
        )


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
    alive = [*accumulate((_ADDS[request.what] for request in stretch), initial=0)]
    return max(alive), alive[-1]


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
    log: Log, limit: int = NO_LIMIT, settings: Settings = PLAIN, ahead: int = IN_FLIGHT
) -> Played:
    """Play a log on a card that gives the allocator at most ``limit`` bytes.

    ``ahead``: gathers by which the CPU runs ahead of the card; none where a card finishes everything at once.
    """
    return Plays(log, settings, ahead).on(limit)


class Plays:
    """A log on cards of several sizes, of which what they have in common is played once.

    A card's size matters only where a request would exceed it. So what becomes of a run on one card becomes of it on
    all between the most that it reserved and the least that was too much, and a run on any other begins where the two
    part.
    """

    def __init__(self, log: Log, settings: Settings = PLAIN, ahead: int = IN_FLIGHT) -> None:
        self._log, self._settings, self._ahead = log, settings, ahead
        self._blocks = 2 * log.most + 1024
        self._known: list[tuple[int, int, Played]] = []
        """What became of the run on cards from one size up to another."""
        self._reached: array[int] | None = None
        """Bytes that are reserved at most up to each place in the order, on a card with memory to spare."""
        self._begun: list[_Memory] = []
        """The memory of the card before some places, the later the more it had reserved."""

    def on(self, limit: int) -> Played:
        """What becomes of the run on a card that gives the allocator at most ``limit`` bytes."""
        for least, more, known in self._known:
            if least <= limit < more:
                return known
        log = _warmed(self._log, limit)
        least, more, played = self._play(log, limit)
        if self._log.warms_up:
            whole = log.requests[2][0] + UNTOUCHED
            least, more = (max(least, whole), more) if log is self._log else (limit, limit + 1)
        self._known.append((least, more, played))
        return played

    def _play(self, log: Log, limit: int) -> tuple[int, int, Played]:
        """What happens, and on which cards: from one size up to another."""
        while True:
            memory = self._begin(log, limit)
            reached = _numbers(len(log.order[0]))
            memory.play(log, limit, self._settings, self._ahead, reached, len(reached))
            if memory.now[DIED] != NO_ROOM:
                break
            self._blocks, self._begun = 2 * self._blocks, []
        allocated, reserved, refused, died, *where = memory.now[MOST_IN_USE : 1 + REQUEST]
        if refused == NO_LIMIT and log is self._log:
            self._reached = reached
        more = refused if refused < NO_LIMIT else NO_LIMIT + 1
        return reserved, more, Played(allocated, reserved, None if died < 0 else died, *where)

    def _begin(self, log: Log, limit: int) -> _Memory:
        """The memory of a card before it differs from one with memory to spare; empty where none was played."""
        empty = _Memory.of(log, self._blocks)
        if self._reached is None or log is not self._log:
            return empty
        fits = [memory for memory in self._begun if memory.now[MOST_RESERVED] <= limit]
        found = max(fits, key=lambda memory: memory.now[PLACE], default=empty).copy(self._blocks)
        place = bisect_right(self._reached, limit)
        if place > found.now[PLACE]:
            found.play(log, limit, self._settings, self._ahead, self._reached[:], place)
            if found.now[DIED] != NO_ROOM:
                self._begun = [*self._begun[1 - MOST_BEGUN :], found.copy()]
        return found


class _Memory(NamedTuple):
    """A card's memory: what ``_play`` reads and changes."""

    blocks: array[int]
    """The records of its blocks."""
    first: array[int]
    """The first free block of each pool and size class, and of each pool the highest class that it ever had."""
    segments: array[int]
    """Each pool's segment that grows."""
    newest: array[int]
    """The block of each key that is freed first."""
    late: array[int]
    """Blocks that wait to be freed."""
    now: array[int]
    """Numbers beside these."""

    @classmethod
    def of(cls, log: Log, blocks: int) -> _Memory:
        """An empty card's, for so many blocks."""
        found = cls(
            _numbers(RECORD * blocks),
            _numbers(2 * STREAMS * CLASSES),
            _numbers(2 * STREAMS * SEGMENT),
            _numbers(log.keys),
            _numbers(MOST_LATE),
            _numbers(1 + REQUEST),
        )
        found.blocks[ADDRESS] = RECORD
        found.now[REFUSED], found.now[DIED] = NO_LIMIT, -1
        return found

    def copy(self, blocks: int = 0) -> _Memory:
        """The same memory with numbers for so many blocks; none: for those that were used."""
        used = self.blocks[ADDRESS]
        free = _numbers(max(0, RECORD * blocks - used))
        return _Memory(self.blocks[:used] + free, *(numbers[:] for numbers in self[1:]))

    def play(
        self,
        log: Log,
        limit: int,
        settings: Settings,
        ahead: int,
        reached: array[int],
        until: int,
    ) -> None:
        """Play the log up to a place; ``reached``: receives what is reserved at most up to each."""
        _player()(
            *log.requests, *log.spans, *log.order, limit, *settings, ahead, *self, reached, until
        )


def _warmed(log: Log, limit: int) -> Log:
    """The same with a first block no larger than the card less ``UNTOUCHED``.

    Leaves out: transformers reads all of the card's memory, with the CUDA context in it.

    Source: transformers 5.23, modeling_utils.py, ``caching_allocator_warmup``.
    """
    whats, keys, sizes, streams = log.requests
    if not log.warms_up or sizes[0] <= limit - UNTOUCHED:
        return log
    sizes = array("q", sizes)
    sizes[0] = max(LEAST, (limit - UNTOUCHED) // LEAST * LEAST)
    return log._replace(requests=[whats, keys, sizes, streams])


def _numbers(count: int) -> array[int]:
    return array("q", [0]) * count


@cache
def _player() -> Callable[..., None]:
    """``_play``, compiled where numba is installed and remembered on disk where a folder can be written."""
    try:
        from numba import njit  # noqa: PLC0415 - half a second, and not needed for a refusal
    except ImportError:
        return _play

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # no folder for its cache
            return njit(**options)(function)

    # without counting references: no function makes or keeps an array
    options: dict[str, Any] = {"nogil": True, "forceinline": True, "_nrt": False}

    known = dict(globals())
    for function in (
        *(_class, _next, _find, _add, _drop, _new, _join, _cut, _free, _free_oldest),
        *(_reach, _start, _pages, _grow, _shrink, _give_back, _largest, _give_large_back),
    ):
        known[function.__name__] = compiled(FunctionType(function.__code__, known))
    played: Callable[..., None] = compiled(FunctionType(_play.__code__, known))
    return played


# All arrays of a run are passed from call to call, and numba counts each one's references: so blocks have one array. A
# block is the place of its record in it, from RECORD on; the record before it, of block 0, which is none, has the first
# unused block below it, and as its address the first that never was used.

HELD, ADDRESS, BEFORE, AFTER, STATE, BELOW, FOLLOWING, PRECEDING = range(8)
"""A block's record: its bytes; its address; the blocks of its segment before and after it; its state, which is twice
its pool, and 1 more if it is free, or ``UNMAPPED``; the block of the same key that is next to be freed, or of an unused
one the next unused; the free blocks of its size class after and before it, before the first of them the place of the
class in ``first``, inverted."""
RECORD = 8
"""Numbers of a record; 64 bytes, as a processor's cache reads them at once."""
HEAD, TAIL, HOLES = range(3)
"""Of each pool's segment that grows: its first block, its last, which is unmapped and endless, and how many others are
unmapped."""
SEGMENT = 3
"""Numbers of such a segment."""
PLACE, NEXT_ADDRESS, IN_USE, RESERVED, WAITING = range(5)
"""Numbers of a card's memory: the place in the order that comes next, the first address that no segment had, bytes of
blocks in use and of segments, and how many blocks wait to be freed."""
MOST_IN_USE, MOST_RESERVED, REFUSED, DIED, REPETITION, REQUEST = range(5, 11)
"""The most of both so far, the fewest bytes of segments that were too many, the place that died (-1: none, or
``NO_ROOM``), how often its stretch had run before, and the request."""


def _class(size: int) -> int:
    """The size class of a block: of larger ones it is no lower. By halves, which are faster than a logarithm.

    >>> [_class(size) for size in (512, 640, 1023, 1024)]
    [72, 74, 79, 80]
    """
    rest, power = size, 0
    if rest >= 1 << 32:
        rest, power = rest >> 32, 32
    if rest >= 1 << 16:
        rest, power = rest >> 16, power + 16
    if rest >= 1 << 8:
        rest, power = rest >> 8, power + 8
    if rest >= 1 << 4:
        rest, power = rest >> 4, power + 4
    if rest >= 1 << 2:
        rest, power = rest >> 2, power + 2
    if rest >= 1 << 1:
        power += 1
    return 8 * power + (size >> (power - 3)) % 8


def _next(blocks: array[int], first: array[int], pool: int, block: int) -> int:
    """The free block of a pool that is next larger, or as large and next higher; 0 where there is none."""
    if blocks[block + FOLLOWING]:
        return blocks[block + FOLLOWING]
    start, end = pool * CLASSES + _class(blocks[block + HELD]) + 1, pool * CLASSES
    for place in range(start, end + first[end] + 1):
        if first[place]:
            return first[place]
    return 0


def _find(blocks: array[int], first: array[int], pool: int, size: int) -> int:
    """The smallest free block of a pool that holds a request, the lowest of equal ones; 0 where there is none."""
    place = pool * CLASSES + _class(size)
    block = first[place]
    while block and blocks[block + HELD] < size:
        block = blocks[block + FOLLOWING]
    highest = pool * CLASSES + first[pool * CLASSES]
    while block == 0 and place < highest:
        place += 1
        block = first[place]
    return block


def _add(
    blocks: array[int],
    first: array[int],
    pool: int,
    block: int,
) -> None:
    """Cache a free block."""
    size, at = blocks[block + HELD], blocks[block + ADDRESS]
    of = _class(size)
    first[pool * CLASSES] = max(first[pool * CLASSES], of)  # no block is of class 0
    place = pool * CLASSES + of
    lower, higher = ~place, first[place]
    while higher and (
        blocks[higher + HELD] < size
        or (blocks[higher + HELD] == size and blocks[higher + ADDRESS] < at)
    ):
        lower, higher = higher, blocks[higher + FOLLOWING]
    blocks[block + FOLLOWING], blocks[block + PRECEDING] = higher, lower
    if higher:
        blocks[higher + PRECEDING] = block
    if lower > 0:
        blocks[lower + FOLLOWING] = block
    else:
        first[place] = block
    blocks[block + STATE] = 2 * pool + 1


def _drop(
    blocks: array[int],
    first: array[int],
    block: int,
) -> None:
    """Take a block out of the cache."""
    lower, higher = blocks[block + PRECEDING], blocks[block + FOLLOWING]
    if higher:
        blocks[higher + PRECEDING] = lower
    if lower > 0:
        blocks[lower + FOLLOWING] = higher
    else:
        first[~lower] = higher


def _new(blocks: array[int]) -> int:
    """An unused block; 0 where there is none."""
    block = blocks[BELOW]
    if block:
        blocks[BELOW] = blocks[block + BELOW]
    elif blocks[ADDRESS] < len(blocks):
        block = blocks[ADDRESS]
        blocks[ADDRESS] += RECORD
    return block


def _join(
    blocks: array[int],
    first: int,
    second: int,
) -> None:
    """Make two neighbours one, under the first one's number."""
    blocks[first + HELD] += blocks[second + HELD]
    blocks[first + AFTER] = blocks[second + AFTER]
    if blocks[second + AFTER]:
        blocks[blocks[second + AFTER] + BEFORE] = first
    blocks[second + BELOW], blocks[BELOW] = blocks[BELOW], second


def _cut(
    blocks: array[int],
    block: int,
    size: int,
) -> int:
    """Leave a block so many bytes. Returns the rest, in no state yet; 0 where numbers run out."""
    rest = _new(blocks)
    if rest:
        blocks[rest + HELD] = blocks[block + HELD] - size
        blocks[rest + ADDRESS] = blocks[block + ADDRESS] + size
        blocks[rest + BEFORE], blocks[rest + AFTER] = block, blocks[block + AFTER]
        if blocks[block + AFTER]:
            blocks[blocks[block + AFTER] + BEFORE] = rest
        blocks[block + HELD], blocks[block + AFTER] = size, rest
    return rest


def _free(
    blocks: array[int],
    first: array[int],
    block: int,
) -> None:
    """Merge a block with its free neighbours and cache it."""
    pool = blocks[block + STATE] // 2
    for side in range(2):
        other = blocks[block + AFTER] if side == 0 else blocks[block + BEFORE]
        if other and blocks[other + STATE] % 2 == 1:
            _drop(blocks, first, other)
            lower, higher = (block, other) if side == 0 else (other, block)
            _join(blocks, lower, higher)
            block = lower
    _add(blocks, first, pool, block)


def _free_oldest(blocks: array[int], first: array[int], late: array[int], waiting: int) -> int:
    """Free the block that waits longest. Returns how many wait then."""
    _free(blocks, first, late[0])
    for index in range(1, waiting):
        late[index - 1] = late[index]
    return waiting - 1


def _reach(blocks: array[int], block: int) -> int:
    """Bytes that a free block has or can have where its segment grows."""
    other = blocks[block + AFTER]
    grows = other != 0 and blocks[other + STATE] == UNMAPPED
    return blocks[block + HELD] + (blocks[other + HELD] if grows else 0)


def _start(blocks: array[int], segments: array[int], pool: int, size: int) -> int:
    """The block of a pool's segment at whose lowest address there is room for a request, mapped or not."""
    at = SEGMENT * pool
    block = segments[at + HEAD] if segments[at + HOLES] else segments[at + TAIL]
    while True:
        if blocks[block + STATE] == UNMAPPED:
            lower = blocks[block + BEFORE]
            start = lower if lower and blocks[lower + STATE] % 2 == 1 else block
            room, one = 0, start
            while (
                room < size
                and one
                and (blocks[one + STATE] == UNMAPPED or blocks[one + STATE] % 2 == 1)
            ):
                room += blocks[one + HELD]
                one = blocks[one + AFTER]
            if room >= size:
                return start
        block = blocks[block + AFTER]


def _pages(blocks: array[int], block: int, size: int, page: int) -> int:
    """Bytes that must be mapped from a block on to hold a request."""
    asked = 0
    while size > 0:
        part = blocks[block + HELD]
        if blocks[block + STATE] == UNMAPPED:
            part = (min(part, size) + page - 1) // page * page
            asked += part
        size -= part
        block = blocks[block + AFTER]
    return asked


def _grow(
    blocks: array[int],
    first: array[int],
    segments: array[int],
    pool: int,
    block: int,
    size: int,
    page: int,
) -> bool:
    """Map pages from a block on until it holds a request; it is in no pool then. False where numbers run out."""
    if blocks[block + STATE] != UNMAPPED:
        _drop(blocks, first, block)
    while blocks[block + STATE] == UNMAPPED or blocks[block + HELD] < size:
        grown = block if blocks[block + STATE] == UNMAPPED else blocks[block + AFTER]
        wanted = size if grown == block else size - blocks[block + HELD]
        part = (min(blocks[grown + HELD], wanted) + page - 1) // page * page
        if part < blocks[grown + HELD]:
            rest = _cut(blocks, grown, part)
            if rest == 0:
                return False
            blocks[rest + STATE] = UNMAPPED
            if segments[SEGMENT * pool + TAIL] == grown:
                segments[SEGMENT * pool + TAIL] = rest
        else:
            segments[SEGMENT * pool + HOLES] -= 1
        blocks[grown + STATE] = 2 * pool
        if grown != block:
            _join(blocks, block, grown)
        other = blocks[block + AFTER]
        if other and blocks[other + STATE] % 2 == 1:
            _drop(blocks, first, other)
            _join(blocks, block, other)
    return True


def _shrink(blocks: array[int], first: array[int], segments: array[int], pool: int) -> int:
    """Unmap a pool's wholly free pages. Returns their bytes; -1 where numbers run out."""
    page = LARGE_SEGMENT if pool % 2 else SMALL_SEGMENT
    given, block = 0, _find(blocks, first, pool, LEAST)
    while block:
        begin = (blocks[block + ADDRESS] + page - 1) // page * page
        end = (blocks[block + ADDRESS] + blocks[block + HELD]) // page * page
        if begin >= end:
            block = _next(blocks, first, pool, block)
            continue
        _drop(blocks, first, block)
        given += end - begin
        if end < blocks[block + ADDRESS] + blocks[block + HELD]:
            rest = _cut(blocks, block, end - blocks[block + ADDRESS])
            if rest == 0:
                return -1
            _add(blocks, first, pool, rest)
        if begin > blocks[block + ADDRESS]:
            rest = _cut(blocks, block, begin - blocks[block + ADDRESS])
            if rest == 0:
                return -1
            _add(blocks, first, pool, block)
            block = rest
        blocks[block + STATE] = UNMAPPED
        segments[SEGMENT * pool + HOLES] += 1
        for side in range(2):
            other = blocks[block + AFTER] if side == 0 else blocks[block + BEFORE]
            if other and blocks[other + STATE] == UNMAPPED:
                lower, higher = (block, other) if side == 0 else (other, block)
                if segments[SEGMENT * pool + TAIL] == higher:
                    segments[SEGMENT * pool + TAIL] = lower
                segments[SEGMENT * pool + HOLES] -= 1
                _join(blocks, lower, higher)
                block = lower
        block = _find(blocks, first, pool, LEAST)  # what is left of it may stand anywhere
    return given


def _give_back(
    blocks: array[int], first: array[int], segments: array[int], expandable: bool
) -> int:
    """Give what is wholly free back: segments, or pages of those that grow. Returns bytes; -1 where numbers run out."""
    given = 0
    for pool in range(2 * STREAMS):
        if expandable:
            part = _shrink(blocks, first, segments, pool)
            if part < 0:
                return -1
            given += part
            continue
        block = _find(blocks, first, pool, LEAST)
        while block:
            one, block = block, _next(blocks, first, pool, block)
            if blocks[one + BEFORE] == 0 and blocks[one + AFTER] == 0:
                _drop(blocks, first, one)
                given += blocks[one + HELD]
                blocks[one + BELOW], blocks[BELOW] = blocks[BELOW], one
    return given


def _largest(blocks: array[int], first: array[int], pool: int) -> int:
    """A pool's largest free block, the highest of equal ones; 0 where there is none."""
    block = 0
    for place in range(pool * CLASSES + first[pool * CLASSES], pool * CLASSES, -1):
        block = first[place]
        if block:
            break
    while block and blocks[block + FOLLOWING]:
        block = blocks[block + FOLLOWING]
    return block


def _give_large_back(
    blocks: array[int], first: array[int], pool: int, size: int, max_split: int
) -> int:
    """Give back the smallest of a pool's whole blocks that is as large as a request, else the largest ones until they
    are. Returns bytes, negative where all of them are too few: the request is not tried again then.

    Source: ``release_available_cached_blocks``.
    """
    wanted, given = max(size, max_split), 0
    one = _find(blocks, first, pool, wanted)
    while given < wanted:
        if one == 0:
            one = _largest(blocks, first, pool)
        if one == 0 or blocks[one + HELD] < max_split:
            return -given
        _drop(blocks, first, one)
        given += blocks[one + HELD]
        blocks[one + BELOW], blocks[BELOW] = blocks[BELOW], one
        one = 0
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
    max_split: int,
    ahead: int,
    blocks: array[int],
    first: array[int],
    segments: array[int],
    newest: array[int],
    late: array[int],
    now: array[int],
    reached: array[int],
    until: int,
) -> None:
    """Play requests up to a place in the order, as ``_Memory.play``."""
    next_address, in_use, reserved, waiting = (
        now[NEXT_ADDRESS],
        now[IN_USE],
        now[RESERVED],
        now[WAITING],
    )
    most_in_use, most_reserved, refused = now[MOST_IN_USE], now[MOST_RESERVED], now[REFUSED]
    for place in range(now[PLACE], until):
        stretch = stretches[place]
        for repetition in range(times[place]):
            for request in range(starts[stretch], ends[stretch]):
                what, key = whats[request], keys[request]
                if what >= WAIT:
                    while waiting:
                        waiting = _free_oldest(blocks, first, late, waiting)
                    if what == EMPTY:
                        given = _give_back(blocks, first, segments, expandable)
                        if given < 0:
                            now[DIED] = NO_ROOM
                            return
                        reserved -= given
                    continue
                if what > TAKE_ONCE:
                    give = newest[key]
                    if what == GIVE_BEFORE and give:
                        above, give = give, blocks[give + BELOW]
                        if give:
                            blocks[above + BELOW] = blocks[give + BELOW]
                    elif what == GIVE_OLDEST and give and blocks[give + BELOW]:
                        above = give
                        while blocks[give + BELOW]:
                            above, give = give, blocks[give + BELOW]
                        blocks[above + BELOW] = 0
                    elif give:
                        newest[key] = blocks[give + BELOW]
                    while give:
                        in_use -= blocks[give + HELD]
                        if what == GIVE_LATE and ahead:
                            if waiting == MOST_LATE:
                                waiting = _free_oldest(blocks, first, late, waiting)
                            late[waiting] = give
                            waiting += 1
                        else:
                            _free(blocks, first, give)
                        give = newest[key] if what == GIVE_ALL else 0
                        if give:
                            newest[key] = blocks[give + BELOW]
                    continue
                if what == TAKE_ONCE and newest[key]:
                    continue
                size, stream = sizes[request], streams[request]
                is_small = size <= SMALL
                pool = 2 * stream + (0 if is_small else 1)
                if stream == 1 and waiting and waiting >= ahead:
                    waiting = _free_oldest(blocks, first, late, waiting)
                page = SMALL_SEGMENT if is_small else LARGE_SEGMENT
                block = _find(blocks, first, pool, size)
                if block:
                    while expandable:
                        other = _next(blocks, first, pool, block)
                        if other == 0 or _reach(blocks, other) >= _reach(blocks, block):
                            break
                        block = other
                    whole = blocks[block + HELD]
                    if whole >= max_split and (
                        size < max_split or whole >= size + LARGE_SEGMENT
                    ):  # of a large block, which is not split, no more than this may be left over
                        block = 0
                if block:
                    _drop(blocks, first, block)
                else:
                    asked = page
                    if expandable:
                        if segments[SEGMENT * pool + TAIL] == 0:
                            tail = _new(blocks)
                            if tail == 0:
                                now[DIED] = NO_ROOM
                                return
                            blocks[tail + HELD], blocks[tail + ADDRESS] = SPAN, pool * SPAN
                            blocks[tail + BEFORE], blocks[tail + AFTER] = 0, 0
                            blocks[tail + STATE] = UNMAPPED
                            segments[SEGMENT * pool + HEAD], segments[SEGMENT * pool + TAIL] = (
                                tail,
                                tail,
                            )
                        block = _start(blocks, segments, pool, size)
                        asked = _pages(blocks, block, size, page)
                    elif size >= WHOLE:
                        asked = (size + SMALL_SEGMENT - 1) // SMALL_SEGMENT * SMALL_SEGMENT
                    is_short = reserved + asked > limit
                    if is_short:
                        refused = min(refused, reserved + asked)
                    if is_short and max_split < NO_LIMIT and not expandable:
                        given = _give_large_back(blocks, first, pool, size, max_split)
                        reserved -= abs(given)
                        is_short = given < 0 or reserved + asked > limit
                        if is_short:
                            refused = min(refused, reserved + asked)
                    if is_short:
                        while waiting:
                            waiting = _free_oldest(blocks, first, late, waiting)
                        given = _give_back(blocks, first, segments, expandable)
                        if given < 0:
                            now[DIED] = NO_ROOM
                            return
                        reserved -= given
                        if expandable:
                            block = _start(blocks, segments, pool, size)
                            asked = _pages(blocks, block, size, page)
                        if reserved + asked > limit:
                            now[MOST_IN_USE], now[MOST_RESERVED] = most_in_use, most_reserved
                            now[REFUSED] = min(refused, reserved + asked)
                            now[DIED], now[REPETITION], now[REQUEST] = place, repetition, request
                            return
                    reserved += asked
                    most_reserved = max(most_reserved, reserved)
                    if expandable:
                        if not _grow(blocks, first, segments, pool, block, size, page):
                            now[DIED] = NO_ROOM
                            return
                    else:
                        block = _new(blocks)
                        if block == 0:
                            now[DIED] = NO_ROOM
                            return
                        blocks[block + HELD], blocks[block + ADDRESS] = asked, next_address
                        blocks[block + BEFORE], blocks[block + AFTER] = 0, 0
                        next_address += asked
                rest = blocks[block + HELD] - size
                if ((is_small or expandable) and rest >= LEAST) or (
                    rest > SMALL and size < max_split
                ):
                    other = _cut(blocks, block, size)
                    if other == 0:
                        now[DIED] = NO_ROOM
                        return
                    _add(blocks, first, pool, other)
                blocks[block + STATE] = 2 * pool
                blocks[block + BELOW] = newest[key]
                newest[key] = block
                in_use += blocks[block + HELD]
                most_in_use = max(most_in_use, in_use)
        reached[place] = most_reserved
    now[PLACE], now[NEXT_ADDRESS] = until, next_address
    now[IN_USE], now[RESERVED], now[WAITING] = in_use, reserved, waiting
    now[MOST_IN_USE], now[MOST_RESERVED], now[REFUSED] = most_in_use, most_reserved, refused
