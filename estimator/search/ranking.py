"""One setup on many GPUs: which of them hold it, and what the run takes on each.

Two brackets are compared by their middles, the geometric mean of low and high end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from estimator.answer.estimate import estimate
from estimator.sources import catalog
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Estimates of one setup on several GPUs, and the two that a reader asks for first."""

    estimates: tuple[Estimate, ...]
    """Those that hold it first, then tight, then the others; each by its hours, unknown hours last."""
    fastest: Estimate | None
    """Of those that hold it and have a time, the one with the fewest hours."""
    cheapest: Estimate | None
    """Of those that hold it and have a price, the one with the fewest dollars."""


def rank_gpus(model: Model, setup: TrainingSetup, gpus: Iterable[Gpu] | None = None) -> Ranking:
    """The setup on each GPU, all of the catalogue by default.

    A price of one's own holds for one GPU, so it is left out here: each GPU has its cheapest listing. So is a
    utilisation of one's own.
    """
    same = replace(setup, usd_per_gpu_hour=None, mfu=None)
    everywhere = catalog.gpus().values() if gpus is None else gpus
    answers = [estimate(model, gpu, same) for gpu in everywhere]
    fitting = [answer for answer in answers if answer.verdict is Verdict.FITS]
    priced = [answer for answer in fitting if answer.cost is not None]
    timed = [answer for answer in fitting if answer.time is not None]
    return Ranking(
        estimates=tuple(sorted(answers, key=_order)),
        fastest=min(timed, key=_hours, default=None),
        cheapest=min(priced, key=_dollars, default=None),
    )


def pareto(estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """Those that hold the setup and that no other beats in both hours and dollars, the fastest first."""
    known = [
        answer
        for answer in estimates
        if answer.verdict is Verdict.FITS and answer.time is not None and answer.cost is not None
    ]
    front: list[Estimate] = []
    for answer in sorted(known, key=lambda answer: (_hours(answer), _dollars(answer))):
        if not front or _dollars(answer) < _dollars(front[-1]):
            front.append(answer)
    return tuple(front)


_VERDICTS = (Verdict.FITS, Verdict.TIGHT, Verdict.DOES_NOT_FIT)


def _order(answer: Estimate) -> tuple[int, bool, float]:
    assert answer.verdict is not None
    unknown = answer.time is None
    return _VERDICTS.index(answer.verdict), unknown, 0.0 if unknown else _hours(answer)


def _hours(answer: Estimate) -> float:
    """The middle of the bracket; its high end alone would put all cards that wait for the host in one place."""
    assert answer.time is not None
    return math.sqrt(answer.time.total_hours_low * answer.time.total_hours_high)


def _dollars(answer: Estimate) -> float:
    assert answer.cost is not None
    return math.sqrt(answer.cost.cost_usd_low * answer.cost.cost_usd_high)
