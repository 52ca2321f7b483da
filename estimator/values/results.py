"""What is answered: moments, their ledgers and the verdict, in bytes on one GPU; seconds and dollars of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Gpu, Model, Phase, Price, Verdict

SECONDS_PER_HOUR = 3600
TERA = 1e12
"""Operations a second in a TFLOPS."""


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


class HeldTensors(NamedTuple):
    """What lies there for one reason: how many tensors one operator made, and how many bytes they take."""

    component: Component
    operation: str
    tensors: int
    bytes: int


class Shown(NamedTuple):
    """Bytes that nvidia-smi may show of the card: least, in the middle and most of what published runs had cached."""

    low: int
    middle: int
    high: int


class Timeline(Protocol):
    """Where the moments of a step come from, once they are asked for."""

    @property
    def moments(self) -> tuple[Moment, ...]:
        """In order of time: one for each layer and stage, each at its highest."""

    @property
    def resident(self) -> Mapping[Component, int]:
        """Bytes that lie there when a micro-step begins, by component."""

    def held(self, phase: Phase) -> Sequence[HeldTensors]:
        """What lies there at the highest moment of forward, loss or backward, by what made it."""

    def kept_by_a_layer(self) -> Sequence[HeldTensors]:
        """What one layer keeps from forward to backward, by what made it."""


class DeviceRun(NamedTuple):
    """What one GPU does of a run."""

    device: int | None
    """Its number under a device map; None where all GPUs do alike."""
    timeline: Timeline
    phases: Mapping[Phase, Moment]
    """The highest moments beside the step: ``load``, ``save``, and ``evaluation`` if it is planned."""


class TimePart(NamedTuple):
    """One reason why a step takes the time it takes, in seconds an optimizer step."""

    name: str
    low_seconds: float
    """At best: what the hardware has been measured to do."""
    high_seconds: float
    """As slow as published runs have been."""


class OnDevice(NamedTuple):
    """What one GPU of a device map holds. Bytes."""

    device: int
    layers: tuple[int, ...]
    """Indices of its decoder layers."""
    outside: tuple[str, ...]
    """Its modules around the layers, by their last names."""
    resident: Mapping[Component, int]
    """Weights, adapters and optimizer states, which lie there between steps."""
    peak: Moment
    """Its highest moment of the step after the first."""
    need_low_bytes: int
    need_high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """How long a run takes, from fast to slow."""

    parts: tuple[TimePart, ...]
    """Why a step takes as long; their sums are its ends. One part where the utilisation was given."""
    model_flops_per_step: float
    """Operations of an optimizer step on one GPU at worst, without the replay of checkpoints."""
    least_model_flops_per_step: float
    """The same at best: rows no longer than their text, and no score between two packed examples."""
    hardware_flops_per_step: float
    """With it."""
    peak_tflops: float
    """Dense rate that these are held against, 10¹² operations a second: the datasheet's, or what was measured above."""
    tokens_per_step: float
    """Tokens of the training set in an optimizer step, over all GPUs; padding is none."""
    steps_per_epoch: int
    total_steps: int
    before: TimePart | None = None
    """What is computed once before the first step: the precomputed reference."""

    @property
    def step_seconds_low(self) -> float:
        """Seconds of an optimizer step at best, all micro-batches."""
        return math.fsum(part.low_seconds for part in self.parts)

    @property
    def step_seconds_high(self) -> float:
        """Seconds of an optimizer step at worst."""
        return math.fsum(part.high_seconds for part in self.parts)

    @property
    def epoch_hours_low(self) -> float:
        """Hours of one pass over the examples at best."""
        return self.steps_per_epoch * self.step_seconds_low / SECONDS_PER_HOUR

    @property
    def epoch_hours_high(self) -> float:
        """Hours of one pass over the examples at worst."""
        return self.steps_per_epoch * self.step_seconds_high / SECONDS_PER_HOUR

    @property
    def total_hours_low(self) -> float:
        """Hours of the run at best."""
        before = self.before.low_seconds if self.before else 0.0
        return (before + self.total_steps * self.step_seconds_low) / SECONDS_PER_HOUR

    @property
    def total_hours_high(self) -> float:
        """Hours of the run at worst."""
        before = self.before.high_seconds if self.before else 0.0
        return (before + self.total_steps * self.step_seconds_high) / SECONDS_PER_HOUR

    @property
    def tokens_per_second_low(self) -> float:
        """Tokens of the training set a second at worst, over all GPUs."""
        return self.tokens_per_step / self.step_seconds_high

    @property
    def tokens_per_second_high(self) -> float:
        """Tokens of the training set a second at best."""
        return self.tokens_per_step / self.step_seconds_low

    @property
    def mfu_low(self) -> float:
        """Model FLOPs utilisation, the lower of both ends', a share of the dense rate.

        Each end's operations over its own seconds; padding is work, so the slow end may use the GPU better.
        """
        return min(self._utilisations())

    @property
    def mfu_high(self) -> float:
        """Model FLOPs utilisation, the higher of both ends'; at most 1."""
        return max(self._utilisations())

    def _utilisations(self) -> tuple[float, float]:
        ends = (
            (self.least_model_flops_per_step, self.step_seconds_low),
            (self.model_flops_per_step, self.step_seconds_high),
        )
        fast, slow = (flops / (seconds * self.peak_tflops * TERA) for flops, seconds in ends)
        return fast, slow


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What a run costs."""

    usd_per_gpu_hour: float
    price: Price | None
    """The listing that was taken; None: one's own figure."""
    cost_usd_low: float
    cost_usd_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The answer to one setup. All memory in bytes, on the fullest GPU."""

    model: Model
    gpu: Gpu | None
    setup: TrainingSetup
    timeline: Timeline = field(compare=False, repr=False)
    phases: Mapping[Phase, Moment]
    """The highest moment of each phase: the four of the step, ``load``, ``save``, and ``evaluation`` if it is planned.
    """
    peak: Moment
    """The highest moment of the step after the first."""
    decisive: Moment
    """The highest moment of the run, which the need follows from: the peak, or one of loading or evaluating."""
    context_low_bytes: int
    """CUDA context and loaded kernels, outside torch's counter."""
    context_high_bytes: int
    need_low_bytes: int
    need_high_bytes: int
    verdict: Verdict | None
    """None without a GPU to hold it against."""
    paged_bytes: int
    """Optimizer states that bitsandbytes keeps in managed memory, outside torch's counter."""
    host_bytes: int
    """CPU memory that loading and saving need, one process; and what is offloaded, of all processes of a machine."""
    nvme_bytes: int
    """Files of what is offloaded to NVMe, of all processes of a machine."""
    disk_bytes: int
    """Weight of one checkpoint on disk."""
    run_disk_bytes: int
    """Of all checkpoints that lie there together."""
    total_parameters: int
    trainable_parameters: int
    assumptions: tuple[str, ...]
    time: RunTime | None = None
    """None without a GPU, or where one of its rates is unknown; ``assumptions`` say which."""
    cost: RunCost | None = None
    """None without a time or a price."""
    energy_kwh_low: float | None = None
    """Board power over the hours, all GPUs; None where the power is unknown."""
    energy_kwh_high: float | None = None
    devices: tuple[OnDevice, ...] = ()
    """Under a device map: each GPU that holds anything, in order."""
    device_runs: tuple[DeviceRun, ...] = field(default=(), compare=False, repr=False)
    """What each of them does, in the same order."""

    @property
    def moments(self) -> tuple[Moment, ...]:
        """In order of time: one for each layer and stage, each at its highest."""
        return self.timeline.moments

    @property
    def can_run(self) -> bool:
        """False for what does not fit: of such a run no hours and no dollars are shown."""
        return self.verdict is not Verdict.DOES_NOT_FIT

    @property
    def headroom_bytes(self) -> int:
        """Capacity less the high end of the need; negative when it does not fit. Needs a GPU."""
        assert self.gpu is not None
        return self.gpu.memory_bytes - self.need_high_bytes
