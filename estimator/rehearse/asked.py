"""What a run asked PyTorch's allocator for: the least memory that is enough, and what lay in it at the peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from estimator.rehearse.lines import CodeLine, line_of
from estimator.step.blocks import (
    EMPTY,
    GIVE,
    LEAST,
    MIB,
    NO_LIMIT,
    PLAIN,
    STREAMS,
    TAKE,
    Log,
    Request,
    Settings,
    log_of,
    play,
    rounded,
)

WHAT = (TAKE, GIVE, EMPTY)
"""What the numbers of ``on_path/headroom_inside/asked.py`` are to ``estimator.step.blocks``."""
WARM_UP = "caching_allocator_warmup"
"""transformers' function that asks for a block as large as the model before it loads it."""


class MadeAt(NamedTuple):
    """Where a request was made; nothing is known of autograd's own threads."""

    script: CodeLine | None
    library: CodeLine | None

    def __str__(self) -> str:
        where = [str(line) for line in self if line is not None]
        return f"at {', in '.join(where)}" if where else "by autograd"


class AskedTensor(NamedTuple):
    """A block from its request to its return. Times in microseconds."""

    size: int
    """Bytes as asked for."""
    begin: int
    end: int | None
    """None: it was there when the record ended."""
    place: MadeAt


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequests:
    """The requests of one device, in order."""

    log: Log
    streams: int
    settings: Settings
    tensors: Mapping[int, AskedTensor]
    order: Sequence[tuple[int, int]]
    """Requests and returns: 1 or -1, and which tensor."""
    held: Mapping[str, Sequence[int]]
    """The tensors that the script's variables hold as the run ends, by name."""
    workspaces: int
    """When cuBLAS's workspaces were given back, at the end."""

    def peak(self) -> Sequence[int]:
        """The tensors alive when most bytes are."""
        now = most = at = 0
        for number, (sign, key) in enumerate(self.order):
            now += sign * self.tensors[key].size
            if now > most:
                most, at = now, number
        alive: dict[int, None] = {}
        for sign, key in self.order[: at + 1]:
            if sign > 0:
                alive[key] = None
            else:
                del alive[key]
        return [*alive]

    def least(self) -> int | None:
        """The least bytes for PyTorch on which the same requests go through, to a MiB; None where that is not known.

        Runs may go through on a card and die on a slightly larger one, since other cached blocks are reused.

        Source: ``estimator.step.blocks``; the requests are those of the run.
        """
        if self.streams > STREAMS:
            return None
        spare = play(self.log, NO_LIMIT, self.settings)
        low, high = spare.allocated - 1, spare.reserved
        while high - low > MIB:
            room = (low + high) // 2
            if play(self.log, room, self.settings).died is None:
                high = room
            else:
                low = room
        return high


def read_devices(found: Mapping[str, Any]) -> tuple[DeviceRequests | None, ...]:
    """Each device's requests; None of one whose record is not whole."""
    places = [
        MadeAt(line_of(place["line"]), line_of(place["library_line"])) for place in found["places"]
    ]
    return tuple(
        _device(device, places, found) if device["is_whole"] else None
        for device in found["devices"]
    )


def _device(
    found: Mapping[str, Any], places: Sequence[MadeAt], of_all: Mapping[str, Any]
) -> DeviceRequests:
    numbers: dict[int, int] = {}
    requests: list[Request] = []
    order: list[tuple[int, int]] = []
    tensors: dict[int, AskedTensor] = {}
    columns = (found[name] for name in ("what", "key", "size", "stream", "time", "place"))
    nowhere = MadeAt(None, None)
    for kind, key, size, stream, time, place in zip(*columns, strict=True):
        what = WHAT[kind]
        if time >= of_all["workspaces"] and what != TAKE:
            if key in tensors:
                tensors[key] = tensors[key]._replace(end=time)
            continue
        if what == TAKE:
            numbers[key] = len(numbers)
            where = places[place] if place >= 0 else nowhere
            tensors[key] = AskedTensor(size, time, None, where)
            order.append((1, key))
        elif what == GIVE:
            tensors[key] = tensors[key]._replace(end=time)
            order.append((-1, key))
        held = max(LEAST, -(-size // LEAST) * LEAST)
        requests.append(Request(what, numbers.get(key, 0), held if what == TAKE else 0, stream))
    divisions, settings = _settings(of_all["settings"])
    log = rounded(log_of([requests], [(0, 1)]), divisions)
    first = next((places[place].library for place in found["place"][:1] if place >= 0), None)
    return DeviceRequests(
        log=log._replace(warms_up=first is not None and first.function == WARM_UP),
        streams=len({*found["stream"]}),
        settings=settings,
        tensors=tensors,
        order=order,
        held=found["held"],
        workspaces=of_all["workspaces"],
    )


def _settings(said: Mapping[str, Any]) -> tuple[int, Settings]:
    """Divisions of a power of two, and how blocks are cut, of what PyTorch says of its own settings.

    >>> _settings({"expandable_segments": True, "max_split_size": -1, "roundup_power2_divisions": {"1": 0, "2": 0}})
    (1, Settings(expandable=True, max_split=4611686018427387904))
    """
    most = said.get("max_split_size", -1)
    divisions = {*said.get("roundup_power2_divisions", {}).values()}
    return (
        max(1, *divisions, 1),
        PLAIN._replace(
            expandable=bool(said.get("expandable_segments")),
            max_split=most if 0 < most < NO_LIMIT else NO_LIMIT,
        ),
    )
