"""A step measured on one's own machine, as the keys that carry it to every other setup."""

from __future__ import annotations

from typing import Any

from estimator.answer.estimate import estimate
from estimator.time.own_reading import pace_of, seconds_of, shares_text
from estimator.values.kinds import ShortText
from estimator.values.refusals import InputError
from estimator.values.results import Estimate

SIGNIFICANT = 6
"""Digits of a pace in a link."""


def own_step(answer: Estimate, said: str) -> dict[str, Any]:
    """The keys ``pace``, ``pace_from`` and ``pace_shares`` after this setup's step was measured.

    ``said``: a number of seconds, or a log line.

    Raises ``InputError`` in one sentence if the text has no speed, or the setup has no time.

    Source: derived.
    """
    setup = answer.setup
    if setup.task.objective.generates:
        raise InputError(
            f"A step of {setup.task.objective} is mostly generation, whose pace says nothing of training; "
            "measure a step of sft."
        )
    bare = answer
    if setup.run.pace is not None or setup.run.mfu is not None:
        bare = estimate(
            answer.model, answer.gpu, setup.replace(pace=None, pace_shares=None, mfu=None)
        )
    if bare.time is None or answer.gpu is None:
        raise InputError(
            "This setup has no estimated seconds to compare a step with; choose a GPU whose speed is known."
        )
    seconds = seconds_of(said, setup.effective_batch_size)
    pace = float(f"{pace_of(bare.time, seconds):.{SIGNIFICANT}g}")
    name = answer.model.hub_id or answer.model.model_type
    batch = f"{setup.batch.per_device_train_batch_size} × {setup.batch.max_length:,} tokens"
    gpus = f"{setup.mesh.num_gpus} × " if setup.mesh.num_gpus > 1 else ""
    taken = (
        f"{seconds:.4g} s, {name}, {setup.adapters.method.value}, {batch}, {gpus}{answer.gpu.name}"
    )
    return {
        "pace": pace,
        "pace_from": taken[: ShortText.MOST],
        "pace_shares": shares_text(bare.time.parts, pace),
        "mfu": None,
    }
