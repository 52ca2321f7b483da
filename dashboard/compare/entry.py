"""A scenario with its estimate or its refusal.

Ranges are compared by their middle, the geometric mean of both ends. Hours and dollars are only compared among runs
that fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from estimator import Estimate, Model, Verdict, contract, estimate

NOTHING_SAID: Mapping[str, str] = {}


class ComparedEntry(NamedTuple):
    """One scenario with its estimate or its refusal, a sentence."""

    name: str
    estimate: Estimate | None
    problem: str = ""


def entries(
    scenarios: Sequence[contract.Scenario],
    known: Mapping[str, Model],
    context: int | None = None,
    said: Mapping[str, str] = NOTHING_SAID,
) -> list[ComparedEntry]:
    """Estimates each scenario, all at another context if one is given.

    ``known``: models of the Hub by id. ``said``: status messages for those that the Hub has not returned.
    """
    return [_entry(scenario, known, context, said) for scenario in scenarios]


def _entry(
    scenario: contract.Scenario,
    known: Mapping[str, Model],
    context: int | None,
    said: Mapping[str, str],
) -> ComparedEntry:
    reading = contract.read(scenario, known)
    if reading.model is None and (waiting := said.get(contract.unknown_model(scenario, known))):
        return ComparedEntry(scenario.name, None, waiting)
    if reading.model is None:
        return ComparedEntry(
            scenario.name, None, " ".join(reading.problems) or "The model is not known yet."
        )
    setup = reading.setup
    try:
        if context is not None:
            setup = setup.replace(max_length=context)
        return ComparedEntry(scenario.name, estimate(reading.model, reading.gpu, setup))
    except ValueError as refusal:
        return ComparedEntry(scenario.name, None, str(refusal))


def hours(of: Estimate) -> float | None:
    """The middle of the run's hours; None if it does not fit or is unknown."""
    if of.time is None or not of.can_run:
        return None
    return of.time.total_hours.middle


def dollars(of: Estimate) -> float | None:
    """The middle of the run's US dollars; None if it does not fit or is unknown."""
    if of.cost is None or not of.can_run:
        return None
    return of.cost.cost_usd.middle


def least(
    among: Sequence[ComparedEntry], measure: Callable[[Estimate], float | None]
) -> ComparedEntry | None:
    """The entry with the smallest measure; None if no entry has one."""
    known = [
        (value, entry)
        for entry in among
        if entry.estimate and (value := measure(entry.estimate)) is not None
    ]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def best(shown: Sequence[ComparedEntry]) -> int:
    """Index of the entry to show first: the cheapest that fits, else the first that can be estimated."""
    fitting = [
        entry for entry in shown if entry.estimate and entry.estimate.verdict is Verdict.FITS
    ]
    found = least(fitting, dollars) or next((entry for entry in shown if entry.estimate), None)
    return 0 if found is None else list(shown).index(found)


def bars(shown: Sequence[ComparedEntry]) -> list[tuple[str, Estimate]]:
    """Entries with an estimate, by name. Only these have a bar."""
    return [(entry.name, entry.estimate) for entry in shown if entry.estimate is not None]
