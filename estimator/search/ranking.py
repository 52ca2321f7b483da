"""One setup on many GPUs: which of them hold it, and the hours and dollars of the run on each.

Brackets are compared by the geometric mean of their low and high ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from estimator.answer.estimate import estimate
from estimator.sources import catalog
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Estimates of one setup on several GPUs, with the fastest and the cheapest."""

    estimates: tuple[Estimate, ...]
    """Sorted by verdict (fits, tight, does not fit), then by hours; unknown hours last."""
    fastest: Estimate | None
    """The one with the fewest hours among those that fit and have a time."""
    cheapest: Estimate | None
    """The one with the fewest dollars among those that fit and have a price."""


def rank_gpus(model: Model, setup: TrainingSetup, gpus: Iterable[Gpu] | None = None) -> Ranking:
    """The setup on each GPU, by default on all of the catalogue.

    The user's price, ``mfu`` and ``pace`` hold for one GPU, so they are ignored here: each GPU has its cheapest
    listing.
    """
    same = setup.replace(usd_per_gpu_hour=None, mfu=None, pace=None)
    everywhere = catalog.gpus().values() if gpus is None else gpus
    answers = [answer for gpu in everywhere if (answer := _on(model, gpu, same)) is not None]
    fitting = [answer for answer in answers if answer.verdict is Verdict.FITS]
    priced = [answer for answer in fitting if answer.cost is not None]
    timed = [answer for answer in fitting if answer.time is not None]
    return Ranking(
        estimates=tuple(sorted(answers, key=_order)),
        fastest=min(timed, key=middle_hours, default=None),
        cheapest=min(priced, key=middle_dollars, default=None),
    )


def _on(model: Model, gpu: Gpu, setup: TrainingSetup) -> Estimate | None:
    """None where vLLM does not start on a GPU; what is refused on every GPU is refused."""
    try:
        return estimate(model, gpu, setup)
    except ValueError:
        if setup.generation.is_colocated:
            return None
        raise


def pareto(estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """Pareto front in hours and dollars of the estimates that fit, the fastest first."""
    known = [
        answer
        for answer in estimates
        if answer.verdict is Verdict.FITS and answer.time is not None and answer.cost is not None
    ]
    front: list[Estimate] = []
    for answer in sorted(known, key=lambda answer: (middle_hours(answer), middle_dollars(answer))):
        if not front or middle_dollars(answer) < middle_dollars(front[-1]):
            front.append(answer)
    return tuple(front)


_VERDICTS = (Verdict.FITS, Verdict.TIGHT, Verdict.DOES_NOT_FIT)


def _order(answer: Estimate) -> tuple[int, bool, float]:
    assert answer.verdict is not None
    unknown = answer.time is None
    return _VERDICTS.index(answer.verdict), unknown, 0.0 if unknown else middle_hours(answer)


def middle_hours(answer: Estimate) -> float:
    """The run's hours: the geometric mean of the two ends.

    By the high end alone, GPUs that wait for the host would tie.
    """
    assert answer.time is not None
    return answer.time.total_hours.middle


def middle_dollars(answer: Estimate) -> float:
    """The run's US dollars: the geometric mean of the two ends."""
    assert answer.cost is not None
    return answer.cost.cost_usd.middle
