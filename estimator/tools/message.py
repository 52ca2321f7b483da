"""The files of a run that stand in a message: an issue, a chat, a page of a guide."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from estimator.tools.documents import document_kind
from estimator.tools.parsed import decoded
from estimator.tools.reading.detect import SUFFIXES, kind_of, parsed_python, read_text
from estimator.tools.reading.shell import looks_like_shell

LONGEST_MESSAGE = 200_000
"""Characters of a message that is looked through: ours, twenty times a long issue."""
MOST_TRIES = 40
"""Beginnings and ends of a block that are tried: ours."""
FENCE = re.compile(r"^\s*(?:>\s*)*(?:```+|~~~+)\s*[\w.+-]*\s*$")
"""A line that begins or ends a block of code in Markdown."""
CODE_SPAN = re.compile(r"(`+)([^`]+)\1")
"""Code within a sentence."""
KEY = re.compile(r"""^\s*(?:- )?["']?[\w./-]+["']?\s*:(?:\s|$)""")
ITEM = re.compile(r"^\s*- ")
COMMENT = re.compile(r"^\s*#")
ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?[A-Z_]\w*=\S*\s*$")
NAMED = re.compile(r"[\w./-]*\w\.(?:ya?ml|json|py|sh)\b")
"""The name of a file within a sentence."""
BEFORE = 3
"""Lines before a block in which its name may stand: ours."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Some lines of a message that are a file."""

    text: str
    kind: str
    named: str = ""
    """Its name, where the message says it."""


def files_in(text: str | bytes, name: str) -> dict[str, str]:
    r"""The files of a run in a pasted text, by name; the text itself under ``name`` where it is one file, or none.

    A config is found by its keys, a command by its program, a script by its imports, with or without Markdown's
    fences; what people write around them, logs and tracebacks are left out. ``ValueError`` where it is no text.

    >>> message = "I run `trl sft --config a.yaml` with a.yaml:\n\nmax_length: 512\noutput_dir: out\n\nand it dies"
    >>> files_in(message, "the text")
    {'a.yaml': 'max_length: 512\noutput_dir: out', 'the text': 'trl sft --config a.yaml'}
    """
    plain = decoded(text, name)
    if len(plain) > LONGEST_MESSAGE or _suffix(name) in SUFFIXES:
        return {name: plain}
    if _is_script(plain, name):
        script = _Block(plain, "python")
        return _with_names([script, *islice(_commands_in_docstring(plain), 1)], name)
    lines = plain.splitlines()
    if not any(map(FENCE.match, lines)) and _is_a_file(plain, name):
        return {name: plain}
    return _with_names([*_blocks(lines)], name) or {name: plain}


def _is_script(text: str, name: str) -> bool:
    return kind_of(text, name) == "python" and parsed_python(text) is not None


def _commands_in_docstring(script: str) -> Iterator[_Block]:
    """The commands that start a script, as its docstring shows them."""
    tree = parsed_python(script)
    shown = ast.get_docstring(tree) if tree is not None else None
    for block in _blocks((shown or "").splitlines()):
        if block.kind == "shell":
            yield from (
                _Block(command, "shell")
                for command in re.split(r"(?<!\\)\n", block.text)
                if looks_like_shell(command)
            )


def _with_names(blocks: list[_Block], name: str) -> dict[str, str]:
    """Each block by the name that the message or its only command has for it; commands are one file."""
    commands = "\n".join(block.text for block in blocks if block.kind == "shell")
    open_names = [
        called
        for called in dict.fromkeys(NAMED.findall(commands))
        if called not in {block.named for block in blocks}
    ]
    files: dict[str, str] = {}
    for block in blocks:
        if block.kind == "shell":
            continue
        fitting = [called for called in open_names if SUFFIXES[_suffix(called)] == block.kind]
        called = block.named or (fitting[0] if len(fitting) == 1 else "")
        if called in files or not called:
            called = name if not files and not commands else f"{name}, part {len(files) + 1}"
        files[called] = block.text
    return {**files, name: commands} if commands else files


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _reads(text: str, kind: str) -> bool:
    """Whether a text of this kind says something of a run."""
    if kind_of(text, "") != kind:
        return False
    try:
        read = read_text(text, "")
        return bool(read.commands or read.calls or (read.keys and document_kind(read)))
    except ValueError:
        return False


def _parses(text: str, name: str) -> bool:
    try:
        read_text(text, name)
    except ValueError:
        return kind_of(text, name) in ("json", "notebook")  # whose sentence says what to correct
    return True


def _is_a_file(text: str, name: str) -> bool:
    """Whether the whole text, without fences, is one file, so that nothing is looked for within it."""
    if kind_of(text, name) != "shell":
        return _parses(text, name)
    if text.startswith("#!") or "<<" in text:
        return True
    is_alone = all(block.kind == "shell" for block in _blocks(text.splitlines()))
    return is_alone and _reads(text, "shell")


# --- blocks ---------------------------------------------------------------------------------------


def _blocks(lines: list[str]) -> Iterator[_Block]:
    """The files in these lines; a fence ends what is before it."""
    start = 0
    for end in (*(n for n, line in enumerate(lines) if FENCE.match(line)), len(lines)):
        part = lines[start:end]
        before = [line for line in lines[max(0, start - 1 - BEFORE) : start] if line.strip()]
        yield from _of_segment(part, before)
        start = end + 1


def _of_segment(lines: list[str], before: list[str]) -> Iterator[_Block]:
    """The files in lines without a fence; all of them are one, or some are."""
    whole = "\n".join(lines)
    if not whole.strip():
        return
    kind = kind_of(whole, "")
    if kind != "shell" and _reads(whole, kind):
        yield _Block(whole.strip("\n"), kind, _named(before, kind))
        return
    at = 0
    while at < len(lines):
        kind, end = _beginning(lines, at)
        if not kind:
            yield from _spans(lines[at])
        else:
            text = "\n".join(lines[at:end]).strip("\n")
            yield _Block(text, kind, _named([*before, *lines[:at]], kind))
        at = end


def _beginning(lines: list[str], at: int) -> tuple[str, int]:
    """The kind of the file that begins at a line, if one does, and the line after it."""
    line = lines[at]
    if looks_like_shell(line) or ASSIGNMENT.match(line):
        end = _end_of_commands(lines, at)
        found = "shell" if _reads("\n".join(lines[at:end]), "shell") else ""
        return found, end if found else at + 1
    if line.lstrip().startswith("{") and (end := _end_of_json(lines, at)):
        return "json", end
    if line.startswith(("import ", "from ")) and (end := _end_of_python(lines, at)):
        return "python", end
    if KEY.match(line) and (end := _end_of_yaml(lines, at)):
        return "yaml", end
    return "", at + 1


def _spans(line: str) -> Iterator[_Block]:
    """Commands within a sentence."""
    for match in CODE_SPAN.finditer(line):
        if looks_like_shell(match[2]) and _reads(match[2], "shell"):
            yield _Block(match[2].strip(), "shell")


def _named(lines: Iterable[str], kind: str) -> str:
    """The last name of a file of this kind in the few lines before it."""
    near = [line for line in lines if line.strip()][-BEFORE:]
    names = [name for line in near for name in NAMED.findall(line)]
    fitting = [name for name in names if SUFFIXES[_suffix(name)] == kind]
    return fitting[-1] if fitting else ""


def _end_of_commands(lines: list[str], at: int) -> int:
    """Commands and assignments one after another, each with the lines that continue it."""
    end = at + 1
    while end < len(lines):
        continues = lines[end - 1].rstrip().endswith("\\") or lines[end].lstrip().startswith("--")
        begins = looks_like_shell(lines[end]) or ASSIGNMENT.match(lines[end])
        if not lines[end].strip() or not (continues or begins):
            break
        end += 1
    return end


def _end_of_json(lines: list[str], at: int) -> int:
    """The line after an object that says something of a run; 0 if none begins here."""
    rest = "\n".join(lines[at:])
    try:
        _, length = json.JSONDecoder().raw_decode(rest.lstrip())
    except (ValueError, RecursionError):
        return 0
    text = rest[: len(rest) - len(rest.lstrip()) + length]
    return at + text.count("\n") + 1 if _reads(text, "json") else 0


def _end_of_python(lines: list[str], at: int) -> int:
    """The line after the longest script that begins here and says something of a run; 0 if there is none."""
    end = len(lines)
    for _ in range(MOST_TRIES):
        text = "\n".join(lines[at:end])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(text)
        except (SyntaxError, ValueError, RecursionError) as problem:
            wrong = getattr(problem, "lineno", None) or 1
            end = min(end - 1, at + wrong - 1)
            if end <= at:
                return 0
        else:
            return end if _reads(text, "python") else 0
    return 0


def _end_of_yaml(lines: list[str], at: int) -> int:
    """The line after the longest config that begins here; 0 if there is none."""
    end = at
    while end < len(lines) and _is_yaml_line(lines[end]):
        end += 1
    for _ in range(MOST_TRIES):
        while end > at and not lines[end - 1].strip():
            end -= 1
        if end <= at:
            return 0
        if _reads("\n".join(lines[at:end]), "yaml"):
            return end
        end -= 1
        while end > at and lines[end - 1].strip():  # without its last paragraph
            end -= 1
    return 0


def _is_yaml_line(line: str) -> bool:
    return not line.strip() or any(shape.match(line) for shape in (KEY, ITEM, COMMENT))
