"""The estimate of a live Trainer beside its rehearsal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from estimator.answer.estimate import estimate
from estimator.contract.setups import parse
from estimator.rehearse.ledger import KINDS
from estimator.rehearse.phases import BACKWARD, FORWARD, LOADING, OPTIMIZER
from estimator.rehearse.rehearsed import Rehearsed
from estimator.step.allocations import hardware_of
from estimator.step.blocks import NO_LIMIT
from estimator.step.reserved import is_replayed, rank_runs
from estimator.values.results import Estimate
from estimator.values.specs import Phase

PHASES: Mapping[str, tuple[Phase, ...]] = {
    LOADING: (Phase.LOAD,),
    FORWARD: (Phase.FORWARD, Phase.LOSS, Phase.REFERENCE, Phase.SCORING, Phase.GENERATION),
    BACKWARD: (Phase.BACKWARD,),
    OPTIMIZER: (Phase.OPTIMIZER_STEP,),
}
"""Which phases of an estimate each phase of a rehearsal covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """An estimate, or why there is none."""

    estimate: Estimate | None = None
    """Of what a rehearsal plays: loading and steps."""
    with_evaluation: Estimate | None = None
    """The same with the evaluations between, where the Trainer has some."""
    problem: str = ""

    @property
    def allocated(self) -> int | None:
        """Most bytes of PyTorch's blocks, where the run is replayed; elsewhere the most tensors of a step."""
        return None if self.estimate is None else _allocated(self.estimate)

    @property
    def evaluated(self) -> int | None:
        """The same with evaluations, where these need more than the steps."""
        if self.with_evaluation is None or self.allocated is None:
            return None
        allocated = _allocated(self.with_evaluation)
        return allocated if allocated > self.allocated else None

    @property
    def kinds(self) -> dict[str, int]:
        """The peak by the kinds of tensors that a rehearsal tells apart, in bytes."""
        if self.estimate is None:
            return {}
        resident = self.estimate.peak.resident
        found = {
            name: sum(resident.get(part, 0) for part in parts) for name, parts in KINDS.items()
        }
        return {name: size for name, size in found.items() if size}

    @property
    def phases(self) -> dict[str, int]:
        """The highest moment of each phase of a rehearsal, in bytes."""
        if self.estimate is None:
            return {}
        found = {
            name: max(
                (
                    self.estimate.phases[phase].bytes
                    for phase in phases
                    if phase in self.estimate.phases
                ),
                default=0,
            )
            for name, phases in PHASES.items()
        }
        return {name: size for name, size in found.items() if size}


def _allocated(of: Estimate) -> int:
    """Most bytes of PyTorch's blocks, where the run is replayed; elsewhere the most tensors of a step.

    Where vLLM sleeps while the trainer steps, it is awake as it starts and generates: the highest of all moments.
    """
    model, gpu, setup = of.model, of.gpu, of.setup
    if setup.generation.vllm_enable_sleep_mode:
        return max(moment.bytes for moment in of.phases.values())
    if not is_replayed(model, gpu, setup):
        return of.peak.bytes
    runs = rank_runs(model, hardware_of(gpu), setup)
    return max(run.spare(NO_LIMIT).allocated for run in runs)


def beside(run: Rehearsed, gpu: str) -> Beside:
    """The estimate of the Trainer that a run had, on the same card."""
    if run.keys is None:
        return Beside(problem=run.keys_problem or "the script has no transformers Trainer to read")
    keys = {**run.keys, "gpu": gpu}
    steps = {**keys, "eval_strategy": "no"}  # the run ends before it evaluates
    try:
        evaluates = run.keys.get("eval_strategy", "no") != "no"
        return Beside(
            estimate=estimate(*parse(steps)),
            with_evaluation=estimate(*parse(keys)) if evaluates else None,
        )
    except ValueError as problem:
        return Beside(problem=str(problem))
