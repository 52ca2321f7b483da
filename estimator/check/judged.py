"""One checked run and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from estimator.values.results import DOES_NOT_FIT, FITS, NOT_READ, Estimate, Remedy
from estimator.values.specs import Verdict

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
