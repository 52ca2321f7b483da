"""What a rehearsal found, of the reports that its processes wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estimator.rehearse.asked import DeviceRequests, read_devices
from estimator.rehearse.ledger import TensorKind, ledger
from estimator.rehearse.lines import CodeLine, line_of
from estimator.rehearse.phases import ORDER, PhaseEnd
from estimator.values.results import DOES_NOT_FIT, FITS, NOT_READ

RAN_OUT = "OutOfMemoryError"


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """An allocation that the card had no memory for. All sizes in bytes."""

    asked: int
    allocated: int
    reserved: int
    free: int
    device: int
    phase: str
    step: int
    line: CodeLine | None
    """The innermost line of the script; None: there is none, as where a tool's own command is run."""
    library_line: CodeLine | None
    """The innermost line of a library other than torch, where that is another."""
    module: str
    """The full name of the module that ran; empty outside of a forward pass."""


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """The most of a phase on one device, in bytes."""

    phase: str
    step: int
    """From 1; 0 while loading."""
    device: int
    allocated: int
    reserved: int
    held: int
    """What PyTorch had of the card; less than is allocated where vLLM sleeps, whose memory PyTorch goes on to count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """One process's run."""

    rank: int
    world_size: int
    versions: Mapping[str, str]
    steps: int
    """Optimizer steps taken."""
    ended: str
    """``steps``: as many as asked for; ``exit``: by itself; ``exception``."""
    exception: str
    phases: tuple[PhasePeak, ...]
    failed: tuple[FailedAllocation, ...]
    is_compiled: bool
    """The script compiles its model, and ran here without."""
    notes: tuple[str, ...]
    reads: Mapping[str, object]
    """Lines of the script that read a value of the card, and what they got first."""
    keys: Mapping[str, object] | None
    """The live Trainer as an object of the contract; None without one."""
    keys_problem: str
    ends: tuple[PhaseEnd, ...]
    asked: tuple[DeviceRequests | None, ...]
    """Each device's requests; None where they were too many to record."""

    @property
    def allocated(self) -> int:
        """Most bytes allocated, as ``torch.cuda.max_memory_allocated`` counts them."""
        return max((min(peak.allocated, peak.held) for peak in self.phases), default=0)

    @property
    def reserved(self) -> int:
        """Most bytes reserved, as ``torch.cuda.max_memory_reserved`` counts them."""
        return max((min(peak.reserved, peak.held) for peak in self.phases), default=0)

    @property
    def sleeps(self) -> bool:
        """Whether memory that PyTorch counts was given back to the card, as vLLM does while the trainer trains."""
        return any(peak.held < peak.allocated for peak in self.phases)

    @property
    def ran_out(self) -> FailedAllocation | None:
        """The allocation that ended the run; None where it went through, or ended otherwise."""
        ended = self.ended == "exception" and RAN_OUT in self.exception
        return self.failed[-1] if ended and self.failed else None

    @property
    def least(self) -> int | None:
        """The least bytes for PyTorch, on each device, on which its requests go through; None: not known."""
        if not self.asked or None in self.asked or self.sleeps:
            return None
        least = [device.least() for device in self.asked if device is not None]
        return None if None in least else max(filter(None, least))

    @property
    def fullest(self) -> DeviceRequests | None:
        """The requests of the device with most."""
        at = max(self.phases, key=lambda peak: peak.allocated, default=None)
        return self.asked[at.device] if at is not None and at.device < len(self.asked) else None

    @property
    def ledger(self) -> Mapping[str, TensorKind]:
        """What lay on the fullest device at its peak; empty where that is not known."""
        if self.fullest is None or self.sleeps:
            return {}
        return ledger(self.fullest, self.ends, shares=self.world_size > 1)

    def peaks(self, step: int) -> dict[str, int]:
        """The most allocated in each phase of a step, in order; bytes on the fullest device."""
        found: dict[str, int] = {}
        for name in ORDER:
            sizes = [
                min(peak.allocated, peak.held)
                for peak in self.phases
                if (peak.step, peak.phase) == (step, name)
            ]
            if sizes:
                found[name] = max(sizes)
        return found


def read(report: Mapping[str, Any]) -> Rehearsed:
    """One process's run of its report."""
    return Rehearsed(
        rank=report["rank"],
        world_size=report["world_size"],
        versions=report["versions"],
        steps=report["steps"],
        ended=report["ended"],
        exception=report["exception"],
        phases=tuple(PhasePeak(**peak) for peak in report["phases"]),
        failed=tuple(map(_failed, report["out_of_memory"])),
        is_compiled=report["is_compiled"],
        notes=tuple(report["notes"]),
        reads=report["reads"],
        keys=report["keys"],
        keys_problem=report["keys_problem"],
        ends=tuple(PhaseEnd(*end) for end in report["ends"]),
        asked=read_devices(report["asked"]),
    )


def _failed(found: Mapping[str, Any]) -> FailedAllocation:
    lines = {name: line_of(found[name]) for name in ("line", "library_line")}
    return FailedAllocation(**{**found, **lines})


def status_of(run: Rehearsed) -> int:
    """The exit status of a run."""
    if run.ran_out is not None:
        return NOT_READ if run.is_compiled else DOES_NOT_FIT
    return NOT_READ if run.exception or not run.steps else FITS


def decisive(ranks: Sequence[Rehearsed]) -> Rehearsed:
    """The rank that decides: one whose memory ran out, else one that failed, else the fullest."""
    return max(
        ranks, key=lambda rank: (rank.ran_out is not None, bool(rank.exception), rank.reserved)
    )
