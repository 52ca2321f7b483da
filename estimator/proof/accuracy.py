"""Published speeds and measured peaks beside what is estimated for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from estimator.answer.estimate import estimate as estimate_of
from estimator.contract.setups import Reading, parse, read_setup
from estimator.families.registry import architecture
from estimator.parallel.strategies import resident_memory
from estimator.resident.model import Resident
from estimator.sources import catalog
from estimator.step.reserved import device_bytes, reserved
from estimator.step.timeline import structure
from estimator.time.throughput import SHARING, Sharing, run_time
from estimator.values.results import Estimate, RunTime
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Gpu, Model, Phase, Strategy, Verdict

COUNTS = (
    "lora_r",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_length",
)
WORDS = ("method", "dtype", "mixed_precision", "attn_implementation", "gpu")


BEYOND: Mapping[str, str] = MappingProxyType(
    {
        # llm-foundry 0.2, models/layers/attention.py (attn_impl flash, triton) and models/mpt/modeling_mpt.py
        # (loss_fn fused_crossentropy); transformers 5.23, models/mpt/modeling_mpt.py, MptAttention.forward
        "llm-foundry": "llm-foundry's own MPT has flash attention and a loss that writes over the logits; "
        "transformers' MPT, which is estimated, computes whole attention scores",
        "selective checkpointing": "only some layers or operators were checkpointed, which no key says yet; the "
        "estimate keeps all activations",
        "own kernels": "Transformer Engine's layers and a LoRA in Triton, which are not modelled; transformers' and "
        "PEFT's are estimated",
    }
)
"""Why a published run needed less than is estimated for its setup, by the word of ``data/throughput.csv``."""


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One row of ``data/throughput.csv``: a setup, and how fast somebody saw it run."""

    id: str
    model: Model
    gpu: Gpu
    setup: TrainingSetup
    sharing: Sharing
    link_gb_per_s: float | None
    tokens_per_second_per_gpu: float
    as_it_ran: TrainingSetup
    """The setup with its strategy, and with what concerns memory alone: the verdict on the run is on this."""
    beyond: str
    """What ran that no key says, one of ``BEYOND``; empty: nothing that is known."""
    source: str
    note: str

    @cached_property
    def answer(self) -> Estimate | None:
        """The estimate of the run as it ran; None where it is refused."""
        try:
            return estimate_of(self.model, self.gpu, self.as_it_ran)
        except ValueError:
            return None

    @property
    def step_seconds(self) -> float:
        """Seconds of an optimizer step, all micro-batches."""
        micro_batches = self.setup.tokens * self.setup.gradient_accumulation_steps
        return micro_batches / self.tokens_per_second_per_gpu

    @property
    def resident_memory(self) -> Resident:
        """What lies on one GPU if nothing is shared."""
        return resident_memory(self.model, structure(self.setup))

    @property
    def crosses(self) -> bool:
        """Did it run on several machines?"""
        return self.setup.num_gpus > self.setup.gpus_per_node

    @property
    def estimated(self) -> RunTime:
        """What is estimated for the same setup."""
        given = self.link_gb_per_s
        return run_time(
            self.model,
            self.gpu,
            self.setup,
            self.resident_memory,
            sharing=self.sharing,
            link_gb_per_s=None if self.crosses else given,
            network_gb_per_s=given if self.crosses else None,
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
    ran: dict[str, object] = json.loads(row["ran_with"] or "{}")
    sharing = {"num_gpus": int(row["num_gpus"]), "strategy": row["strategy"]}
    read = read_setup(given | sharing | ran)
    assert not read.problems, (row["id"], read.problems)
    assert row["beyond_the_keys"] in ("", *BEYOND), row["beyond_the_keys"]
    return PublishedRun(
        id=row["id"],
        model=model,
        gpu=gpu,
        setup=replace(setup, num_gpus=int(row["num_gpus"])),
        sharing=SHARING[Strategy(row["strategy"])],
        link_gb_per_s=float(row["link_gb_per_s"]) if row["link_gb_per_s"] else None,
        tokens_per_second_per_gpu=float(row["tokens_per_second_per_gpu"]),
        as_it_ran=read.setup,
        beyond=row["beyond_the_keys"],
        source=row["source"],
        note=row["note"],
    )


def overestimated() -> tuple[PublishedRun, ...]:
    """Published runs that ran, and of which the estimator says that they do not fit, or cannot run."""
    return tuple(
        it
        for it in published_runs()
        if it.answer is None or it.answer.verdict is Verdict.DOES_NOT_FIT
    )


# --- memory ---------------------------------------------------------------------------------------


NEAR = 0.05
"""The band around equality in which an estimate counts as near: ours."""


class Metric(StrEnum):
    """What was read of a run, or counted of a trace; no two of them are the same figure."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device"
    TRACED = "traced"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One reading of one run, or one traced peak, beside what is estimated for its setup, once somebody asks."""

    id: str
    metric: Metric
    name: str
    """The model, where its config has none."""
    num_gpus: int
    """As the setup says it, whether or not that is modelled."""
    reading: Reading = field(repr=False)
    """What the table's cell says, as the contract reads it."""
    measured_bytes: int
    gpu: str = ""
    how: str
    """How it was read."""
    versions: str = ""
    source: str = ""
    note: str = ""
    phases: Mapping[Phase, int] = field(default_factory=dict)
    """The height of each phase, in bytes, where it was traced."""

    @cached_property
    def _answer(self) -> Estimate | str:
        if self.model is None or self.reading.problems:
            return " ".join(self.reading.problems)
        try:
            return estimate_of(self.model, self.reading.gpu, self.setup)
        except ValueError as refusal:
            return str(refusal)

    @property
    def estimate(self) -> Estimate | None:
        """What is estimated for its setup; None where that is refused."""
        return None if isinstance(self._answer, str) else self._answer

    @property
    def refusal(self) -> str:
        """Why there is no estimate; empty where there is one."""
        return self._answer if isinstance(self._answer, str) else ""

    @property
    def model(self) -> Model | None:
        """None where the setup names none that is known."""
        return self.reading.model

    @property
    def setup(self) -> TrainingSetup:
        """The setup, less what is not modelled."""
        return self.reading.setup

    @property
    def estimated_bytes(self) -> int | None:
        """What is estimated for this metric; None without an estimate.

        What is reserved or shown is what the caching allocator makes of the step's tensors.
        """
        if self.estimate is None:
            return None
        answer = self.estimate
        match self.metric:
            case Metric.ALLOCATED:
                return answer.peak.bytes
            case Metric.RESERVED:
                return max(answer.peak.bytes, reserved(answer))
            case Metric.DEVICE:
                return device_bytes(answer)
            case Metric.TRACED:  # the traced device has no cuBLAS
                return answer.peak.bytes - answer.peak.resident.get(Component.WORKSPACE, 0)

    @property
    def error(self) -> float | None:
        """Estimated less measured, as a share of the measured one; None without an estimate."""
        estimated = self.estimated_bytes
        return None if estimated is None else estimated / self.measured_bytes - 1

    @property
    def phase_errors(self) -> list[float]:
        """The same of each phase that was traced."""
        if self.estimate is None:
            return []
        answer = self.estimate
        workspace = answer.peak.resident.get(Component.WORKSPACE, 0)
        return [
            (answer.phases[phase].bytes - workspace) / height - 1
            for phase, height in self.phases.items()
        ]


@lru_cache(maxsize=1)
def measured() -> tuple[Comparison, ...]:
    """Every reading of ``data/measurements.csv``, in the order of the file; none is left out for its error."""
    return tuple(
        Comparison(
            id=row.id,
            metric=Metric(counter),
            name="",
            num_gpus=_num_gpus(row.setup),
            reading=read_setup(json.loads(row.setup)),
            measured_bytes=peak,
            gpu=row.gpu,
            how=row.measured,
            versions=row.versions,
            source=row.source,
            note=row.note,
        )
        for row in catalog.measurements()
        for counter in catalog.COUNTERS
        if row.outcome == "measured" and (peak := row.readings[counter].get("peak"))
    )


@lru_cache(maxsize=1)
def traced() -> tuple[Comparison, ...]:
    """Every traced step of ``data/traced.csv``, in the order of the file."""
    return tuple(
        Comparison(
            id=step.id,
            metric=Metric.TRACED,
            name=step.model_name,
            num_gpus=_num_gpus(step.setup),
            reading=read_setup(json.loads(step.setup)),
            measured_bytes=step.peak_bytes,
            how=step.source,
            phases=step.phases,
        )
        for step in catalog.traced_steps()
    )


def _num_gpus(setup: str) -> int:
    return int(json.loads(setup).get("num_gpus", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """How far runs of one kind lay from their estimates, as shares of what was measured."""

    runs: int
    median: float
    largest: float


def trust_in(comparisons: Iterable[Comparison]) -> Trust | None:
    """Of those that have an estimate; None where none has."""
    return _trust([abs(it.error) for it in comparisons if it.error is not None])


def _trust(errors: Sequence[float]) -> Trust | None:
    if not errors:
        return None
    return Trust(runs=len(errors), median=median(errors), largest=max(errors))


class Summary(NamedTuple):
    """How near one metric's estimates come."""

    metric: Metric
    by_phase: bool
    """Of the heights of the four phases, each a reading; else of the peaks."""
    readings: int
    refused: int
    """Readings of setups that are refused."""
    trust: Trust | None
    near: int
    """Readings that lie within ``NEAR`` of their estimate."""


def summaries(comparisons: Sequence[Comparison]) -> tuple[Summary, ...]:
    """A summary for each metric that these have, and one of the phases where they were traced."""
    found = []
    for metric in Metric:
        these = [it for it in comparisons if it.metric is metric]
        errors = [abs(it.error) for it in these if it.error is not None]
        if these:
            found.append(_summary(metric, errors, len(these)))
    phases = [abs(error) for it in comparisons for error in it.phase_errors]
    if phases:
        found.append(_summary(Metric.TRACED, phases, len(phases), by_phase=True))
    return tuple(found)


def _summary(
    metric: Metric, errors: Sequence[float], readings: int, *, by_phase: bool = False
) -> Summary:
    near = sum(error <= NEAR for error in errors)
    return Summary(metric, by_phase, readings, readings - len(errors), _trust(errors), near)


class Facet(StrEnum):
    """What makes two runs of one kind, the weightiest first."""

    METHOD = "method"
    STRATEGY = "strategy"
    """With FSDP's version and what is offloaded."""
    FAMILY = "family"
    """The layers' program and all else that follows from ``model_type``: Llama's and Mistral's are the same."""
    CARD = "card"
    """The generation of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kin:
    """The measured runs that are most like a setup."""

    runs: tuple[Comparison, ...]
    trust: Trust | None
    """None where no run of the method was measured."""
    unlike: frozenset[Facet]
    """In what they are of another kind; empty where they are of the same."""


def kin(of: Estimate) -> Kin:
    """Measured runs of the same kind, by what PyTorch allocated; else those of the same method that share most.

    Without a GPU any card is the same kind.
    """
    wanted = _facets(of.model, of.gpu, of.setup)
    if of.gpu is None:
        del wanted[Facet.CARD]
    groups: dict[frozenset[Facet], list[Comparison]] = {}
    for it, facets in _measured_facets():
        unlike = frozenset(facet for facet, value in wanted.items() if facets[facet] != value)
        groups.setdefault(unlike, []).append(it)
    order = list(Facet)
    nearest = min(
        (unlike for unlike in groups if Facet.METHOD not in unlike),
        key=lambda unlike: (len(unlike), [facet in unlike for facet in order]),
        default=None,
    )
    if nearest is None:
        return Kin(runs=(), trust=None, unlike=frozenset({Facet.METHOD}))
    runs = tuple(groups[nearest])
    return Kin(runs=runs, trust=trust_in(runs), unlike=nearest)


def _facets(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> dict[Facet, object]:
    offload = setup.offload_optimizer, setup.offload_param
    return {
        Facet.METHOD: setup.method,
        Facet.STRATEGY: (setup.strategy, setup.uses_fsdp1, offload),
        Facet.FAMILY: architecture(model),
        Facet.CARD: None if gpu is None else (gpu.vendor, gpu.architecture),
    }


@lru_cache(maxsize=1)
def _measured_facets() -> tuple[tuple[Comparison, dict[Facet, object]], ...]:
    return tuple(
        (it, _facets(it.model, it.reading.gpu, it.setup))
        for it in measured()
        if it.metric is Metric.ALLOCATED and it.error is not None and it.model is not None
    )


# --- need -----------------------------------------------------------------------------------------


class Spread(NamedTuple):
    """What nvidia-smi showed beyond the allocated peak of the same runs, as shares of that peak."""

    runs: int
    low: float
    middle: float
    high: float


def beyond_allocated() -> tuple[Spread, Spread]:
    """On one GPU, and on one of several: cached blocks, context and communication together."""
    allocated = {it.id: it.measured_bytes for it in measured() if it.metric is Metric.ALLOCATED}
    shares: dict[bool, list[float]] = {False: [], True: []}
    for it in measured():
        if it.metric is Metric.DEVICE and it.id in allocated:
            shares[it.num_gpus > 1].append(it.measured_bytes / allocated[it.id] - 1)
    one, several = (
        Spread(len(found), min(found), median(found), max(found)) for found in shares.values()
    )
    return one, several


class Agreement(NamedTuple):
    """The verdicts of measured runs on cards of many sizes, beside what the runs needed."""

    pairs: int
    """A run and a capacity outside the range of its estimated need, so that the verdict is a plain yes or no."""
    agreeing: int
    """Pairs whose verdict is right wherever in its own range the measured need lies."""
    tight: int
    """Pairs inside the estimated range, where no verdict is given."""
    width: float
    """Median of the estimated ranges, as a share of their low ends."""

    @property
    def share(self) -> float:
        """The agreeing pairs among the pairs."""
        return self.agreeing / self.pairs


@lru_cache(maxsize=4)
def agreement(capacities: tuple[int, ...]) -> Agreement:
    """Verdicts against these capacities, in bytes, of every run whose allocated peak was measured.

    A run needs its allocated peak and, at either end, the context, communication and slack that are estimated for it,
    but no more than nvidia-smi showed, where that was read.
    """
    pairs = agreeing = tight = 0
    widths = []
    shown = {it.id: it.measured_bytes for it in measured() if it.metric is Metric.DEVICE}
    for run in measured():
        answer = run.estimate
        if run.metric is not Metric.ALLOCATED or answer is None:
            continue
        off = run.measured_bytes - answer.peak.bytes
        low, high = answer.need_low_bytes + off, answer.need_high_bytes + off
        high = max(low, min(high, shown.get(run.id, high)))
        widths.append(answer.need_high_bytes / answer.need_low_bytes - 1)
        for capacity in capacities:
            fits = answer.need_high_bytes <= capacity
            if not fits and answer.need_low_bytes <= capacity:
                tight += 1
                continue
            pairs += 1
            agreeing += high <= capacity if fits else capacity < low
    return Agreement(pairs, agreeing, tight, median(widths))
