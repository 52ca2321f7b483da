"""The result of an estimate: moments and their bytes on one GPU, the verdict, seconds and dollars of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from estimator.values.range import Range, summed
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Gpu, Model, Phase, Price, Verdict

SECONDS_PER_HOUR = 3600
TERA = 1e12
"""Operations per second in one TFLOPS."""


class Moment(NamedTuple):
    """One instant of the step and what is alive then."""

    phase: Phase
    name: str
    """What happens: ``log-softmax backward``."""
    resident: Mapping[Component, int]
    """Bytes alive by component; empty components may be missing."""

    @property
    def bytes(self) -> int:
        """All bytes alive at this moment."""
        return sum(self.resident.values())


class HeldTensors(NamedTuple):
    """Live tensors made by one operator: how many, and their bytes."""

    component: Component
    operation: str
    tensors: int
    bytes: int


class Shown(NamedTuple):
    """Bytes that nvidia-smi may show: minimum, median and maximum, from the caching of published runs."""

    low: int
    middle: int
    high: int


class Timeline(Protocol):
    """Computes the moments of a step on demand."""

    @property
    def moments(self) -> tuple[Moment, ...]:
        """In order of time, one per layer and stage, each at its peak."""

    @property
    def parts(self) -> Sequence[tuple[object, int]]:
        """What it holds in this process's memory, with its bytes there."""

    @property
    def resident(self) -> Mapping[Component, int]:
        """Bytes alive when a micro-step begins, by component."""

    @property
    def states_from_start(self) -> int:
        """Bytes of optimizer states that exist before the first step."""

    def held(self, phase: Phase) -> Sequence[HeldTensors]:
        """Live tensors at the highest moment of forward, loss or backward, grouped by operator."""

    def kept_by_a_layer(self) -> Sequence[HeldTensors]:
        """What one layer saves for backward, grouped by operator."""


class GpuRun(Protocol):
    """A run on one GPU, stage by stage."""

    @property
    def device(self) -> int | None:
        """Its index under a device map; None if all GPUs do the same."""

    @property
    def timeline(self) -> Timeline:
        """The moments of the second step."""

    @property
    def phases(self) -> Mapping[Phase, Moment]:
        """The highest moment of each phase: those of the step, ``load``, ``save``, and ``evaluation`` if planned."""

    @property
    def evaluation(self) -> Moment:
        """The highest moment of an evaluation batch, planned or not."""

    @property
    def peak(self) -> Moment:
        """The highest moment of the second step."""

    @property
    def decisive(self) -> Moment:
        """The highest moment of the run, which determines the need: the peak, or one of loading or evaluation."""

    @property
    def paged_bytes(self) -> int:
        """Optimizer states that bitsandbytes keeps in managed memory, outside torch's counter."""


class TimePart(NamedTuple):
    """One contribution to the duration of an optimizer step, in seconds."""

    name: str
    seconds: Range[float]
    """From the best that this hardware has been measured to do to the slowest of the published runs."""


class OnDevice(NamedTuple):
    """What one GPU of a device map holds. Bytes."""

    device: int
    layers: tuple[int, ...]
    """Indices of its decoder layers."""
    outside: tuple[str, ...]
    """Its modules outside the layers, by the last part of their names."""
    resident: Mapping[Component, int]
    """Weights, adapters and optimizer states: what stays between steps."""
    peak: Moment
    """Its highest moment in the second step."""
    need: Range[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """How long a run takes: a fast and a slow end."""

    parts: tuple[TimePart, ...]
    """Contributions to the duration of a step; they sum to both ends. A given utilisation makes them one part."""
    model_flops_per_step: Range[float]
    """Operations of an optimizer step on one GPU, without recomputation for checkpointing; at the fast end without
    attention to padding, nor between packed examples."""
    hardware_flops_per_step: float
    """Slow end, including recomputation for checkpointing."""
    peak_tflops: float
    """Dense rate for utilisation, 10¹² operations per second: the datasheet's, or a measured rate if higher."""
    tokens_per_step: float
    """Tokens of the training set per optimizer step, over all GPUs, without padding."""
    steps_per_epoch: int
    total_steps: int
    before: TimePart | None = None
    """What is computed once before the first step: the precomputed reference."""

    @property
    def step_seconds(self) -> Range[float]:
        """Seconds per optimizer step with all micro-batches."""
        return summed(part.seconds for part in self.parts)

    @property
    def epoch_hours(self) -> Range[float]:
        """Hours per epoch."""
        return self.steps_per_epoch * self.step_seconds / SECONDS_PER_HOUR

    @property
    def total_hours(self) -> Range[float]:
        """Hours of the run."""
        before = self.before.seconds if self.before else 0.0
        return (self.total_steps * self.step_seconds + before) / SECONDS_PER_HOUR

    @property
    def tokens_per_second(self) -> Range[float]:
        """Tokens of the training set per second, over all GPUs."""
        return self.tokens_per_step / self.step_seconds

    @property
    def mfu(self) -> Range[float]:
        """Model FLOPs utilisation, a share of the dense rate, at most 1.

        Each end divides its own operations by its own seconds. Padding counts as work, so the slow step may have the
        higher utilisation.
        """
        possible = self.step_seconds * self.peak_tflops * TERA
        ends = [
            flops / most for flops, most in zip(self.model_flops_per_step, possible, strict=True)
        ]
        return Range(min(ends), max(ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What a run costs."""

    usd_per_gpu_hour: float
    price: Price | None
    """The listing used; None: the user's own price."""
    cost_usd: Range[float]


class Refused(NamedTuple):
    """The request that a card refuses."""

    phase: Phase
    step: int
    """Of the steps played, from 1; 0 while the model is loaded."""
    name: str
    """Layer and operator: ``layer 9 of 32: q_proj``. Empty where only the phase is known."""
    bytes: int
    """Of the tensor, as the allocator rounds it. Its message names the segment, which may be larger."""
    micro_step: int = 0
    """0 for the first, or 1."""
    moment: int = 0
    """Number of the layer's or the stage's moment among those of its micro-step."""
    makes_states: bool = False
    """Whether states are made when the model is loaded: DeepSpeed's with its flat weights, and Adagrad's."""


class NeedOfARun(Protocol):
    """Both ends of a run's need in bytes per GPU, computed when they are asked for."""

    @property
    def low(self) -> int:
        """What the card must have at least."""

    @property
    def high(self) -> int:
        """What is enough."""

    @property
    def verdict(self) -> Verdict | None:
        """None without a GPU."""

    @property
    def replay(self) -> Replay | None:
        """What PyTorch's allocator makes of the run; None where it is not replayed."""

    @property
    def refused(self) -> Refused | None:
        """The request that the card refuses beside the least that is outside; None where the run is not replayed."""


class Replay(Protocol):
    """A run in PyTorch's allocator, in bytes."""

    @property
    def allocated(self) -> int:
        """Most bytes of blocks in use."""

    @property
    def least(self) -> int:
        """The least memory on which the run goes through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimate of one setup. All memory in bytes, on the fullest GPU."""

    model: Model
    gpu: Gpu | None
    setup: TrainingSetup
    run: GpuRun = field(repr=False)
    """On the fullest GPU."""
    runs: tuple[GpuRun, ...] = field(compare=False, repr=False)
    """Under a device map, on each GPU that holds anything, in order; else the one that stands for all."""
    context_bytes: Range[int]
    """CUDA context and loaded kernels, outside torch's counter."""
    needs: NeedOfARun = field(compare=False, repr=False)
    host_bytes: int
    """Host memory: one process's loading and saving, plus what all processes of a machine offload."""
    nvme_bytes: int
    """Files offloaded to NVMe by all processes of a machine."""
    disk_bytes: int
    """Size of one checkpoint on disk."""
    run_disk_bytes: int
    """Size of all checkpoints on disk at the same time."""
    total_parameters: int
    trainable_parameters: int
    assumptions: tuple[str, ...]
    time: RunTime | None = None
    """None without a GPU, or if one of its rates is unknown; ``assumptions`` say which."""
    cost: RunCost | None = None
    """None without a time or a price."""
    energy_kwh: Range[float] | None = None
    """Board power times hours, all GPUs; None if the power is unknown."""
    devices: tuple[OnDevice, ...] = ()
    """Under a device map: each GPU that holds anything, in order."""

    @property
    def timeline(self) -> Timeline:
        """The moments of the second step."""
        return self.run.timeline

    @property
    def phases(self) -> Mapping[Phase, Moment]:
        """As of the run."""
        return self.run.phases

    @property
    def peak(self) -> Moment:
        """As of the run."""
        return self.run.peak

    @property
    def decisive(self) -> Moment:
        """As of the run."""
        return self.run.decisive

    @property
    def paged_bytes(self) -> int:
        """As of the run."""
        return self.run.paged_bytes

    @property
    def need_low_bytes(self) -> int:
        """What the card must have at least."""
        return self.needs.low

    @property
    def need_high_bytes(self) -> int:
        """What is enough."""
        return self.needs.high

    @property
    def verdict(self) -> Verdict | None:
        """None without a GPU."""
        return self.needs.verdict

    @property
    def moments(self) -> tuple[Moment, ...]:
        """In order of time, one per layer and stage, each at its peak."""
        return self.timeline.moments

    @property
    def can_run(self) -> bool:
        """False if the run does not fit, so no hours or costs are shown."""
        return self.verdict is not Verdict.DOES_NOT_FIT

    @property
    def headroom_bytes(self) -> int:
        """Capacity minus the high end of the need; negative if it does not fit. Requires a GPU."""
        assert self.gpu is not None
        return self.gpu.memory_bytes - self.need_high_bytes


class Remedy(NamedTuple):
    """A change, or several together, that makes the setup fit."""

    title: str
    price: str
    keys: Mapping[str, Any]
    """Keys to set, by the contract's names."""
    saved_bytes: int
    """Reduction of the need's high end per GPU; 0 for a larger GPU."""
    need_high_bytes: int
    """High end of the need per GPU after the change."""

    @property
    def text(self) -> str:
        """Title and price in one line."""
        return f"{self.title}. {self.price}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """One value of ``vllm_gpu_memory_utilization``."""

    utilisation: float
    verdict: Verdict | None
    """None: vLLM does not start."""
    need_low_bytes: int = 0
    need_high_bytes: int = 0
    rows_low: int = 0
    """Rows of full length that are generated at once, of those of a generation."""
    rows_high: int = 0
    step_seconds: Range[float] | None = None
    """None where no time is given."""
    refusal: str = ""
    """Why vLLM does not start, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationSearch:
    """What each share does, and the three numbers that matter; None where there is none."""

    rows: int
    """Rows that vLLM is given at once."""
    shares: tuple[Utilisation, ...]

    @property
    def starts(self) -> float | None:
        """The smallest with which vLLM starts and all fits."""
        return next((share.utilisation for share in self._fitting), None)

    @property
    def largest(self) -> float | None:
        """The largest with which both fit."""
        return next((share.utilisation for share in reversed(self._fitting)), None)

    def holding(self, rows: int | None = None) -> float | None:
        """The smallest that fits with which so many rows (all, if None) are held at once, so that none is preempted."""
        asked = self.rows if rows is None else rows
        return next((share.utilisation for share in self._fitting if share.rows_low >= asked), None)

    @property
    def advised(self) -> float | None:
        """The number to type: the smallest that holds all rows, else the largest that fits."""
        held = self.holding()
        return self.largest if held is None else held

    @property
    def _fitting(self) -> list[Utilisation]:
        return [share for share in self.shares if share.verdict is Verdict.FITS and share.rows_low]


FITS, DOES_NOT_FIT, NOT_READ = 0, 1, 2
"""Exit statuses; several runs exit with the highest. Tight counts as not fitting."""


def verdict(need: Range[int], gpu: Gpu | None) -> Verdict | None:
    """Fits if the high end of the need fits, tight if only the low end does; None without a GPU. In bytes per GPU.

    >>> verdict(Range(1, 2), None) is None
    True
    """
    if gpu is None:
        return None
    if need.high <= gpu.memory_bytes:
        return Verdict.FITS
    return Verdict.TIGHT if need.low <= gpu.memory_bytes else Verdict.DOES_NOT_FIT
