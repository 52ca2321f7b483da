"""How refusals are declared: each once, with its sentence and its cause.

The code that refuses a setup raises its record, and ``docs/refusals.md`` lists them all (``make docs``). There are
three kinds of error, all ``ValueError``:

- ``InputError``: the input is invalid, such as a word instead of a number, an unknown key or contradictory sizes.
- ``RefusedError`` with a ``Line`` or a ``Report`` as its cause: the libraries themselves fail on this run.
- ``RefusedError`` with ``NOT_MODELLED`` as its cause: the libraries can run it, but it is not modelled here yet.
"""

from __future__ import annotations

import math
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
"""For each cited library: the version that was read, and the package that paths are relative to."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line of a library at which a run stops."""

    library: str
    """A key of ``LIBRARIES``."""
    path: str
    line: int
    text: str
    """Part of that line. ``tests/verify`` checks it against the installed file."""

    def __str__(self) -> str:
        version, _ = LIBRARIES[self.library]
        return f"{self.library} {version}, {self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Report:
    """A URL that explains why a run fails, where no line of an installed file refuses it."""

    url: str

    def __str__(self) -> str:
        return self.url


class Ours(Enum):
    """A cause outside the libraries."""

    NOT_MODELLED = "not modelled yet"
    CONTRADICTION = "the setup contradicts itself"

    def __str__(self) -> str:
        return self.value


NOT_MODELLED, CONTRADICTION = Ours.NOT_MODELLED, Ours.CONTRADICTION

Cause = Line | Report | Ours


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason to refuse a setup.

    >>> Refusal("{optim} is not modelled yet.", NOT_MODELLED)(optim="muon")
    RefusedError('muon is not modelled yet.')
    """

    sentence: str
    """What is wrong and what to change, as a ``str.format`` template."""
    cause: Cause

    def __call__(self, **values: object) -> RefusedError:
        """The error to raise, with values for the template."""
        return RefusedError(self, **values)


class RefusedError(ValueError):
    """The libraries refuse the run, or it is not modelled yet."""

    def __init__(self, refusal: Refusal, /, **values: object) -> None:
        super().__init__(refusal.sentence.format(**values))
        self.refusal = refusal


class InputError(ValueError):
    """The input is invalid; the sentence says what to correct."""


def about(name: str, problem: ValueError) -> RefusedError | InputError:
    """Prefixes a predicate with its subject to make a sentence; a refusal keeps its record.

    >>> about("lora_r", ValueError("must be a whole number."))
    InputError('lora_r must be a whole number.')
    """
    said = f"{name} {problem}"
    if not isinstance(problem, RefusedError):
        return InputError(said)
    problem.args = (said,)
    return problem


SHOWN_CHARACTERS = 40
"""Maximum characters of a wrong value that an error quotes."""


def show(value: object) -> str:
    """A wrong value as an error quotes it: in JSON notation, shortened.

    >>> show("a" * 60), show(True), show(float("nan")), show([1]), show(10**40)
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…'", 'true', 'NaN', 'a list', 'a number of 41 digits')
    """
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case int() if abs(value) >= 10**15:
            digits = int(math.log10(abs(value))) + 1
            return f"a number of {digits} digits"
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case str() if len(value) > SHOWN_CHARACTERS:
            return repr(str(value[: SHOWN_CHARACTERS - 2]))[:-1] + "…'"
        case str():
            return repr(str(value))
        case _:
            return repr(value)[:SHOWN_CHARACTERS]
