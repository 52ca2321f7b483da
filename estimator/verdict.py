"""Need against capacity."""

from __future__ import annotations

from estimator.results import Moment
from estimator.specs import Gpu, Phase, TrainingSetup, Verdict


def verdict(need_low: int, need_high: int, gpu: Gpu | None) -> Verdict | None:
    """Fits if even the high end of the need does; tight if only the low end does; None without a GPU. All in bytes.

    >>> verdict(1, 2, None) is None
    True
    """
    if gpu is None:
        return None
    if need_high <= gpu.memory_bytes:
        return Verdict.FITS
    return Verdict.TIGHT if need_low <= gpu.memory_bytes else Verdict.DOES_NOT_FIT


def beyond_the_step(decisive: Moment, setup: TrainingSetup) -> str:
    """What needs more than training, and the setting that lowers it: one sentence; empty where training decides.

    >>> beyond_the_step(Moment(Phase.EVALUATION, "lm_head", {}), TrainingSetup())
    'Evaluation needs more than training: lower per_device_eval_batch_size, now 8.'
    """
    match decisive.phase:
        case Phase.EVALUATION if setup.per_device_eval_batch_size > 1:
            now = setup.per_device_eval_batch_size
            return (
                f"Evaluation needs more than training: lower per_device_eval_batch_size, now {now}."
            )
        case Phase.EVALUATION:
            return "Evaluation needs more than training: set eval_strategy to no, and evaluate elsewhere."
        case Phase.LOAD if setup.prepare_model_for_kbit_training:
            return f"Loading needs more than training ({decisive.name}): leave prepare_model_for_kbit_training off."
        case Phase.LOAD:
            return f"Loading needs more than training ({decisive.name}): no batch and no length lowers it."
        case _:
            return ""
