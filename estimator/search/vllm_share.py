"""The number to type: the shares of a GPU with which vLLM and the trainer both fit, and what each does to the time."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.answer.estimate import estimate
from estimator.inference.colocation import colocated_engine
from estimator.inference.engine import least_hundredths
from estimator.inference.refusals import check_generation
from estimator.objectives.registry import as_trained
from estimator.values.range import Range
from estimator.values.refusals import CONTRADICTION, InputError, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Verdict

HUNDREDTHS = 100
NOT_COLOCATED = Refusal(
    "A share of the GPU is chosen where vLLM is on the GPUs that train; set use_vllm, and vllm_mode to colocate.",
    CONTRADICTION,
)


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


def vllm_shares(model: Model, gpu: Gpu, setup: TrainingSetup) -> UtilisationSearch:
    """Every share of two decimals: whether it fits, how many rows run at once, and the seconds of a step.

    Raises ``ValueError`` where vLLM is not on the GPUs that train, or where the rest of the setup is refused.
    Source: derived, from ``need``, ``colocated_engine`` and ``time_of``.
    """
    model, setup = as_trained(model, setup)
    if not (setup.task.objective.generates and setup.generation.is_colocated):
        raise NOT_COLOCATED()
    check_generation(model, setup)
    found = [_share(model, gpu, setup, hundredth) for hundredth in range(1, HUNDREDTHS)]
    return UtilisationSearch(rows=colocated_engine(model, gpu, setup).rows, shares=tuple(found))


def least_share(model: Model, gpu: Gpu, setup: TrainingSetup, rows: int) -> float:
    """The smallest share with which so many rows are held at once, whether or not the trainer fits beside it.

    Source: derived, from ``Engine.asking``.
    """
    own = colocated_engine(model, gpu, setup)
    if not 1 <= rows <= own.rows:
        raise InputError(
            f"rows must be from 1 to {own.rows}, the rows of a generation, not {rows}."
        )
    return least_hundredths(own.asking(rows), gpu.memory_bytes)


def _share(model: Model, gpu: Gpu, setup: TrainingSetup, hundredth: int) -> Utilisation:
    utilisation = hundredth / HUNDREDTHS
    tried = setup.replace(vllm_gpu_memory_utilization=utilisation)
    try:
        answer = estimate(model, gpu, tried)
    except ValueError as refusal:
        return Utilisation(utilisation=utilisation, verdict=None, refusal=str(refusal))
    low, high, found, time = (
        answer.need_low_bytes,
        answer.need_high_bytes,
        answer.verdict,
        answer.time,
    )
    rows = colocated_engine(model, gpu, tried).at_once
    return Utilisation(
        utilisation=utilisation,
        verdict=found,
        need_low_bytes=low,
        need_high_bytes=high,
        rows_low=rows[0],
        rows_high=rows[1],
        step_seconds=time.step_seconds if time else None,
    )
