"""What this process asked of the card, phase by phase, and how it ended; written as one JSON object."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "bitsandbytes",
    "deepspeed",
    "vllm",
)


class RunRecord:
    """What is known so far."""

    def __init__(self) -> None:
        self.is_on = False
        self.process = 0
        self.null: Any = None
        self.torch: Any = None
        self.library: Any = None
        self.peaks: Any = None
        self.recorder: Any = None
        self.steps = 0
        """Optimizer steps taken."""
        self.backwards = 0
        self.is_compiled = False
        """The script compiles a model, which is left out here."""
        self.now = "loading"
        self.step = 0
        """The step that goes on, from 1; 0 while loading."""
        self.phases: list[dict[str, Any]] = []
        self.ends: list[tuple[int, str, int]] = []
        """When each phase ended, in microseconds, with its name and step."""
        self.held: dict[str, set[int]] = {}
        """Where the tensors of the script's variables lie as the run ends."""
        self.reads: dict[str, Any] = {}
        """Lines of the script that read a value of the card, with the first that they got."""
        self.waits: dict[tuple[int, str], int] = {}
        """How many times a line read a value, by the phases before."""
        self.failed: list[dict[str, Any]] = []
        self.notes: dict[str, None] = {}
        self.keys: dict[str, Any] | None = None
        self.keys_problem = ""
        self.exception = ""


here = RunRecord()


def is_on() -> bool:
    """Whether this process is watched; a forked one is, if the card was not used before."""
    return here.is_on and here.process == os.getpid()


def start() -> None:
    """Begin to watch this process."""
    here.is_on, here.process = True, os.getpid()
    atexit.register(write, "exit")
    util.register_after_fork(here, _forked)
    told = sys.excepthook

    def excepthook(kind: Any, problem: Any, trace: Any) -> None:
        here.exception = f"{kind.__name__}: {problem}"
        told(kind, problem, trace)

    sys.excepthook = excepthook


def _forked(_: RunRecord) -> None:
    """Watch a process of multiprocessing that is forked before the card is used: vLLM's engine is one."""
    if here.torch is not None and not here.torch.cuda.is_initialized():
        here.process = os.getpid()
        util.Finalize(None, write, args=("exit",), exitpriority=1)  # atexit is not asked there


def note(sentence: str) -> None:
    """Say once what was done otherwise than on a real card."""
    here.notes[sentence] = None


def close(name: str, then: str) -> None:
    """End a phase under the name that it turned out to have, and begin the next."""
    if here.torch is not None and here.torch.cuda.is_initialized():
        for device in range(here.torch.cuda.device_count()):
            allocated, reserved = here.peaks.take(device)
            held = here.null.null_take_most(device) if here.null is not None else reserved
            if reserved:
                here.phases.append(
                    {
                        "phase": name,
                        "step": here.step,
                        "device": device,
                        "allocated": allocated,
                        "reserved": reserved,
                        "held": held,
                    }
                )
        here.ends.append((time.time_ns() // 1000, name, here.step))
    if here.now in {"loading", "optimizer"} and then not in {"loading", "optimizer"}:
        here.step += 1
    here.now = then


def refuse(sentence: str) -> NoReturn:
    """End the process: it cannot be rehearsed, for this reason."""
    _put({"refused": sentence})
    os._exit(2)


def write(ended: str) -> None:
    """Write what is known; only a process that used the card does."""
    if not is_on():
        return
    here.is_on = False
    if here.torch is None or not here.torch.cuda.is_initialized():
        return
    close(here.now, here.now)
    _put(
        {
            "rank": int(os.environ.get("RANK", "0")),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "command": sys.argv,
            "versions": {package: found for package in PACKAGES if (found := _version(package))},
            "steps": here.steps,
            "ended": "exception" if here.exception and ended == "exit" else ended,
            "exception": here.exception,
            "phases": here.phases,
            "ends": here.ends,
            "asked": here.recorder.written(),
            "out_of_memory": here.failed,
            "is_compiled": here.is_compiled,
            "notes": list(here.notes),
            "reads": here.reads,
            "keys": here.keys,
            "keys_problem": here.keys_problem,
        }
    )


def finish(ended: str = "steps") -> NoReturn:
    """End the run here: enough steps were taken. Nothing that would follow is run, saving included."""
    write(ended)
    for name in ("multiprocessing", "multiprocess"):  # they would wait for this process for ever
        if name in sys.modules:
            for child in sys.modules[name].active_children():
                child.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _put(what: dict[str, Any]) -> None:
    report = Path(os.environ["HEADROOM_REHEARSAL"]) / f"{os.getpid()}.json"
    begun = report.with_suffix(".begun")
    with contextlib.suppress(OSError):  # the parent has gone, and nobody would read it
        begun.write_text(json.dumps(what, default=str), encoding="utf-8")
        begun.rename(report)  # at once: vLLM kills its engine where it takes long to end


def _version(package: str) -> str:
    if package not in sys.modules:
        return ""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class Peaks:
    """The allocator's peaks of each phase, which are reset at its end; the script's own readings stay right."""

    KINDS = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")

    def __init__(self, c: Any) -> None:
        self._reset, self._stats = c._cuda_resetPeakMemoryStats, c._cuda_memoryStats
        self._since: dict[tuple[int, str], int] = {}
        """The script's peaks since it last reset them, without the phase that is open."""
        self._phase: dict[tuple[int, str], int] = {}
        """The open phase's peaks before the script reset them."""
        c._cuda_memoryStats, c._cuda_resetPeakMemoryStats = self._read, self._reset_by_the_script

    def take(self, device: int) -> tuple[int, int]:
        """Peak bytes allocated and reserved since the last call."""
        found = self._fold(device)
        for kind in self.KINDS:
            key = device, kind
            self._since[key] = max(self._since.get(key, 0), found[kind])
            found[kind] = max(found[kind], self._phase.pop(key, 0))
        return found["allocated_bytes"], found["reserved_bytes"]

    def _fold(self, device: int) -> dict[str, int]:
        stats = self._stats(device)
        self._reset(device)
        return {kind: stats[kind]["all"]["peak"] for kind in self.KINDS}

    def _read(self, device: int) -> Any:
        stats = self._stats(device)
        for kind in self.KINDS:
            all_of_it = stats[kind]["all"]
            all_of_it["peak"] = max(all_of_it["peak"], self._since.get((device, kind), 0))
        return stats

    def _reset_by_the_script(self, device: int) -> None:
        for kind, peak in self._fold(device).items():
            key = device, kind
            self._phase[key] = max(self._phase.get(key, 0), peak)
            self._since.pop(key, None)
