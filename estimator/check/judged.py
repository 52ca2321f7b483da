"""One run that was asked about, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from estimator.answer.estimate import estimate
from estimator.contract.setups import NONE_KNOWN, parse
from estimator.search.remedies import Remedy, cheapest_change
from estimator.values.refusals import InputError
from estimator.values.results import Estimate
from estimator.values.specs import Model, Verdict

FITS, DOES_NOT_FIT, NOT_READ = 0, 1, 2
"""What a command exits with: for several runs the highest of theirs. Tight counts as not fitting."""


OF_NO_RUN = ("is no config that is known here", "must be keys with values")
"""What readers say of a file that is sound and no config: rows of data, another program's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One run as it was read: the files that it comes from, and what they say."""

    files: tuple[str, ...]
    keys: Mapping[str, object]
    """An object of the contract."""
    problems: tuple[str, ...] = ()
    """Why it could not be read."""
    notes: tuple[str, ...] = ()
    """What a reader of the files must know: what is not modelled, what is not understood."""
    texts: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """The files themselves, where a tool's were read: a change can be shown in them."""
    tool: str = ""
    """Whose defaults the missing keys have, with its version; empty: the contract's."""

    @property
    def is_run(self) -> bool:
        """Whether the files say what is trained, or are broken: of a folder all others are left out."""
        said = " ".join(self.problems)
        return "model" in self.keys or bool(said and not any(it in said for it in OF_NO_RUN))

    @property
    def name(self) -> str:
        """The files, as a row of a table names them."""
        return " + ".join(self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run, its estimate, and the cheapest change if it does not fit."""

    asked: Asked
    estimate: Estimate | None = None
    change: Remedy | None = None
    problem: str = ""
    """Why there is no estimate."""

    @property
    def status(self) -> int:
        """What a command exits with for this run alone."""
        if self.estimate is None:
            return NOT_READ
        return FITS if self.estimate.verdict is Verdict.FITS else DOES_NOT_FIT


def judge(
    asked: Asked, changed: Mapping[str, object], known: Mapping[str, Model] = NONE_KNOWN
) -> Judged:
    """The verdict on one run, with keys that were given beside its files (bytes and seconds are in the estimate).

    >>> gpt2 = Asked(files=("a.json",), keys={"model": "openai-community/gpt2"})
    >>> judge(gpt2, {"gpu": "L4"}).status, judge(gpt2, {"gpu": "L4", "max_length": 9999}).status
    (0, 2)
    """
    if asked.problems:
        return Judged(asked=asked, problem=" ".join(asked.problems))
    try:
        keys = {**asked.keys, **changed}
        if keys.get("gpu") is None:
            raise InputError('gpu is missing; name the card, such as --gpu "RTX 4090".')
        answer = estimate(*parse(keys, known))
    except ValueError as problem:
        return Judged(asked=asked, problem=f"{problem}{_hint(str(problem))}")
    change = None if answer.verdict is Verdict.FITS else cheapest_change(answer)
    return Judged(asked=asked, estimate=answer, change=change)


def _hint(problem: str) -> str:
    """What the command can do about it; empty: nothing."""
    if "is not in the catalogue" in problem and problem.startswith("model "):
        return " Or ask the Hub for it: --hub."
    if "num_gpus is 1" in problem:
        return ' Or say how many there are: --gpu "8x A100-SXM4-80GB".'
    return ""
