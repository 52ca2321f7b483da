"""YAML, as the tools read it (PyYAML: YAML 1.1), with the line of each key; tags that make objects are refused.

Nodes are composed, never constructed: no tag calls anything. ruamel.yaml is imported only where YAML is read
or changed, so that one estimate needs the standard library and no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from estimator.tools.lists import listed
from estimator.tools.parsed import DEEPEST, MOST_KEYS, Found, Text, Unresolved, plain_value
from estimator.values.refusals import InputError, show

Node = Any
"""ruamel.yaml's, which has no types for what it composes."""
PLAIN = "tag:yaml.org,2002:"
VALUES = frozenset(listed("str int float bool null timestamp value merge seq map"))
"""Tags of plain values, all that is read."""
INTERPOLATED = re.compile(r"\$\{[^}]*\}|\{\{.*?\}\}|^\$[A-Za-z_]\w*$")
ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*\w+\s*,\s*([^{}]*?)\s*\}")
"""OmegaConf's variable of the environment with its default, which is taken."""


def read_yaml(text: str, name: str) -> Text:
    r"""The keys of a YAML file.

    >>> [(key.name, key.value, key.line) for key in read_yaml("a: 1\nb:\n  c: yes\n", "x.yaml").keys]
    [('a', 1, 1), ('b.c', True, 3)]
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)
    try:
        root = reader.compose(text)
    except MarkedYAMLError as problem:
        raise InputError(_said(problem, text, name)) from None
    except RecursionError:
        raise InputError(f"{name} is nested more than {DEEPEST} deep; write it plainly.") from None
    except (YAMLError, ValueError) as problem:
        raise InputError(f"{name} is no YAML: {str(problem).splitlines()[0]}.") from None
    if root is None:
        raise InputError(f"{name} has nothing but comments; give a config with keys.")
    if root.id == "mapping" and not root.value:
        raise InputError(f"{name} is an empty mapping; give a config with keys.")
    if root.id != "mapping":
        raise InputError(f"{name} must be keys with values, such as max_length: 2048; it is not.")
    walk = _Walk(name)
    keys = tuple(walk.pairs(root, ()))
    return Text(name=name, kind="yaml", keys=_resolve_own(keys))


def _said(problem: Any, text: str, name: str) -> str:
    mark = problem.problem_mark or problem.context_mark
    line = mark.line + 1 if mark else 1
    lines = text.splitlines()
    here = lines[min(line, len(lines)) - 1] if lines else ""
    if "\t" in (here[: len(here) - len(here.lstrip())]):
        return f"{name}, line {line}: YAML takes no tabs for indentation; write blanks instead."
    what = (problem.problem or problem.context or "it is damaged").strip()
    key = f" at {show(here.strip())}" if here.strip() else ""
    return f"{name}, line {line}: no YAML{key} ({what}); correct it there."


class _Walk:
    """Nodes to keys; bounds what anchors unfold to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen = 0
        self.within: list[Node] = []
        """The mappings and lists around the node that is read."""

    def pairs(self, node: Node, path: tuple[str, ...]) -> Iterator[Found]:
        """The keys of a mapping."""
        merged: dict[str, list[Found]] = {}
        for key, value in self._entries(node):
            word = str(self.scalar(key)) if key.id == "scalar" else "?"
            line = key.start_mark.line + 1
            merged[word] = list(self.below(value, (*path, word), line))
        for found in merged.values():
            yield from found

    def _entries(self, node: Node) -> Iterator[tuple[Node, Node]]:
        """A mapping's own entries after those that it merges (``<<``), so that its own win."""
        with self._inside(node):
            own = []
            for key, value in node.value:
                if key.tag in (f"{PLAIN}merge",) or (key.id == "scalar" and key.value == "<<"):
                    for one in value.value if value.id == "sequence" else [value]:
                        if one.id == "mapping":
                            yield from self._entries(one)
                else:
                    own.append((key, value))
            yield from own

    def below(self, node: Node, path: tuple[str, ...], line: int) -> Iterator[Found]:
        """The keys of a value, or the value itself."""
        self._count(node)
        if node.id == "mapping" and any(key.id == "mapping" for key, _ in node.value):
            templates = [key for key, _ in node.value if key.id == "mapping"]
            inside = (str(inner.value) for key in templates for inner, _ in key.value)
            yield Found(path, Unresolved(f"{{{{ {', '.join(inside)} }}}}"), line)  # of a template
        elif node.id == "mapping" and node.value:
            yield from self.pairs(node, path)
        elif node.id == "sequence" and any(inner.id == "mapping" for inner in node.value):
            with self._inside(node):
                for number, inner in enumerate(node.value):
                    yield from self.below(inner, (*path, str(number)), inner.start_mark.line + 1)
        else:
            yield Found(path, self.value(node), line)

    def value(self, node: Node) -> Any:
        """A scalar, or a list of them."""
        self._count(node)
        if node.id == "sequence":
            with self._inside(node):
                return [self.value(inner) for inner in node.value]
        if node.id == "mapping":
            return {}
        return self.scalar(node)

    def scalar(self, node: Node) -> Any:
        """A number, a truth, nothing, or a text."""
        tag, text = str(node.tag), str(node.value)
        match tag.removeprefix(PLAIN):
            case "null":
                return None
            case "bool" if text.lower() in {"y", "n"}:  # which PyYAML leaves as they are
                return text
            case "bool":
                return text.lower() in {"true", "yes", "on"}
            case "int":
                return _whole(text)
            case "float":
                return _number(text)
            case _:
                return text if not INTERPOLATED.search(text) else Unresolved(text)

    def _count(self, node: Node) -> None:
        self.seen += 1
        tag = str(node.tag)
        if tag.removeprefix(PLAIN) not in VALUES:
            raise InputError(
                f"{self._at(node)}: the tag {show(tag.replace(PLAIN, '!!'))} makes an object, and nothing of a "
                "file is made here; write the plain value."
            )
        if self.seen > MOST_KEYS * 4:
            raise InputError(
                f"{self._at(node)}: with what its anchors stand for, it has more than {MOST_KEYS:,} keys; give the "
                "config alone."
            )

    @contextmanager
    def _inside(self, node: Node) -> Iterator[None]:
        """Around what is read of a mapping or a list; refuses one that an anchor puts into itself."""
        if any(outer is node for outer in self.within):
            raise InputError(
                f"{self._at(node)}: it contains itself by its anchor, without end; write it plainly."
            )
        if len(self.within) >= DEEPEST:
            raise InputError(
                f"{self._at(node)}: it is nested more than {DEEPEST} deep; write it plainly."
            )
        self.within.append(node)
        try:
            yield
        finally:
            self.within.pop()

    def _at(self, node: Node) -> str:
        return f"{self.name}, line {node.start_mark.line + 1}"


def _whole(text: str) -> int | str:
    plain = text.replace("_", "").lower()
    try:
        if re.fullmatch(r"[-+]?0[0-7]+", plain):
            return int(plain, 8)
        return int(plain, 0) if len(plain) <= 40 else text
    except ValueError:
        return text


def _number(text: str) -> float | str:
    try:
        return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        return text


def _resolve_own(keys: tuple[Found, ...]) -> tuple[Found, ...]:
    """Interpolations of the file's own keys, as OmegaConf has them (torchtune): ``${output_dir}/logs``."""
    known = {key.name: key.value for key in keys}

    def resolved(value: Any) -> Any:
        if not isinstance(value, Unresolved):
            return value
        if default := ENVIRONMENT.fullmatch(value.text):
            return plain_value(default[1].strip("\"'")) if default[1] else None
        named = re.fullmatch(r"\$\{([\w.]+)\}", value.text)
        if named and not isinstance(known.get(named[1], value), Unresolved):
            return known[named[1]]

        def inner(reference: re.Match[str]) -> str:
            there = known.get(reference[1])
            return str(there) if isinstance(there, str | int | float) else reference[0]

        text = re.sub(r"\$\{([\w.]+)\}", inner, value.text)
        return Unresolved(text) if INTERPOLATED.search(text) else text

    return tuple(Found(key.path, resolved(key.value), key.line) for key in keys)
