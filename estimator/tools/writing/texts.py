"""Values as YAML, JSON and Python write them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from estimator.tools.rules import Value, Values

WIDTH = 100
"""Characters of a line of Python: ours."""
_SAYS_SOMETHING_ELSE = frozenset(
    ["", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n"]
)
"""Words that YAML 1.1 takes for null or a switch: https://yaml.org/type/bool.html."""


def nested(flat: Values, part: str) -> dict[str, Value]:
    """The keys of one part of a config, those with points within one another.

    >>> nested({"args.a.b": 1, "args.a.c": 2, "peft.r": 8}, "args")
    {'a': {'b': 1, 'c': 2}}
    """
    whole: dict[str, Value] = {}
    for key, value in flat.items():
        of, _, name = key.partition(".")
        if of != part:
            continue
        *path, last = name.split(".")
        inner = whole
        for step in path:
            inner = inner.setdefault(step, {})
        inner[last] = value
    return whole


def yaml(values: Values, indent: str = "") -> str:
    """A mapping in YAML that versions 1.1 and 1.2 read alike.

    >>> print(yaml({"save_strategy": "no", "lora": {"r": 8, "targets": ["q_proj"]}, "x": 1e-05}), end="")
    save_strategy: "no"
    lora:
      r: 8
      targets:
        - q_proj
    x: 1.0e-05
    """
    return "".join(f"{line}\n" for line in _yaml(values, indent))


def _yaml(values: Values, indent: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:" + ("" if value else " {}")
            yield from _yaml(value, f"{indent}  ")
        elif isinstance(value, list) and value:
            yield f"{indent}{key}:"
            yield from _items(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {yaml_scalar(value)}"


def _items(values: list[Value], indent: str) -> Iterator[str]:
    for value in values:
        if isinstance(value, Mapping):
            first, *rest = _yaml(value, f"{indent}  ")
            yield f"{indent}- {first.strip()}"
            yield from rest
        else:
            yield f"{indent}- {yaml_scalar(value)}"


def yaml_scalar(value: Value) -> str:
    """One value in YAML.

    >>> [yaml_scalar(value) for value in ("all-linear", "no", "1e5", True, None, 5e-5, [1, "no"])]
    ['all-linear', '"no"', '"1e5"', 'true', 'null', '5.0e-05', '[1, "no"]']
    """
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    if isinstance(value, list):
        return f"[{', '.join(map(yaml_scalar, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = re.fullmatch(r"[A-Za-z_./][\w./@-]*", value) is not None
    return value if is_plain and value.lower() not in _SAYS_SOMETHING_ELSE else json.dumps(value)


def json_text(values: Values) -> str:
    """A mapping in JSON, as DeepSpeed's examples lay it out."""
    return f"{json.dumps(values, indent=2)}\n"


def python_call(name: str, values: Mapping[str, Value | Code], target: str = "") -> str:
    """A call with keyword arguments, one a line.

    >>> print(python_call("LoraConfig", {"r": 8, "dtype": Code("torch.bfloat16")}, "peft_config"))
    peft_config = LoraConfig(
        r=8,
        dtype=torch.bfloat16,
    )
    """
    start = f"{target} = {name}(" if target else f"{name}("
    lines = [f"    {key}={python_value(value)}," for key, value in values.items()]
    return "\n".join([start, *lines, ")"]) if lines else f"{start})"


class Code(str):
    """An expression of Python rather than a text."""

    __slots__ = ()


def python_value(value: Value | Code) -> str:
    """One value in Python.

    >>> python_value({"use_reentrant": True, "names": ["a", "b"]})
    '{"use_reentrant": True, "names": ["a", "b"]}'
    """
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{python_value(key)}: {python_value(part)}" for key, part in value.items()
        )
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(python_value, value))}]"
    return repr(value)
