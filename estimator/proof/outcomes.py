"""What the estimates of measured, traced and published runs come to, stored in ``data/estimated.csv``.

Estimating all of them takes half a minute, which no visitor should wait for. ``make docs`` writes the table;
``tests/test_proof.py`` fails while a row of those that it computes again differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple

from estimator.contract.setups import write_fields
from estimator.sources import catalog
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import STEP_PHASES, Component, Gpu, Model, Phase, Verdict


class Outcome(NamedTuple):
    """The figures of one estimate that comparisons need (memory in bytes); of a refused setup only the refusal."""

    refusal: str = ""
    estimated_bytes: int = 0
    need_low_bytes: int = 0
    need_high_bytes: int = 0
    verdict: Verdict | None = None
    phases: Mapping[Phase, int] = MappingProxyType({})
    """The peak of each phase of the step, without cuBLAS's workspace, as traces have it."""


def outcome_of(answer: Estimate | str, estimated_bytes: Callable[[Estimate], int]) -> Outcome:
    """The outcome of an estimate or a refusal. ``estimated_bytes``: the figure that is compared."""
    if isinstance(answer, str):
        return Outcome(answer)
    workspace = answer.peak.resident.get(Component.WORKSPACE, 0)
    return Outcome(
        "",
        estimated_bytes(answer),
        answer.need_low_bytes,
        answer.need_high_bytes,
        answer.verdict,
        {phase: answer.phases[phase].bytes - workspace for phase in STEP_PHASES},
    )


class OutcomeKey(NamedTuple):
    """What names a stored outcome. A changed setup has another key, so its outcome is computed."""

    table: str
    id: str
    setup: str
    """The first digits of a hash of the contract's object."""


def key_of(
    table: str, name: str, model: Model, gpu: Gpu | None, setup: TrainingSetup
) -> OutcomeKey:
    """The key of a run; ``table``: where its row is, or what was read of it."""
    written = json.dumps(write_fields(model, gpu, setup), sort_keys=True)
    return OutcomeKey(table, name, sha256(written.encode()).hexdigest()[:12])


COLUMNS = (
    *OutcomeKey._fields,
    *Outcome._fields[:-1],
    *(f"{phase}_bytes" for phase in STEP_PHASES),
)


@lru_cache(maxsize=1)
def stored() -> Mapping[OutcomeKey, Outcome]:
    """Every stored outcome; none if one's own tables may change the models or cards."""
    if catalog.has_own_rows():
        return MappingProxyType({})
    return MappingProxyType(dict(map(_read, catalog.estimated())))


def _read(row: Mapping[str, str]) -> tuple[OutcomeKey, Outcome]:
    key = OutcomeKey(*(row[name] for name in OutcomeKey._fields))
    if row["refusal"]:
        return key, Outcome(row["refusal"])
    return key, Outcome(
        "",
        int(row["estimated_bytes"]),
        int(row["need_low_bytes"]),
        int(row["need_high_bytes"]),
        Verdict(row["verdict"]) if row["verdict"] else None,
        {phase: int(row[f"{phase}_bytes"]) for phase in STEP_PHASES},
    )


def rows_of(outcomes: Iterable[tuple[OutcomeKey, Outcome]]) -> Iterator[tuple[object, ...]]:
    """The rows of the table, under ``COLUMNS``."""
    for key, (refusal, *figures, verdict, phases) in outcomes:
        yield (*key, refusal, *(() if refusal else (*figures, verdict or "", *phases.values())))
