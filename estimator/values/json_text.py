"""Parses untrusted JSON with limits on bytes, digits and depth. Each error is one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping

from estimator.values.refusals import InputError, show

LONGEST_TEXT = 1_000_000
"""Maximum bytes of a text. Our choice: a hundred times the longest config.json of a dense model on the Hub."""
LONGEST_NUMBER = 30
"""Maximum digits of an integer. Our choice. A longer one is read as a float, which counts reject."""
DEEPEST = 64
"""Maximum nesting depth of objects and lists. Our choice: ten times that of a config.json."""


def read_object(
    text: str | bytes, subject: str, whole: str = "one JSON object", longest: int = LONGEST_TEXT
) -> dict[str, object]:
    """Parses a JSON object. ``ValueError`` holds one sentence about ``subject``, which should be ``whole``.

    ``longest``: maximum bytes.

    NaN and Infinity are accepted, as in Python: some configs on the Hub use them in keys that no formula reads.

    >>> read_object('{"a": 1}', "The line")
    {'a': 1}
    >>> read_object("[1]", "The line")
    Traceback (most recent call last):
    ...
    estimator.values.refusals.InputError: The line must be one JSON object, not a list.
    """
    text = _decoded(text, subject, longest)
    if not text.strip():
        raise InputError(f"{subject} is empty; write {whole} there.")
    try:
        value: object = json.loads(text, object_pairs_hook=_once, parse_int=_whole)
    except RecursionError:
        raise InputError(_too_deep(subject, whole)) from None
    except json.JSONDecodeError as problem:
        raise InputError(
            f"{subject} is not valid JSON ({problem.msg} at character {problem.pos + 1}); correct it there."
        ) from None
    if not isinstance(value, dict):
        raise InputError(f"{subject} must be {whole}, not {show(value)}.")
    if _depth(value) > DEEPEST:
        raise InputError(_too_deep(subject, whole))
    return value


def _decoded(text: str | bytes, subject: str, longest: int) -> str:
    if len(text) > longest:
        raise InputError(f"{subject} is longer than {longest} bytes; shorten it.")
    if isinstance(text, str):
        return text.removeprefix("\N{BYTE ORDER MARK}")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InputError(
            f"{subject} is not UTF-8 at byte {problem.start + 1}; save it as UTF-8."
        ) from None


def _too_deep(subject: str, whole: str) -> str:
    return f"{subject} is nested too deeply; {whole} has at most {DEEPEST} levels."


def _depth(value: object) -> int:
    """Levels of objects and lists."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, Mapping | list)]:
        depth += 1
        level = [
            inner for one in level for inner in (one.values() if isinstance(one, Mapping) else one)
        ]
    return depth


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in pairs:
        if name in values:
            raise InputError(f"{show(name)} appears twice in one object; give it once.")
        values[name] = value
    return values


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= LONGEST_NUMBER else float(digits)
