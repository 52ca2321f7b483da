"""What a reader makes of a text: keys with their values and lines, before any table says what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from estimator.values.refusals import InputError

LONGEST_TEXT = 4_000_000
"""Bytes of a file: ours, ten times the longest example that any of the tools ships (a notebook)."""
MOST_KEYS = 5_000
"""Keys of a file, and values that its anchors unfold to: ours, fifty times the longest example's."""
DEEPEST = 40
"""Mappings and lists within one another: ours."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that only a run knows."""

    text: str
    """As it is written."""


@dataclass(frozen=True, slots=True)
class FlagValue(Unresolved):
    """A value that a script takes from one of its flags."""

    flag: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """One key of a text: its path, its value, and its line."""

    path: tuple[str, ...]
    value: Any
    line: int

    @property
    def name(self) -> str:
        """The path with points."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a script, or one command: what is called, and its keys."""

    name: str
    """The last part of what is called: ``SFTConfig``, ``from_pretrained``."""
    of: str = ""
    """What stands before it: ``AutoModelForCausalLM``."""
    found: tuple[Found, ...] = ()
    line: int = 0
    target: str = ""
    """The name that it is assigned to."""
    condition: str = ""
    """A test that only the run knows, and without which it is not called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command line of training."""

    launcher: str = ""
    """accelerate, torchrun, deepspeed, or empty."""
    launch: tuple[Found, ...] = ()
    """The launcher's own flags."""
    tool: str = ""
    """trl, axolotl, llamafactory, ms_swift, torchtune, verl, or empty for a script."""
    words: tuple[str, ...] = ()
    """What stands without a dash: ``sft``, a config's path, a script's."""
    flags: tuple[Found, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A file that was read."""

    name: str
    kind: str
    """yaml, json, shell or python."""
    keys: tuple[Found, ...] = ()
    """Of YAML and JSON."""
    calls: tuple[Call, ...] = ()
    """Of Python."""
    commands: tuple[Command, ...] = ()
    """Of a shell."""
    guesses: tuple[str, ...] = ()
    """Of Python: what is taken of the card that it asks about."""
    options: frozenset[str] = frozenset()
    """Of Python: the flags that it reads itself."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of Python: what it sets in ``os.environ``."""
    called: frozenset[str] = frozenset()
    """Of Python: the last names of all that it calls."""
    whole: Mapping[str, Any] | None = None
    """Of JSON: the object itself."""


def decoded(text: str | bytes, name: str) -> str:
    """The text of a file; ``ValueError`` says why it is none.

    >>> decoded(bytes([0, 1]), "model.bin")
    Traceback (most recent call last):
    ...
    estimator.values.refusals.InputError: model.bin is no text; give the YAML, JSON, script or command itself.
    """
    if len(text) > LONGEST_TEXT:
        raise InputError(
            f"{name} is longer than {LONGEST_TEXT // 1_000_000} MB, which no config is; give the config alone."
        )
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InputError(_no_text(name)) from None
    if "\0" in text:
        raise InputError(_no_text(name))
    if not text.strip():
        raise InputError(f"{name} is empty; give the YAML, JSON, script or command itself.")
    return text.replace("\r\n", "\n").removeprefix("\N{BYTE ORDER MARK}")


def _no_text(name: str) -> str:
    return f"{name} is no text; give the YAML, JSON, script or command itself."


def plain_value(text: str) -> Any:
    """What a text means: a number, a truth, nothing, or the text.

    >>> plain_value("512"), plain_value("2e-5"), plain_value("True"), plain_value("a/b")
    (512, 2e-05, True, 'a/b')
    """
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if text in {"None", "null"}:
        return None
    if re.fullmatch(r"[-+]?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]{1,3})?", text):
        return float(text)
    return text


def flattened(value: Any, line: int, path: tuple[str, ...] = ()) -> Iterator[Found]:
    """The keys of a value that Python's literals can say, each with the same line.

    >>> [key.name for key in flattened({"a": {"b": 1}, "c": [{"d": 2}]}, 1)]
    ['a.b', 'c.0.d']
    """
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flattened(inner, line, (*path, str(key)))
    elif (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and any(isinstance(part, Mapping) for part in value)
    ):
        for number, inner in enumerate(value):
            yield from flattened(inner, line, (*path, str(number)))
    else:
        yield Found(path, value, line)
