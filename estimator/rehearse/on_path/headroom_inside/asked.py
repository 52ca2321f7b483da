"""Every request to PyTorch's allocator and the line that made it, as PyTorch's own record has them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from types import FrameType
from typing import Any

from . import lines
from .record import here

MOST = 2**20
"""Requests and returns of memory that are recorded at most, on each device: 128 steps of a model with 80 layers."""
TAKE, GIVE, EMPTY = 0, 1, 2
"""What a row of the record is: a request, its return, ``torch.cuda.empty_cache``."""
DEEPEST = 3
"""Containers inside each other in which tensors of a variable are looked for."""


class RequestRecorder:
    """PyTorch's record of this process; a script's own is this one, too."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        memory = torch.cuda.memory
        begin = memory._record_memory_history
        memory._record_memory_history = lambda *_, **__: None
        torch.cuda._lazy_call(
            lambda: begin("all", context="alloc", stacks="python", max_entries=MOST)
        )
        self._emptied: list[int] = []
        empty = torch._C._cuda_emptyCache

        def emptied() -> None:
            self._emptied.append(now())
            empty()

        torch._C._cuda_emptyCache = emptied

    def written(self) -> dict[str, Any]:
        """All requests in order, in columns; sizes in bytes."""
        workspaces = now()
        if hasattr(self._torch._C, "_cuda_clearCublasWorkspaces"):
            self._torch._C._cuda_clearCublasWorkspaces()
        snapshot = self._torch.cuda.memory._snapshot()
        places = _Places()
        return {
            "settings": {
                name: value
                for name, value in snapshot.get("allocator_settings", {}).items()
                if isinstance(value, (bool, int, float, str, dict))
            },
            "workspaces": workspaces,
            "devices": [self._device(trace, places) for trace in snapshot["device_traces"]],
            "places": places.found,
        }

    def _device(self, trace: list[dict[str, Any]], places: _Places) -> dict[str, Any]:
        rows: list[tuple[int, int, int, int, int, int]] = []
        alive: dict[int, int] = {}
        streams: dict[int, int] = {}
        emptied = iter([*self._emptied, None])
        next_emptied = next(emptied)
        for number, entry in enumerate(trace):
            while next_emptied is not None and next_emptied <= entry["time_us"]:
                rows.append((EMPTY, 0, 0, 0, next_emptied, -1))
                next_emptied = next(emptied)
            if entry["action"] == "alloc":
                alive[entry["addr"]] = number
                stream = streams.setdefault(entry["stream"], len(streams))
                rows.append(
                    (
                        TAKE,
                        number,
                        entry["size"],
                        stream,
                        entry["time_us"],
                        places.of(entry["frames"]),
                    )
                )
            elif entry["action"] == "free_completed" and entry["addr"] in alive:
                rows.append((GIVE, alive.pop(entry["addr"]), 0, 0, entry["time_us"], -1))
        names = ("what", "key", "size", "stream", "time", "place")
        return {
            "is_whole": len(trace) < MOST,
            **{name: [row[at] for row in rows] for at, name in enumerate(names)},
            "held": {
                name: [alive[at] for at in sorted(found) if at in alive]
                for name, found in here.held.items()
            },
        }


class _Places:
    """The innermost line of the script and of a library that made a request; each pair once."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._known: dict[tuple[Any, Any], int] = {}
        self._kinds: dict[str, tuple[bool, bool]] = {}

    def of(self, frames: list[dict[str, Any]]) -> int:
        script = library = None
        for frame in frames:
            file = frame["filename"]
            if file not in self._kinds:
                installed = lines.is_installed(file) or lines.is_ours(file)
                is_library = not lines.is_in_torch(file) and not lines.is_ours(file)
                self._kinds[file] = not installed, is_library and not file.startswith("<")
            is_script, is_library = self._kinds[file]
            at = (file, frame["line"], frame["name"])
            if library is None and is_library:
                library = at
            if is_script:
                script = at
                break
        key = script, library
        if key not in self._known:
            self._known[key] = len(self.found)
            self.found.append(
                {
                    "line": lines.line(*script) if script else None,
                    "library_line": lines.line(*library)
                    if library is not None and library != script
                    else None,
                }
            )
        return self._known[key]


def now() -> int:
    """Microseconds as PyTorch's record has them."""
    return time.time_ns() // 1000


# --- what a script's variables hold -------------------------------------------------------------


def held() -> dict[str, set[int]]:
    """Where the tensors of the script's variables lie on the card, by the variable's name."""
    found: dict[str, set[int]] = {}
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not lines.is_installed(file) and not lines.is_ours(file):
            for name, value in frame.f_locals.items():
                if at := {*_addresses(value)}:
                    found.setdefault(name, set()).update(at)
        frame = frame.f_back
    return found


def _addresses(value: Any, depth: int = 0) -> Iterable[int]:
    """Of a tensor, or of those in a container; a model's and an optimizer's are not looked for."""
    if depth > DEEPEST:
        return
    torch = here.torch
    items: Iterable[Any] = ()
    if isinstance(value, torch.Tensor):
        if value.is_cuda and not isinstance(value, torch.nn.Parameter):
            yield value.untyped_storage().data_ptr()
    # not by their own code: transformers' mappings would import every model
    elif isinstance(value, dict):
        items = dict.values(value)
    elif isinstance(value, list):
        items = list.__iter__(value)
    elif isinstance(value, tuple):
        items = tuple.__iter__(value)
    for item in items:
        yield from _addresses(item, depth + 1)
