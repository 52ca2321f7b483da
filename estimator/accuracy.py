"""Published speeds and measured peaks beside what is estimated for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

from estimator import catalog
from estimator.contract import parse
from estimator.engine import estimate
from estimator.moments import Resident, resident, structure
from estimator.results import Estimate, RunTime
from estimator.specs import Gpu, Method, Model, TrainingSetup
from estimator.throughput import Sharing, run_time

COUNTS = (
    "lora_r",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_length",
)
WORDS = ("method", "dtype", "mixed_precision", "attn_implementation", "gpu")
SHARING = {
    "none": Sharing.REPLICAS,
    "ddp": Sharing.REPLICAS,
    "zero2": Sharing.STATES,
    "zero3": Sharing.WEIGHTS,
    "fsdp": Sharing.WEIGHTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One row of ``data/throughput.csv``: a setup, and how fast somebody saw it run."""

    id: str
    model: Model
    gpu: Gpu
    setup: TrainingSetup
    sharing: Sharing
    link_gb_per_s: float | None
    tokens_per_second_per_gpu: float
    source: str
    note: str

    @property
    def step_seconds(self) -> float:
        """Seconds of an optimizer step, all micro-batches."""
        micro_batches = self.setup.tokens * self.setup.gradient_accumulation_steps
        return micro_batches / self.tokens_per_second_per_gpu

    @property
    def resident(self) -> Resident:
        """What lies on one GPU if nothing is shared."""
        return resident(self.model, structure(self.setup))

    @property
    def estimated(self) -> RunTime:
        """What is estimated for the same setup."""
        return run_time(
            self.model,
            self.gpu,
            self.setup,
            self.resident,
            sharing=self.sharing,
            link_gb_per_s=self.link_gb_per_s,
        )

    @property
    def inside(self) -> bool:
        """Does the bracket hold the published speed?"""
        time = self.estimated
        return time.step_seconds_low <= self.step_seconds <= time.step_seconds_high

    @property
    def width(self) -> float:
        """High end of the bracket over its low end."""
        return self.estimated.step_seconds_high / self.estimated.step_seconds_low


@lru_cache(maxsize=1)
def published_runs() -> tuple[PublishedRun, ...]:
    """Every published run that the tables hold, in the order of the file."""
    return tuple(_run(row) for row in catalog.published_speeds())


def _run(row: Mapping[str, str]) -> PublishedRun:
    given: dict[str, object] = {name: row[name] for name in WORDS}
    given |= {name: int(row[name]) for name in COUNTS if row[name]}
    given["gradient_checkpointing"] = row["gradient_checkpointing"] == "true"
    named = not row["model"].startswith("{")
    given["model"] = row["model"] if named else json.loads(row["model"])
    if row["lora_target_modules"]:
        targets = row["lora_target_modules"]
        given["lora_target_modules"] = targets if targets == "all-linear" else targets.split(",")
    if row["lora_dropout"]:
        given["lora_dropout"] = float(row["lora_dropout"])
    model, gpu, setup = parse(given)
    assert gpu is not None
    return PublishedRun(
        id=row["id"],
        model=model,
        gpu=gpu,
        setup=replace(setup, num_gpus=int(row["num_gpus"])),
        sharing=SHARING[row["strategy"]],
        link_gb_per_s=float(row["link_gb_per_s"]) if row["link_gb_per_s"] else None,
        tokens_per_second_per_gpu=float(row["tokens_per_second_per_gpu"]),
        source=row["source"],
        note=row["note"],
    )


# --- memory ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPeak:
    """One measured run of ``data/measurements.csv`` beside its estimate."""

    measurement: catalog.Measurement
    measured_bytes: int
    """What ``torch.cuda.max_memory_allocated`` said."""
    estimate: Estimate | None
    refusal: str
    """Why there is no estimate; empty where there is one."""

    @property
    def error(self) -> float | None:
        """Estimated less measured peak, as a share of the measured one; None without an estimate."""
        if self.estimate is None:
            return None
        return self.estimate.peak.bytes / self.measured_bytes - 1


@lru_cache(maxsize=1)
def measured_peaks() -> tuple[MeasuredPeak, ...]:
    """Every measured peak of torch's allocator, in the order of the file; none is left out for its error."""
    return tuple(
        _measured(row, peak)
        for row in catalog.measurements()
        if row.outcome == "measured" and (peak := row.readings["allocated"].get("peak"))
    )


def _measured(row: catalog.Measurement, peak: int) -> MeasuredPeak:
    try:
        answer = estimate(*parse(json.loads(row.setup)))
    except ValueError as refusal:
        return MeasuredPeak(
            measurement=row, measured_bytes=peak, estimate=None, refusal=str(refusal)
        )
    return MeasuredPeak(measurement=row, measured_bytes=peak, estimate=answer, refusal="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """How far measured runs of one kind lay from their estimates, as shares of what was measured."""

    runs: int
    median: float
    largest: float


@lru_cache(maxsize=8)
def trust(method: Method) -> Trust | None:
    """Of the measured runs of this method that are estimated; None where there are none."""
    errors = [
        abs(peak.error)
        for peak in measured_peaks()
        if peak.estimate is not None
        and peak.error is not None
        and peak.estimate.setup.method is method
    ]
    if not errors:
        return None
    return Trust(runs=len(errors), median=median(errors), largest=max(errors))
