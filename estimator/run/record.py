"""A run on one GPU in order of time: loading, steps with what generates for them, evaluation, saving. Bytes per GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, Protocol

from estimator.resident.model import Resident
from estimator.run.checkpoints import gathers_to_save
from estimator.step.evaluation import evaluation_walk
from estimator.step.timeline import Steps, StepTimeline, Walk
from estimator.values.results import Moment
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Model, Phase

NO_GENERATION: Mapping[Phase, Moment] = MappingProxyType({})


class Unsized(Protocol):
    """What neither batch nor length changes of a run on one GPU; computed when it is asked for."""

    @property
    def plan(self) -> Steps:
        """Of a training step."""

    @property
    def evaluation_plan(self) -> Steps:
        """Of an evaluation batch."""

    @property
    def resident(self) -> Resident:
        """What stays on the GPU."""

    @property
    def load(self) -> Moment:
        """The highest moment of loading."""

    @property
    def save(self) -> Moment:
        """The highest moment while a checkpoint is written."""


class Heights(NamedTuple):
    """What decides the need of a GPU. Bytes."""

    by_engine: Mapping[int, int]
    """The highest moment of the run, for each size that an inference engine has then."""
    paged: int

    @property
    def highest(self) -> int:
        """The highest moment of the run."""
        return max(self.by_engine.values())


class RunOnGpu:
    """A run on one GPU: the highest moments of its stages. Each is computed when it is asked for."""

    def __init__(
        self,
        model: Model,
        setup: TrainingSetup,
        of: Unsized,
        workspace: int,
        *,
        generation: Mapping[Phase, Moment] = NO_GENERATION,
        engine: int = 0,
        device: int | None = None,
    ) -> None:
        self._model, self._setup, self._of, self._workspace = model, setup, of, workspace
        self.resident = replace(of.resident, engine=engine) if engine else of.resident
        """What stays on the GPU from one step to the next."""
        self._generation = generation
        """Loading with the engine, pushing weights, generating."""
        self._engine = engine
        """What an inference engine holds in the other stages."""
        self.device = device
        """Its index under a device map; None if all GPUs do the same."""

    def __eq__(self, other: object) -> bool:
        """Whether their highest moments are equal."""
        return isinstance(other, RunOnGpu) and self.phases == other.phases

    __hash__ = None  # type: ignore[assignment]

    @property
    def paged_bytes(self) -> int:
        """Optimizer states that bitsandbytes keeps in managed memory, outside torch's counter."""
        return self.resident.states.paged_bytes

    @cached_property
    def timeline(self) -> StepTimeline:
        """The moments of the second step."""
        return StepTimeline(self._setup, self._of.plan, self.resident, self._workspace)

    @cached_property
    def _evaluation(self) -> Walk:
        return evaluation_walk(
            self._model, self._setup, self._of.evaluation_plan, self.resident, self._workspace
        )

    @property
    def evaluation(self) -> Moment:
        """The highest moment of an evaluation batch, planned or not."""
        highest = max(self._evaluation.heights().values(), key=attrgetter("bytes"))
        return highest._replace(phase=Phase.EVALUATION)

    @property
    def _evaluates(self) -> bool:
        return self._setup.run.eval_strategy != "no"

    @cached_property
    def outside(self) -> Mapping[Phase, Moment]:
        """The highest moments outside the passes of a step; evaluation if planned."""
        found = {Phase.LOAD: self._of.load, **self._generation}
        if self._evaluates:
            found[Phase.EVALUATION] = self.evaluation
        return {**found, Phase.SAVE: self._beside_engine(self._of.save)}

    @cached_property
    def phases(self) -> Mapping[Phase, Moment]:
        """The highest moment of each phase: those of the step first."""
        return {**self._step, **self.outside}

    @cached_property
    def _step(self) -> Mapping[Phase, Moment]:
        return self.timeline.heights()

    @property
    def peak(self) -> Moment:
        """The highest moment of the second step."""
        return max(self._step.values(), key=attrgetter("bytes"))

    @cached_property
    def decisive(self) -> Moment:
        """The highest moment of the run among those that count."""
        counted = (
            moment
            for phase, moment in self.phases.items()
            if phase is not Phase.SAVE or gathers_to_save(self._setup)
        )
        return max(counted, key=attrgetter("bytes"))

    @property
    def lasting(self) -> Iterator[Moment]:
        """Of those that count, the moments that no batch and no length changes, and those of generation."""
        yield from {Phase.LOAD: self._of.load, **self._generation}.values()
        if gathers_to_save(self._setup):  # else saving is below the step
            yield self._beside_engine(self._of.save)

    @property
    def heights(self) -> Heights:
        """What decides the need; no moment of a step or an evaluation is computed."""
        found = {self._engine: self.timeline.peak_bytes}
        if self._evaluates:
            found[self._engine] = max(found[self._engine], self._evaluation.peak_bytes)
        for moment in self.lasting:
            engine = moment.resident.get(Component.INFERENCE_ENGINE, 0)
            found[engine] = max(found.get(engine, 0), moment.bytes)
        return Heights(found, self.paged_bytes)

    def _beside_engine(self, moment: Moment) -> Moment:
        if not self._engine:
            return moment
        return moment._replace(
            resident={**moment.resident, Component.INFERENCE_ENGINE: self._engine}
        )
