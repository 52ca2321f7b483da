"""JSON, with the line of each key."""

from __future__ import annotations

import json
import re

from estimator.tools.parsed import LONGEST_TEXT, MOST_KEYS, Found, Text, flattened
from estimator.values.json_text import read_object
from estimator.values.refusals import InputError


def read_json(text: str, name: str) -> Text:
    """The keys of a JSON object.

    >>> [(key.name, key.value) for key in read_json('{"zero_optimization": {"stage": 3}}', "ds.json").keys]
    [('zero_optimization.stage', 3)]
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as problem:
        raise InputError(
            f"{name}, line {problem.lineno}: no JSON ({problem.msg}); correct it there."
        ) from None
    except RecursionError:
        pass  # which is said below
    whole = read_object(text, name, longest=LONGEST_TEXT)
    if not whole:
        raise InputError(f"{name} is an empty object; give a config with keys.")
    keys = tuple(flattened(whole, 0))
    if len(keys) > MOST_KEYS:
        raise InputError(f"{name} has more than {MOST_KEYS} keys; give the config alone.")
    return Text(
        name=name,
        kind="json",
        keys=tuple(Found(key.path, key.value, _line(text, key.path)) for key in keys),
        whole=whole,
    )


def _line(text: str, path: tuple[str, ...]) -> int:
    """The line of a key: the first place where each name of its path comes after the one before."""
    at = 0
    for name in path:
        if found := re.compile(re.escape(json.dumps(name)) + r"\s*:").search(text, at):
            at = found.start()
    return text.count("\n", 0, at) + 1
