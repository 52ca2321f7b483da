"""Predicted against measured, row by row and phase by phase."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from benchmarks.gpu.cases import read_case
from estimator.contract import setups as contract
from estimator.proof.rows import OUT_OF_MEMORY
from estimator.sources.catalog import Measurement
from estimator.values.results import Estimate
from estimator.values.specs import STEP_PHASES, Component

SHOWN = ("peak", *(phase.value for phase in STEP_PHASES), "after_load")


class Compared(NamedTuple):
    """One row with its estimate, and the relative error of the prediction."""

    row: Measurement
    errors: dict[str, float]
    """Predicted / measured − 1, by moment; moments that were not read are missing."""

    @property
    def worst(self) -> float:
        """The largest absolute error."""
        return max(map(abs, self.errors.values()), default=0.0)


def compare(row: Measurement) -> Compared:
    """Compares a row with the estimate of its setup; ``ValueError`` if it cannot be estimated."""
    predicted = _predicted(_estimate(row))
    read = row.readings["allocated"]
    return Compared(
        row, {moment: predicted[moment] / read[moment] - 1 for moment in SHOWN if read.get(moment)}
    )


def _estimate(row: Measurement) -> Estimate:
    given = json.loads(row.setup)
    contract.parse(given)  # a key that is measured but not modelled has no prediction
    _, gpu, _ = contract.parse({name: given[name] for name in ("model", "gpu") if name in given})
    return read_case(given).predicted(gpu)


def _predicted(result: Estimate) -> dict[str, int]:
    resident = result.peak.resident
    return {
        "peak": result.peak.bytes,
        "after_load": resident.get(Component.WEIGHTS, 0) + resident.get(Component.ADAPTERS, 0),
        **{phase.value: result.phases[phase].bytes for phase in STEP_PHASES},
    }


def report(table: Iterable[Measurement]) -> Iterator[str]:
    """Lines for the terminal: rows with a prediction, the worst first; then those without one."""
    compared, remarks = [], []
    for row in table:
        if row.outcome == OUT_OF_MEMORY:
            remarks.append(f"out of memory: {row.id}, {row.gpu}{_verdict(row)}")
            continue
        try:
            compared.append(compare(row))
        except ValueError as problem:
            remarks.append(f"no prediction: {row.id}: {problem}")
    compared = [each for each in compared if each.errors]
    compared.sort(key=lambda each: each.worst, reverse=True)
    yield "predicted against measured (allocated bytes), in percent; worst first"
    yield "".join(f"{moment:>15}" for moment in SHOWN) + "  setup"
    for each in compared:
        yield "".join(map(_cell, map(each.errors.get, SHOWN))) + f"  {each.row.id} ({each.row.gpu})"
    yield from _summary(compared)
    yield from remarks


def _cell(error: float | None) -> str:
    return f"{'':>15}" if error is None else f"{100 * error:>+15.2f}"


def _summary(compared: list[Compared]) -> Iterator[str]:
    if not compared:
        yield "no row has a reading of allocated bytes"
        return
    for moment in SHOWN:
        errors = [abs(each.errors[moment]) for each in compared if moment in each.errors]
        if errors:
            yield (
                f"{moment}: {len(errors)} rows, median {100 * statistics.median(errors):.2f} %, "
                f"largest {100 * max(errors):.2f} %"
            )


def _verdict(row: Measurement) -> str:
    """The verdict of the estimate, or why there is none."""
    try:
        result = _estimate(row)
    except ValueError as problem:
        return f"; no prediction: {problem}"
    return f"; our verdict: {result.verdict.value.replace('_', ' ')}" if result.verdict else ""
