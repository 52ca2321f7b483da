"""JSON text of untrusted origin: bounded in bytes, digits and depth; what is wrong with it is one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping

from estimator.values.kinds import show
from estimator.values.refusals import InputError

LONGEST_TEXT = 1_000_000
"""Bytes that a text may have: ours, a hundred times the longest config.json of the Hub's dense models."""
LONGEST_NUMBER = 30
"""Digits that a whole number may have: ours; a longer one is read as a float, which no count may be."""
DEEPEST = 64
"""Objects and lists within one another: ours, ten times what a config.json has."""


def read_object(
    text: str | bytes, subject: str, whole: str = "one JSON object", longest: int = LONGEST_TEXT
) -> dict[str, object]:
    """The JSON object that a text is; ``ValueError`` is one sentence about ``subject``, which should be ``whole``.

    ``longest``: bytes that it may have.

    NaN and Infinity are read as Python reads them: the Hub's configs have them where nothing is counted.

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
            raise InputError(f"{show(name)} stands twice in one object; give it once.")
        values[name] = value
    return values


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= LONGEST_NUMBER else float(digits)
