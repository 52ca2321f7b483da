"""One checked run and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from estimator.answer.estimate import estimate
from estimator.contract.setups import NONE_KNOWN, gpu_keys, parse
from estimator.search.remedies import cheapest_change
from estimator.values.refusals import InputError
from estimator.values.results import DOES_NOT_FIT, FITS, NOT_READ, Estimate, Remedy
from estimator.values.specs import Model, Verdict

OF_NO_RUN = ("is no config that is known here", "must be keys with values", "trains nothing")
"""Problems that readers report for a valid file that is not a config: rows of data, another program's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One run as read: its files and their contents."""

    files: tuple[str, ...]
    keys: Mapping[str, object]
    """An object of the contract."""
    problems: tuple[str, ...] = ()
    """Why the files could not be read."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """Keys that decide memory and that the files do not tell, each with one sentence."""
    guesses: tuple[str, ...] = ()
    """What the files leave open, and how it is taken, one sentence each; said with the verdict."""
    settled_by: Mapping[str, str] = field(default_factory=dict)
    """Of a guess, the key whose value makes it needless."""
    notes: tuple[str, ...] = ()
    """Warnings about the files: what is not modelled or not understood."""
    texts: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """A tool's files as read, so that a change can be shown as a diff."""
    tool: str = ""
    """The tool and version whose defaults fill the missing keys; empty for the contract's."""

    @property
    def is_run(self) -> bool:
        """Whether the files describe a run or are broken; in a folder, all other files are skipped."""
        said = " ".join(self.problems)
        return "model" in self.keys or bool(
            said and not any(problem in said for problem in OF_NO_RUN)
        )

    @property
    def name(self) -> str:
        """The file names as shown in a table row."""
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
        """The exit status of this run alone."""
        if self.estimate is None:
            return NOT_READ
        return FITS if self.estimate.verdict is Verdict.FITS else DOES_NOT_FIT


def judge(
    asked: Asked, changed: Mapping[str, object], known: Mapping[str, Model] = NONE_KNOWN
) -> Judged:
    """The verdict on one run, with keys given in addition to its files (bytes and seconds are in the estimate).

    >>> gpt2 = Asked(files=("a.json",), keys={"model": "openai-community/gpt2"})
    >>> judge(gpt2, {"gpu": "L4"}).status, judge(gpt2, {"gpu": "L4", "max_length": 9999}).status
    (0, 2)
    """
    if asked.problems:
        return Judged(asked=asked, problem=" ".join(asked.problems))
    gpu = changed.get("gpu", asked.keys.get("gpu"))
    answered = {*changed, *(gpu_keys(gpu) if isinstance(gpu, str) else ())}
    open_still = tuple(
        guess for guess in asked.guesses if asked.settled_by.get(guess) not in answered
    )
    asked = replace(asked, guesses=open_still)
    if said := {key: sentence for key, sentence in asked.asked.items() if key not in answered}:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in said)
        return Judged(
            asked=asked, problem=f"{' '.join(dict.fromkeys(said.values()))} Or here: {flags}."
        )
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
    """What the command's flags can do about it; empty if nothing."""
    if "is not in the catalogue" in problem and problem.startswith("model "):
        return " Or ask the Hub for it: --hub."
    if "num_gpus is 1" in problem:
        return ' Or say how many there are: --gpu "8x A100-SXM4-80GB".'
    return ""
