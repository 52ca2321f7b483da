"""Where a value stands in a file, and where a new key goes: changes of characters that leave all others as they are.

Each function returns the edit that sets one key. ``InputError`` says what must be changed by hand.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from estimator.tools.parsed import Call
from estimator.tools.rules import Value
from estimator.tools.writing.texts import python_value, yaml, yaml_scalar
from estimator.tools.writing.verl import hydra_value, override
from estimator.values.refusals import InputError

Node = Any
"""ruamel.yaml's, which has no types for what it composes."""


class Edit(NamedTuple):
    """Characters of a text to replace; an empty span is a place to insert at."""

    start: int
    end: int
    text: str


def applied(text: str, edits: Sequence[Edit]) -> str:
    r"""A text with its edits, the last first, so that places stay true.

    >>> applied("a: 1\nb: 2\n", [Edit(3, 4, "7"), Edit(10, 10, "c: 3\n")])
    'a: 7\nb: 2\nc: 3\n'
    """
    for edit in sorted(reversed(edits), key=attrgetter("start"), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


# --- YAML -----------------------------------------------------------------------------------------


def yaml_edit(text: str, path: Sequence[str], value: Value) -> Edit:
    r"""Set a key of a YAML file.

    >>> applied(text := "a: 1 # why\nb:\n  c: x\n", [yaml_edit(text, ["a"], 2)])
    'a: 2 # why\nb:\n  c: x\n'
    >>> applied(text, [yaml_edit(text, ["b", "d"], "no")])
    'a: 1 # why\nb:\n  c: x\n  d: "no"\n'
    """
    from ruamel.yaml import YAML  # noqa: PLC0415 — only where YAML is changed

    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)
    node = reader.compose(text)
    for depth, name in enumerate(path):
        found = _of_mapping(node, name)
        if found is None:
            return _yaml_insert(text, node, path[depth:], value)
        node = found
    start, end = node.start_mark.index, node.end_mark.index
    old = text[start:end]
    if node.id != "scalar" and not old.startswith(("[", "{")):
        return Edit(start, start + len(old.rstrip()), yaml_scalar(value))
    return Edit(start, end, f" {yaml_scalar(value)}" if start == end else yaml_scalar(value))


def _of_mapping(node: Node, name: str) -> Node | None:
    if node.id != "mapping":
        return None
    return next((value for key, value in node.value if key.value == name), None)


def _yaml_insert(text: str, node: Node, path: Sequence[str], value: Value) -> Edit:
    """After the last key of a mapping, at its own indentation."""
    if node.id != "mapping" or node.flow_style or not node.value:
        raise InputError(f"{'.'.join(path)} has no place to stand; write it by hand.")
    key, last = node.value[-1]
    indent, whole = " " * key.start_mark.column, _within(path, value)
    at = last.start_mark.index + len(text[last.start_mark.index : last.end_mark.index].rstrip())
    stop = text.find("\n", at)
    if stop < 0:
        return Edit(len(text), len(text), f"\n{yaml(whole, indent).rstrip()}")
    return Edit(stop + 1, stop + 1, yaml(whole, indent))


def _within(path: Sequence[str], value: Value) -> Value:
    """A value within mappings, one for each name of a path."""
    for name in reversed(path):
        value = {name: value}
    return value


# --- JSON -----------------------------------------------------------------------------------------


def json_edit(text: str, path: Sequence[str], value: Value) -> Edit:
    """Set a key of a JSON file.

    >>> text = '{"zero_optimization": {"stage": 2}}'
    >>> applied(text, [json_edit(text, ["zero_optimization", "stage"], 3)])
    '{"zero_optimization": {"stage": 3}}'
    >>> applied(text, [json_edit(text, ["zero_optimization", "overlap_comm"], True)])
    '{"zero_optimization": {"stage": 2, "overlap_comm": true}}'
    """
    whole = f"({text})"  # an expression of Python's, but for true, false and null, which are names there
    found, lacks = _below(ast.parse(whole, mode="eval").body, path)
    start, end = (at - 1 for at in _span(whole, found))
    if not lacks:
        return Edit(start, end, json.dumps(value))
    return _member(text, start, end, lacks[0], json.dumps(_within(lacks[1:], value)))


def _below(node: ast.expr, path: Sequence[str]) -> tuple[ast.expr, Sequence[str]]:
    """The innermost value of a path that a literal has, and the names that it lacks."""
    for depth, name in enumerate(path):
        pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        inner = [
            value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name
        ]
        if not inner:
            return node, path[depth:]
        node = inner[-1]
    return node, ()


def _member(text: str, start: int, end: int, name: str, value: str) -> Edit:
    """A new last key of the mapping between two places, laid out as its others are."""
    member, body = f"{json.dumps(name)}: {value}", text[start + 1 : end - 1]
    if not body.strip():
        return Edit(start + 1, start + 1, member)
    at, lines = start + 1 + len(body.rstrip()), re.match(r"\s*\n([ \t]*)", body)
    comma = "" if body.rstrip().endswith(",") else ","
    return Edit(at, at, f"{comma}\n{lines[1]}{member}" if lines else f"{comma} {member}")


# --- Python ---------------------------------------------------------------------------------------


def python_edit(text: str, call: Call, path: Sequence[str], value: Value) -> Edit:
    r"""Set an argument of a call: its constant, the constant that its name stands for, or a new argument.

    >>> text = "n = 8  # rows\nargs = SFTConfig(max_length=512, per_device_train_batch_size=n)\n"
    >>> call = Call(name="SFTConfig", line=2)
    >>> applied(text, [python_edit(text, call, ["per_device_train_batch_size"], 2)])
    'n = 2  # rows\nargs = SFTConfig(max_length=512, per_device_train_batch_size=n)\n'
    >>> applied(text, [python_edit(text, call, ["packing"], True)])
    'n = 8  # rows\nargs = SFTConfig(max_length=512, per_device_train_batch_size=n, packing=True)\n'
    >>> text = "args = SFTConfig(gradient_checkpointing_kwargs={\n    'use_reentrant': True,\n})\n"
    >>> call = Call(name="SFTConfig", line=1)
    >>> print(applied(text, [python_edit(text, call, ["gradient_checkpointing_kwargs", "offload"], True)]), end="")
    args = SFTConfig(gradient_checkpointing_kwargs={
        'use_reentrant': True,
        "offload": True
    })
    """
    tree = ast.parse(text)
    node = next((part for part in ast.walk(tree) if _is_call(part, call)), None)
    if not isinstance(node, ast.Call):
        raise InputError(f"{call.name} of line {call.line} is not found again; change it by hand.")
    found = next((keyword.value for keyword in node.keywords if keyword.arg == path[0]), None)
    if found is None:
        return _python_insert(text, node, path, value)
    found, lacks = _below(found, path[1:])
    if lacks and not isinstance(found, ast.Dict):
        raise InputError(f"{path[0]} is made elsewhere; change {lacks[0]} of it by hand.")
    if lacks:
        return _member(text, *_span(text, found), lacks[0], python_value(_within(lacks[1:], value)))
    return Edit(*_span(text, _constant(tree, found)), _like(text, found, value))


def _like(text: str, old: ast.expr, value: Value) -> str:
    """The new value as the old one was written: torch's dtypes stay torch's."""
    start, end = _span(text, old)
    if text[start:end].startswith("torch.") and isinstance(value, str):
        return f"torch.{value}"
    return python_value(value)


def _constant(tree: ast.AST, node: ast.expr) -> ast.expr:
    """The constant of a name that is assigned once; else what stands in the call."""
    if not isinstance(node, ast.Name):
        return node
    given = [
        assignment.value
        for assignment in ast.walk(tree)
        if isinstance(assignment, ast.Assign)
        and len(assignment.targets) == 1
        and isinstance(assignment.targets[0], ast.Name)
        and assignment.targets[0].id == node.id
    ]
    return given[0] if len(given) == 1 and isinstance(given[0], ast.Constant) else node


def _is_call(node: ast.AST, call: Call) -> bool:
    return (
        isinstance(node, ast.Call)
        and node.lineno == call.line
        and ast.unparse(node.func).rpartition(".")[2] == call.name
    )


def _python_insert(text: str, node: ast.Call, path: Sequence[str], value: Value) -> Edit:
    argument = f"{path[0]}={python_value(_within(path[1:], value))}"
    others = [*node.args, *(keyword.value for keyword in node.keywords)]
    if not others:
        end = _span(text, node)[1]
        return Edit(end - 1, end - 1, argument)
    last = max(others, key=lambda given: (given.end_lineno or 0, given.end_col_offset or 0))
    at = _span(text, last)[1]
    first = min(map(attrgetter("lineno"), (*node.args, *node.keywords)))
    if first == node.lineno:
        return Edit(at, at, f", {argument}")
    line = text.splitlines()[first - 1]
    return Edit(at, at, f",\n{line[: len(line) - len(line.lstrip())]}{argument}")


def _span(text: str, node: ast.expr) -> tuple[int, int]:
    """Characters of a node, of which ast counts columns in bytes."""
    lines = text.splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None

    def place(line: int, column: int) -> int:
        before = sum(map(len, lines[: line - 1]))
        return before + len(lines[line - 1].encode()[:column].decode())

    return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)


# --- commands -------------------------------------------------------------------------------------


def shell_edit(text: str, path: Sequence[str], value: Value, beside: Sequence[str]) -> Edit:
    """Set a flag or a Hydra override of a command; a new one comes after the last of those ``beside`` it.

    >>> text = "trl sft --max_length 512 --bf16 true"
    >>> applied(text, [shell_edit(text, ["max_length"], 256, ["bf16"])])
    'trl sft --max_length 256 --bf16 true'
    >>> applied(text, [shell_edit(text, ["lora_r"], 8, ["max_length", "bf16"])])
    'trl sft --max_length 512 --bf16 true --lora_r 8'
    >>> text = "python3 -m verl.trainer.main_ppo trainer.nnodes=2"
    >>> applied(text, [shell_edit(text, ["trainer", "nnodes"], 1, [])])
    'python3 -m verl.trainer.main_ppo trainer.nnodes=1'
    """
    name = ".".join(path)
    word = " ".join(map(str, value)) if isinstance(value, list) else yaml_scalar(value).strip('"')
    found = _flag(text, name)
    if found is not None and found["value"] is not None:
        return Edit(*found.span("value"), word)
    if found is not None:
        return Edit(found.end(), found.end(), f" {word}")
    if (own := _override(text, name)) is not None:
        if own["whole"] is not None:
            return Edit(*own.span("whole"), hydra_value(value))
        return Edit(*own.span("value"), shlex.quote(hydra_value(value)))
    for spelled, argument in ((_flag, f"--{name} {word}"), (_override, override(name, value))):
        if ends := [near.end() for other in beside if (near := spelled(text, other)) is not None]:
            return Edit(max(ends), max(ends), f" {argument}")
    raise InputError(f"--{name} has no command to stand in; write it by hand.")


def _override(text: str, name: str) -> re.Match[str] | None:
    """``name=value``, or all of it between quotes; without a point a name may be a variable's."""
    if "." not in name:
        return None
    spelled = rf"\+{{0,2}}{re.escape(name)}="
    value = r"\"[^\"\n]*\"|'[^'\n]*'|[^\s\\;&|'\"()]+"
    return re.search(
        rf"(?<![^\s(])(?:'{spelled}(?P<whole>[^'\n]*)'|{spelled}(?P<value>{value}))(?=[\s)]|$)",
        text,
    )


def _flag(text: str, name: str) -> re.Match[str] | None:
    spelled = re.escape(name).replace("_", "[-_]")
    return re.search(rf"--{spelled}(?:(?:=|[ \t]+)(?P<value>(?!-)[^\s\\;&|]+))?(?![\w-])", text)
