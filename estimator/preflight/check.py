"""One sentence on whether a live Trainer fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimator.answer.estimate import estimate
from estimator.contract import text
from estimator.contract.setups import parse
from estimator.preflight import live
from estimator.search.remedies import remedies
from estimator.sources import catalog
from estimator.values.refusals import InputError, RefusedError
from estimator.values.results import Estimate
from estimator.values.specs import Verdict


class DoesNotFitError(RuntimeError):
    """The run does not fit or is tight; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The setup read from a Trainer, and its result."""

    keys: Mapping[str, object]
    """The setup, an object of the contract with its GPU."""
    estimate: Estimate | None
    """None if it could not be estimated; the sentence says why."""
    sentence: str

    @property
    def fits(self) -> bool | None:
        """True or False; None if it is tight or unknown, or there is no GPU."""
        verdict = self.estimate.verdict if self.estimate else None
        return None if verdict in {None, Verdict.TIGHT} else verdict is Verdict.FITS


def check(
    trainer: Any,
    *,
    gpu: object = None,
    max_length: int | None = None,
    must_fit: bool = False,
    show: bool = True,
) -> Preflight:
    """Whether a Trainer fits its GPU, asked before ``trainer.train()``; prints one sentence.

    Parameters
    ----------
    trainer
        A ``Trainer`` of transformers or an ``SFTTrainer`` of TRL, as it is about to train.
    gpu
        A name as the command line takes it, or an object of the contract; None: the one that torch sees.
    max_length
        Tokens in a row, where neither the arguments nor the rows say so.
    must_fit
        Raise ``DoesNotFitError`` if it does not fit, and ``InputError`` if it cannot be told.
    show
        Print the sentence.
    """
    try:
        found = _checked(trainer, live.gpu() if gpu is None else gpu, max_length)
    except (InputError, RefusedError) as problem:
        if must_fit:
            raise
        found = Preflight(keys={}, estimate=None, sentence=f"Not checked: {problem}")
    if show:
        print(found.sentence)  # noqa: T201 — the sentence is what was asked for
    if must_fit and found.fits is False:
        raise DoesNotFitError(found.sentence)
    return found


def _checked(trainer: Any, gpu: object, max_length: int | None) -> Preflight:
    keys = live.keys_of(trainer, max_length) | ({} if gpu is None else {"gpu": gpu})
    answer = estimate(*parse(keys))
    sentence = text.verdict(answer)
    if answer.verdict not in {None, Verdict.FITS}:
        found = remedies(answer, catalog.gpus_like(answer.gpu))
        sentence = f"{sentence} {found[0].text}" if found else sentence
    return Preflight(keys=keys, estimate=answer, sentence=sentence)
