"""Published runs beside what is estimated for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from estimator import catalog
from estimator.contract import parse
from estimator.moments import Resident, resident, structure
from estimator.results import RunTime
from estimator.specs import Gpu, Model, TrainingSetup
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
