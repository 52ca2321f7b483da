"""The number to type: the shares of a GPU with which vLLM and the trainer both fit, and what each does to the time."""

from __future__ import annotations

from estimator.answer.estimate import estimate
from estimator.inference.colocation import colocated_engine
from estimator.inference.engine import least_hundredths
from estimator.inference.refusals import check_generation
from estimator.passes.prepared import as_trained
from estimator.values.refusals import CONTRADICTION, InputError, Refusal
from estimator.values.results import Utilisation, UtilisationSearch
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model

HUNDREDTHS = 100
NOT_COLOCATED = Refusal(
    "A share of the GPU is chosen where vLLM is on the GPUs that train; set use_vllm, and vllm_mode to colocate.",
    CONTRADICTION,
)


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
