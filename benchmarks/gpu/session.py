"""Measures cases within a time budget; a worker process uses the GPU and may die.

A worker measures one case after another and is replaced when something is left in it, when it patched its libraries,
when a case went wrong, or when it died. Nothing here imports torch.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.gpu.cases import Case, fits
from benchmarks.gpu.worker import Answer, FoundDevice, serve
from estimator import catalog
from estimator.contract import setups as contract
from estimator.proof import rows
from estimator.values.specs import Gpu

CPU = "cpu"
SOURCE = "benchmarks/measure_gpu.py"
MEASURED = "highest of steps 2 to 4 of Trainer, random weights; device at the end of each phase"
GIB = 2**30
PATIENCE_SECONDS = 3.0
"""Seconds before a worker that was told to end is killed."""


class Died(Exception):
    """The worker ended before it answered."""


class CannotStart(Exception):
    """No worker can be started here; the message says why."""


class OutOfTime(Exception):
    """The time budget ended before the worker answered."""


class Driver(NamedTuple):
    """The reading of nvidia-smi while no process of ours uses the card."""

    version: str
    used_bytes: int | None


NO_DRIVER = Driver("", None)


class Measurer(Protocol):
    """Measures cases: a worker, or a test's stand-in."""

    found: FoundDevice

    def ask(self, case: Case, deadline: float) -> Answer:
        """Measures a case; raises ``Died`` or ``OutOfTime`` if no answer comes."""

    def end(self) -> None:
        """Ends the process."""


class Worker:
    """A separate process that uses the GPU, started on construction."""

    def __init__(
        self,
        device: str,
        deadline: float,
        target: Callable[[Connection, str], None] = serve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        spawning = multiprocessing.get_context("spawn")  # a fork would inherit CUDA half begun
        self._clock = clock
        self._pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(target=target, args=(theirs, device), daemon=True)
        self._process.start()
        theirs.close()
        try:
            found = self._receive(deadline)
        except Died as words:
            raise CannotStart(f"The process that should hold the GPU died: {words}.") from None
        if not isinstance(found, FoundDevice):
            raise CannotStart(str(found))
        self.found = found

    def ask(self, case: Case, deadline: float) -> Answer:
        """Measures a case; raises ``Died`` or ``OutOfTime`` if no answer comes."""
        try:
            self._pipe.send(case)
        except OSError:
            raise Died(self._last_words()) from None
        answer = self._receive(deadline)
        assert isinstance(answer, Answer)
        return answer

    def end(self) -> None:
        """Asks the process to end, and kills it if it does not."""
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(PATIENCE_SECONDS)
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _receive(self, deadline: float) -> object:
        if not self._pipe.poll(max(0.0, deadline - self._clock())):
            self._process.kill()
            raise OutOfTime
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            raise Died(self._last_words()) from None

    def _last_words(self) -> str:
        self._process.join(PATIENCE_SECONDS)
        return f"the process ended with exit status {self._process.exitcode}"


@dataclass
class Session:
    """Measures cases and writes rows. Times are seconds of ``clock``."""

    device: str
    budget_seconds: float
    margin: float
    table: Path | None
    """The table to which rows are appended; None: rows are only printed."""
    again: bool = False
    """Whether cases that the table already has are measured again."""
    fresh: bool = False
    """Whether each case gets its own process."""
    start: Callable[[str, float], Measurer] = Worker
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = print
    outcomes: Counter[str] = field(default_factory=Counter)
    _worker: Measurer | None = None
    _driver: Driver = field(default=NO_DRIVER)

    def run(self, cases: Iterable[Case]) -> None:
        """Measures the cases in order until none or no time is left; raises ``CannotStart`` without a GPU."""
        waiting = list(cases)
        deadline = self.clock() + self.budget_seconds
        known = set() if self.again else _known([rows.TABLE, self.table])
        try:
            while waiting and self.clock() < deadline:
                self._one(waiting.pop(0), known, deadline)
        except OutOfTime:
            self.outcomes["cut"] += 1
        finally:
            self._end_worker()
        self.outcomes["left"] = len(waiting) + self.outcomes.pop("cut", 0)
        self._sum_up()

    def _one(self, case: Case, known: set[tuple[str, ...]], deadline: float) -> None:
        try:
            if self._worker is None:
                self._driver = read_driver(self.device)
                self._worker = self.start(self.device, deadline)
            why_not = self._why_not(case, self._worker.found, known)
            if why_not:
                self.outcomes["skipped"] += 1
                self.say(f"skipped   {case.id}: {why_not}")
                return
            began = self.clock()
            answer = self._worker.ask(case, deadline)
        except Died as words:
            self.outcomes["failed"] += 1
            self.say(f"died      {case.id}: {words}; the next case gets a new one")
            self._end_worker()
            return
        self._take(case, answer, self.clock() - began)
        if self.fresh or answer.retire:
            self._end_worker()

    def _why_not(self, case: Case, found: FoundDevice, known: set[tuple[str, ...]]) -> str:
        """A sentence if this case should be skipped here."""
        missing = [name for name in case.needs if name not in found.packages]
        if missing:
            return f"{missing[0]} is not installed"
        gpu = _gpu(found)
        if self._key(case, found) in known:
            return "the table has it already, of this card and these versions (--again repeats it)"
        if found.free_bytes is None:
            return ""
        peak = case.predicted(gpu).peak.bytes
        if not fits(peak, found.free_bytes, self.margin):
            return (
                f"by our estimate it takes {peak / GIB:.1f} GiB, and {self.margin:.0%} more is kept free; "
                f"this card has {found.free_bytes / GIB:.1f}"
            )
        return ""

    def _key(self, case: Case, found: FoundDevice) -> tuple[str, ...]:
        return case.fields(_gpu(found)), found.device, self._versions(found)

    def _versions(self, found: FoundDevice) -> str:
        return found.versions + (f"; driver {self._driver.version}" if self._driver.version else "")

    def _take(self, case: Case, answer: Answer, seconds: float) -> None:
        self.outcomes[answer.outcome] += 1
        if answer.outcome == "failed":
            self.say(f"failed    {case.id}: {answer.said}")
            return
        assert self._worker is not None
        found = self._worker.found
        if self.table is not None:
            rows.append(self.table, self._row(case, answer, found))
        if answer.outcome == rows.OUT_OF_MEMORY:
            self.say(f"no memory {case.id}: {answer.said}")
        else:
            self.say(f"measured  {case.id}: {self._said(case, answer, found)} ({seconds:.0f} s)")

    def _said(self, case: Case, answer: Answer, found: FoundDevice) -> str:
        peak = answer.cells.get("allocated_peak_bytes")
        if peak is None:
            return "four steps, and no counter here"
        predicted = case.predicted(_gpu(found)).peak.bytes
        return f"peak {peak / GIB:.3f} GiB, predicted {100 * (predicted / peak - 1):+.2f} %"

    def _row(self, case: Case, answer: Answer, found: FoundDevice) -> rows.Row:
        return {
            "id": case.id,
            "setup": case.fields(_gpu(found)),
            "gpu": found.device,
            "outcome": answer.outcome,
            "measured": MEASURED,
            **answer.cells,
            "device_idle_bytes": self._driver.used_bytes,
            "versions": self._versions(found),
            "source": SOURCE,
            "retrieved": datetime.now(UTC).date().isoformat(),
            "note": answer.said,
        }

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker = None

    def _sum_up(self) -> None:
        order = ("measured", rows.OUT_OF_MEMORY, "skipped", "failed", "left")
        words = {rows.OUT_OF_MEMORY: "out of memory", "left": "left for lack of time"}
        self.say(
            ", ".join(
                f"{self.outcomes[outcome]} {words.get(outcome, outcome)}" for outcome in order
            )
        )


def read_driver(device: str) -> Driver:
    """Driver version and memory in use, by nvidia-smi; empty without nvidia-smi or if no GPU is requested."""
    if device == CPU:
        return NO_DRIVER
    card = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    query = ["--query-gpu=driver_version,memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(
            ["nvidia-smi", "-i", card, *query],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
        version, used_mib = said.splitlines()[0].split(", ")
        return Driver(version, int(used_mib) * 2**20)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return NO_DRIVER


def _gpu(found: FoundDevice) -> Gpu | None:
    """The card as a custom GPU of the contract; None if there is none."""
    if found.memory_bytes is None:
        return None
    return Gpu(
        name=contract.OWN_GPU,
        memory_bytes=found.memory_bytes,
        compute_capability=found.compute_capability,
    )


def _known(tables: Iterable[Path | None]) -> set[tuple[str, ...]]:
    """Setup, card and versions of every existing row."""
    return {
        (row.setup, row.gpu, row.versions)
        for table in tables
        if table is not None and table.exists() and table.stat().st_size
        for row in catalog.measurements(table)
    }
