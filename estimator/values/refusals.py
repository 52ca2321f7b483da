"""Why a setup is refused: each refusal is declared once, with its sentence and its cause.

The code that refuses raises the record, and ``docs/refusals.md`` lists every record (``make docs``), so that no refusal
is without a cause. Three kinds of error, all ``ValueError``:

- ``InputError``: what was given is no question. A word where a number belongs, an unknown key, sizes that contradict
  each other. Whoever wrote it can correct it.
- ``RefusedError`` whose cause is a ``Line`` or a ``Report``: the libraries stop at this run.
- ``RefusedError`` whose cause is ``NOT_MODELLED``: the libraries run it, and no formula here knows it yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

LIBRARIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "accelerate": ("1.15.0", "accelerate"),
        "bitsandbytes": ("0.50.2", "bitsandbytes"),
        "deepspeed": ("0.19.6", "deepspeed"),
        "liger-kernel": ("0.8.5", "liger_kernel"),
        "peft": ("0.21.2", "peft"),
        "torch": ("2.13.0", "torch"),
        "transformers": ("5.23.0", "transformers"),
        "trl": ("1.16.0", "trl"),
    }
)
"""The libraries that refuse: the version that was read, and the package that paths are relative to."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line of a library at which a run stops."""

    library: str
    """A key of ``LIBRARIES``."""
    path: str
    line: int
    text: str
    """What stands there, in part. ``tests/verify`` opens the file and looks."""

    def __str__(self) -> str:
        version, _ = LIBRARIES[self.library]
        return f"{self.library} {version}, {self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Report:
    """An address that says why a run stops where no line of an installed file refuses it."""

    url: str

    def __str__(self) -> str:
        return self.url


class Ours(Enum):
    """A cause that lies in no library."""

    NOT_MODELLED = "not modelled yet"
    CONTRADICTION = "the setup contradicts itself"

    def __str__(self) -> str:
        return self.value


NOT_MODELLED, CONTRADICTION = Ours.NOT_MODELLED, Ours.CONTRADICTION

Cause = Line | Report | Ours


@dataclass(frozen=True, slots=True)
class Refusal:
    """One way in which a setup is refused.

    >>> Refusal("{optim} is not modelled yet.", NOT_MODELLED)(optim="muon")
    RefusedError('muon is not modelled yet.')
    """

    sentence: str
    """What is wrong and what to change, with values in braces as ``str.format`` reads them."""
    cause: Cause

    def __call__(self, **values: object) -> RefusedError:
        """The error to raise, with the values that the sentence names."""
        return RefusedError(self, **values)


class RefusedError(ValueError):
    """A run that the libraries refuse, or that is not modelled yet."""

    def __init__(self, refusal: Refusal, /, **values: object) -> None:
        super().__init__(refusal.sentence.format(**values))
        self.refusal = refusal


class InputError(ValueError):
    """What was given is no question: the sentence says what to correct."""


def about(name: str, problem: ValueError) -> RefusedError | InputError:
    """A problem that is a predicate, as the sentence that begins with its subject; a refusal keeps its record.

    >>> about("lora_r", ValueError("must be a whole number."))
    InputError('lora_r must be a whole number.')
    """
    said = f"{name} {problem}"
    if not isinstance(problem, RefusedError):
        return InputError(said)
    problem.args = (said,)
    return problem
