"""What is answered: moments, their ledgers and the verdict, in bytes on one GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from estimator.specs import Component, Gpu, Model, Phase, TrainingSetup, Verdict


class Moment(NamedTuple):
    """One instant of the step and what is alive then."""

    phase: Phase
    name: str
    """What happens, in words: ``log-softmax backward``."""
    resident: Mapping[Component, int]
    """Bytes alive, by component; components that hold nothing may be missing."""

    @property
    def bytes(self) -> int:
        """All bytes alive at this moment."""
        return sum(self.resident.values())


class Held(NamedTuple):
    """What lies there for one reason: how many tensors one operator made, and how many bytes they take."""

    component: Component
    operation: str
    tensors: int
    bytes: int


class Timeline(Protocol):
    """Where the moments of a step come from, once they are asked for."""

    @property
    def moments(self) -> tuple[Moment, ...]:
        """In order of time: one for each layer and stage, each at its highest."""

    def held(self, phase: Phase) -> Sequence[Held]:
        """What lies there at the highest moment of forward, loss or backward, by what made it."""

    def kept_by_a_layer(self) -> Sequence[Held]:
        """What one layer keeps from forward to backward, by what made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The answer to one setup. All memory in bytes, on the fullest GPU."""

    model: Model
    gpu: Gpu | None
    setup: TrainingSetup
    timeline: Timeline = field(compare=False, repr=False)
    phases: Mapping[Phase, Moment]
    """The highest moment of each phase; ``save`` stands beside the four of the step."""
    peak: Moment
    """The highest moment of the step after the first."""
    context_low_bytes: int
    """CUDA context and loaded kernels, outside torch's counter."""
    context_high_bytes: int
    need_low_bytes: int
    need_high_bytes: int
    verdict: Verdict | None
    """None without a GPU to hold it against."""
    paged_bytes: int
    """Optimizer states that bitsandbytes keeps in managed memory, outside torch's counter."""
    disk_bytes: int
    """Weight of one checkpoint on disk."""
    total_parameters: int
    trainable_parameters: int
    assumptions: tuple[str, ...]

    @property
    def moments(self) -> tuple[Moment, ...]:
        """In order of time: one for each layer and stage, each at its highest."""
        return self.timeline.moments

    @property
    def headroom_bytes(self) -> int:
        """Capacity less the high end of the need; negative when it does not fit. Needs a GPU."""
        assert self.gpu is not None
        return self.gpu.memory_bytes - self.need_high_bytes
