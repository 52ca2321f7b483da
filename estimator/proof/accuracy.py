"""Published speeds and measured peaks, compared with their estimates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from statistics import median
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from estimator.answer.estimate import estimate as estimate_of
from estimator.contract.setups import Reading, parse, read_setup
from estimator.families.registry import family_of
from estimator.parallel.strategies import resident_memory
from estimator.passes.prepared import as_trained
from estimator.proof.outcomes import Outcome, OutcomeKey, key_of, outcome_of, stored
from estimator.resident.model import Resident
from estimator.run.prequantized import as_loaded
from estimator.sources import catalog
from estimator.step.reserved import device_bytes, reserved
from estimator.step.timeline import structure
from estimator.time.throughput import run_time
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import OF_THE_MACHINE, Mesh
from estimator.values.results import Estimate, RunTime
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Gpu, Model, Offload, Phase, Verdict
from estimator.values.strategies import Strategy

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
        "llm-foundry": "llm-foundry's own MPT has flash attention and a loss that overwrites the logits; "
        "transformers' MPT, which is estimated, computes full attention scores",
        "selective checkpointing": "only some layers or operators were checkpointed, for which there is no key yet; "
        "the "
        "estimate keeps all activations",
        # NVIDIA/Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py: _ParamAndGradBuffer
        "Megatron": "Megatron's own model keeps its gradients in one buffer, which leaves no gaps between blocks; "
        "transformers' modules are estimated",
        "fused kernels": "the framework's own kernels for norms, rotary embeddings and the loss, which leave fewer "
        "temporaries; Liger's or transformers' are estimated",
        "torchtitan": "torchtitan makes shards directly and groups weights in its own way; accelerate's groups, whose "
        "layers arrive whole, are estimated",
        # hpcaitech/ColossalAI, colossalai/zero/low_level/low_level_optim.py
        "Colossal-AI": "Colossal-AI's own ZeRO; DeepSpeed's, which is estimated, keeps other buffers and blocks",
        # transformers 4.20, models/gpt2/modeling_gpt2.py, GPT2LMHeadModel.forward; 5.23, loss/loss_utils.py
        "old loss": "transformers of 2022 computed GPT-2's loss in 16 bits; today's, which is estimated, copies the "
        "logits in float32",
        "own kernels": "Transformer Engine's layers and a LoRA in Triton, which are not modelled; transformers' and "
        "PEFT's are estimated",
    }
)
"""Why a published run needed less memory than estimated, by ``beyond_the_keys`` of ``data/throughput.csv``."""


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One row of ``data/throughput.csv``: a setup and its published speed."""

    id: str
    model: Model
    gpu: Gpu
    setup: TrainingSetup
    link_gb_per_s: float | None
    tokens_per_second_per_gpu: float
    as_it_ran: TrainingSetup
    """The setup with its strategy and the keys that affect only memory; the verdict is computed for this one."""
    beyond: str
    """What the run used that no key describes, one of ``BEYOND``; empty: nothing known."""
    source: str
    note: str
    stored: Outcome | None = field(default=None, repr=False, compare=False)
    """What its estimate comes to, if it need not be computed."""

    @property
    def key(self) -> OutcomeKey:
        """What names its outcome."""
        return key_of("published", self.id, self.model, self.gpu, self.as_it_ran)

    @cached_property
    def outcome(self) -> Outcome:
        """What its estimate comes to."""
        return self.stored or outcome_of(self.answer or "refused", lambda answer: answer.peak.bytes)

    @cached_property
    def answer(self) -> Estimate | None:
        """The estimate of the run; None if it is refused."""
        try:
            return estimate_of(self.model, self.gpu, self.as_it_ran)
        except ValueError:
            return None

    @property
    def step_seconds(self) -> float:
        """Seconds of an optimizer step, all micro-batches."""
        micro_batches = self.setup.batch.tokens * self.setup.batch.gradient_accumulation_steps
        return micro_batches / self.tokens_per_second_per_gpu

    @property
    def resident_memory(self) -> Resident:
        """Resident memory of one GPU without sharding."""
        alone = self.setup.replace(
            strategy=Strategy.NONE,
            offload_optimizer=Offload.NONE,
            offload_param=Offload.NONE,
        )
        return resident_memory(self.model, structure(alone))

    @property
    def origin(self) -> str:
        """Who published it: the first word of its id."""
        return self.id.partition("-")[0].partition("_")[0]

    @property
    def crosses(self) -> bool:
        """Whether it ran on several machines."""
        return self.setup.mesh.num_gpus > self.setup.mesh.gpus_per_node

    @property
    def estimated(self) -> RunTime:
        """The estimated time of the same setup."""
        given = self.link_gb_per_s
        return run_time(
            self.model,
            self.gpu,
            self.setup,
            self.resident_memory,
            link_gb_per_s=None if self.crosses else given,
            network_gb_per_s=given if self.crosses else None,
        )

    @property
    def inside(self) -> bool:
        """Whether the bracket contains the published speed."""
        time = self.estimated
        return self.step_seconds in time.step_seconds

    @property
    def width(self) -> float:
        """High end of the bracket over its low end."""
        return self.estimated.step_seconds.high / self.estimated.step_seconds.low


@lru_cache(maxsize=1)
def published_runs() -> tuple[PublishedRun, ...]:
    """Every published run in 16 bits, in the order of the file."""
    return tuple(run for run in _published() if not run.setup.precision.uses_fp8)


@lru_cache(maxsize=1)
def published_in_fp8() -> tuple[PublishedRun, ...]:
    """Every published run in FP8. Judged apart: no constant of time is fitted to it, and it may lack an answer."""
    return tuple(run for run in _published() if run.setup.precision.uses_fp8)


@lru_cache(maxsize=1)
def _published() -> tuple[PublishedRun, ...]:
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
        setup=setup.replace(
            num_gpus=int(row["num_gpus"]),
            strategy=Strategy(row["strategy"]),
            offload_optimizer=read.setup.mesh.offload_optimizer,
            offload_param=read.setup.mesh.offload_param,
            torch_compile=read.setup.computation.torch_compile,
            fp8_backend=read.setup.precision.fp8_backend,
            **{name: read.setup.value(name) for name in OF_THE_MACHINE},
        ),
        link_gb_per_s=float(row["link_gb_per_s"]) if row["link_gb_per_s"] else None,
        tokens_per_second_per_gpu=float(row["tokens_per_second_per_gpu"]),
        as_it_ran=read.setup,
        beyond=row["beyond_the_keys"],
        source=row["source"],
        note=row["note"],
    )


def overestimated() -> tuple[PublishedRun, ...]:
    """Published runs that the estimator wrongly refuses or says do not fit."""
    return tuple(
        run
        for run in stored_published()
        if run.outcome.refusal or run.outcome.verdict is Verdict.DOES_NOT_FIT
    )


# --- memory ---------------------------------------------------------------------------------------


NEAR = 0.05
"""The largest relative error that counts as near. Our choice."""


class Metric(StrEnum):
    """The figure read from a run or counted from a trace."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device"
    TRACED = "traced"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One reading of a run, or one traced peak, compared with its estimate, which is computed on demand."""

    id: str
    metric: Metric
    name: str
    """The model's name, if its config has none."""
    num_gpus: int
    """GPUs in the setup, even if the setup is not modelled."""
    reading: Reading = field(repr=False)
    """The table's setup, read by the contract."""
    measured_bytes: int
    gpu: str = ""
    how: str
    """How it was read."""
    versions: str = ""
    source: str = ""
    note: str = ""
    phases: Mapping[Phase, int] = field(default_factory=dict)
    """The peak of each phase in bytes, if traced."""
    stored: Outcome | None = field(default=None, repr=False, compare=False)
    """What its estimate comes to, if it need not be computed."""

    @property
    def key(self) -> OutcomeKey | None:
        """What names its outcome; None if its setup is not read."""
        if self.model is None or self.reading.problems:
            return None
        return key_of(self.metric, self.id, self.model, self.reading.gpu, self.setup)

    @cached_property
    def outcome(self) -> Outcome:
        """What its estimate comes to."""
        return self.stored or outcome_of(self._answer, self._estimated_bytes)

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
        """The estimate of its setup; None if refused."""
        return None if isinstance(self._answer, str) else self._answer

    @property
    def refusal(self) -> str:
        """Why there is no estimate; empty if there is one."""
        return self.outcome.refusal

    @property
    def model(self) -> Model | None:
        """The model; None if the setup names no known one."""
        return self.reading.model

    @property
    def setup(self) -> TrainingSetup:
        """The setup without what is not modelled."""
        return self.reading.setup

    @property
    def as_run(self) -> tuple[Model, TrainingSetup]:
        """Model and setup as the estimate takes them. Requires an estimate."""
        assert self.model is not None
        model, setup = as_trained(self.model, self.setup)
        return model, as_loaded(model, setup)

    @property
    def estimated_bytes(self) -> int | None:
        """The estimate of this metric in bytes; None without an estimate.

        Reserved and shown bytes come from replaying the step's tensors through the caching allocator.
        """
        return None if self.refusal else self.outcome.estimated_bytes

    def _estimated_bytes(self, answer: Estimate) -> int:
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
        """Relative error, (estimated - measured) / measured; None without an estimate."""
        estimated = self.estimated_bytes
        return None if estimated is None else estimated / self.measured_bytes - 1

    @property
    def phase_errors(self) -> list[float]:
        """Relative error of each traced phase."""
        if self.refusal:
            return []
        return [self.outcome.phases[phase] / height - 1 for phase, height in self.phases.items()]


@lru_cache(maxsize=1)
def measured() -> tuple[Comparison, ...]:
    """Every reading of ``data/measurements.csv``, in the order of the file; none is left out because of its error."""
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


@lru_cache(maxsize=1)
def stored_measured() -> tuple[Comparison, ...]:
    """``measured`` with stored outcomes."""
    return _with_stored(measured())


@lru_cache(maxsize=1)
def stored_traced() -> tuple[Comparison, ...]:
    """``traced`` with stored outcomes."""
    return _with_stored(traced())


@lru_cache(maxsize=1)
def stored_published() -> tuple[PublishedRun, ...]:
    """``published_runs`` with stored outcomes."""
    return _with_stored(published_runs())


_Run = TypeVar("_Run", Comparison, PublishedRun)


def _with_stored(runs: Sequence[_Run]) -> tuple[_Run, ...]:
    known = stored()
    return tuple(replace(run, stored=known.get(run.key)) if run.key else run for run in runs)


def computed() -> Iterable[tuple[OutcomeKey, Outcome]]:
    """The outcome of every run whose setup is read, computed: the rows of ``data/estimated.csv``."""
    runs: tuple[Comparison | PublishedRun, ...] = (*measured(), *traced(), *published_runs())
    for run in runs:
        if run.key is not None:
            yield run.key, run.outcome


def _num_gpus(setup: str) -> int:
    return int(json.loads(setup).get("num_gpus", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Relative errors of the estimates of runs of one kind."""

    runs: int
    median: float
    largest: float


def trust_in(comparisons: Iterable[Comparison]) -> Trust | None:
    """Errors of the comparisons that have an estimate; None if none has."""
    return _trust([abs(run.error) for run in comparisons if run.error is not None])


def _trust(errors: Sequence[float]) -> Trust | None:
    if not errors:
        return None
    return Trust(runs=len(errors), median=median(errors), largest=max(errors))


class Summary(NamedTuple):
    """How close one metric's estimates come."""

    metric: Metric
    by_phase: bool
    """Over the heights of the four phases, each a reading; else over the peaks."""
    readings: int
    refused: int
    """Readings of setups that are refused."""
    trust: Trust | None
    near: int
    """Readings within ``NEAR`` of their estimate."""


def summaries(comparisons: Sequence[Comparison]) -> tuple[Summary, ...]:
    """One summary per metric present, and one of the traced phases."""
    found = []
    for metric in Metric:
        these = [run for run in comparisons if run.metric is metric]
        errors = [abs(run.error) for run in these if run.error is not None]
        if these:
            found.append(_summary(metric, errors, len(these)))
    phases = [abs(error) for run in comparisons for error in run.phase_errors]
    if phases:
        found.append(_summary(Metric.TRACED, phases, len(phases), by_phase=True))
    return tuple(found)


def _summary(
    metric: Metric, errors: Sequence[float], readings: int, *, by_phase: bool = False
) -> Summary:
    near = sum(error <= NEAR for error in errors)
    return Summary(metric, by_phase, readings, readings - len(errors), _trust(errors), near)


class Facet(StrEnum):
    """Criteria for two runs being of the same kind, the most important first."""

    METHOD = "method"
    STRATEGY = "strategy"
    """With FSDP's version and the offload keys."""
    FAMILY = "family"
    """Everything that depends on ``model_type``, such as the layers' program, which Llama and Mistral share."""
    CARD = "card"
    """The generation of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarRuns:
    """The measured runs that are most like a setup."""

    runs: tuple[Comparison, ...]
    trust: Trust | None
    """None if no run of the method was measured."""
    differs_in: frozenset[Facet]
    """The criteria in which they differ; empty if they are of the same kind."""


def similar_runs(of: Estimate) -> SimilarRuns:
    """Measured runs of the same kind (allocated bytes); else those of the same method that match most criteria.

    Without a GPU any card counts as the same kind.
    """
    wanted = _facets(of.model, of.gpu, of.setup.adapters, of.setup.mesh)
    if of.gpu is None:
        del wanted[Facet.CARD]
    groups: dict[frozenset[Facet], list[Comparison]] = {}
    for run, facets in _measured_facets():
        unlike = frozenset(facet for facet, value in wanted.items() if facets[facet] != value)
        groups.setdefault(unlike, []).append(run)
    order = list(Facet)
    nearest = min(
        (unlike for unlike in groups if Facet.METHOD not in unlike),
        key=lambda unlike: (len(unlike), [facet in unlike for facet in order]),
        default=None,
    )
    if nearest is None:
        return SimilarRuns(runs=(), trust=None, differs_in=frozenset({Facet.METHOD}))
    runs = tuple(groups[nearest])
    return SimilarRuns(runs=runs, trust=trust_in(runs), differs_in=nearest)


def _facets(model: Model, gpu: Gpu | None, adapters: Adapters, mesh: Mesh) -> dict[Facet, object]:
    offload = mesh.offload_optimizer, mesh.offload_param
    return {
        Facet.METHOD: adapters.method,
        Facet.STRATEGY: (mesh.strategy, mesh.uses_fsdp1, offload),
        Facet.FAMILY: family_of(model).like or model.model_type,
        Facet.CARD: None if gpu is None else (gpu.vendor, gpu.architecture),
    }


@lru_cache(maxsize=1)
def _measured_facets() -> tuple[tuple[Comparison, dict[Facet, object]], ...]:
    return tuple(
        (run, _facets(run.model, run.reading.gpu, run.setup.adapters, run.setup.mesh))
        for run in stored_measured()
        if run.metric is Metric.ALLOCATED and run.error is not None and run.model is not None
    )


# --- need -----------------------------------------------------------------------------------------


class Spread(NamedTuple):
    """Bytes that nvidia-smi showed beyond the allocated peak of the same run, as a share of that peak."""

    runs: int
    low: float
    middle: float
    high: float


def beyond_allocated() -> tuple[Spread, Spread]:
    """Cached blocks, context and communication together: on a single GPU, and on one of several."""
    allocated = {run.id: run.measured_bytes for run in measured() if run.metric is Metric.ALLOCATED}
    shares: dict[bool, list[float]] = {False: [], True: []}
    for run in measured():
        if run.metric is Metric.DEVICE and run.id in allocated:
            shares[run.num_gpus > 1].append(run.measured_bytes / allocated[run.id] - 1)
    one, several = (
        Spread(len(found), min(found), median(found), max(found)) for found in shares.values()
    )
    return one, several


class Agreement(NamedTuple):
    """Verdicts on measured runs at many capacities, compared with what the runs needed."""

    pairs: int
    """Pairs of a run and a capacity outside its estimated range, so that the verdict is a plain yes or no."""
    agreeing: int
    """Pairs whose verdict is right for every value in the range of the measured need."""
    tight: int
    """Pairs inside the estimated range, where the verdict is tight."""
    width: float
    """Median of the estimated ranges, as a share of their low ends."""

    @property
    def share(self) -> float:
        """Share of pairs that agree."""
        return self.agreeing / self.pairs


def agreement(capacities: Sequence[int]) -> Agreement:
    """Verdicts at these capacities, in bytes, for every run whose allocated peak was measured.

    A run's measured need is its allocated peak plus the estimated context, communication and slack, low and high,
    capped at what nvidia-smi showed where that was read.
    """
    pairs = agreeing = tight = 0
    widths = []
    these = stored_measured()
    shown = {run.id: run.measured_bytes for run in these if run.metric is Metric.DEVICE}
    for run in these:
        answer = run.outcome
        if run.metric is not Metric.ALLOCATED or answer.refusal:
            continue
        off = run.measured_bytes - answer.estimated_bytes
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
