"""The files of a run that stand in a message: an issue, a chat, a page of a guide."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from estimator.tools.documents import document_kind, marks
from estimator.tools.parsed import decoded
from estimator.tools.reading.detect import SUFFIXES, kind_of, parsed_python, read_text
from estimator.tools.reading.shell import looks_like_shell

LONGEST_MESSAGE = 200_000
"""Characters of a message that is looked through: ours, twenty times a long issue."""
MOST_READ = 5_000
"""Lines of a message that are read to see what they are, with those read twice: ours, ten times a long issue's. A log
has thousands of lines that look like keys."""
MOST_LINES = 600
"""Lines of a config within a message: ours, twice the longest example that any of the tools ships."""
FENCE = re.compile(r"^\s*(?:>\s*)*(?:```+|~~~+)\s*[\w.+-]*\s*$")
"""A line that begins or ends a block of code in Markdown."""
CODE_SPAN = re.compile(r"(`+)([^`]+)\1")
"""Code within a sentence."""
KEY = re.compile(r"""^\s*(?:- )?["']?([\w./-]+)["']?\s*:(?:\s|$)""")
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
    return _with_names([*_Search().blocks(lines)], name) or {name: plain}


def _is_script(text: str, name: str) -> bool:
    return kind_of(text, name) == "python" and parsed_python(text) is not None


def _commands_in_docstring(script: str) -> Iterator[_Block]:
    """The commands that start a script, as its docstring shows them."""
    tree = parsed_python(script)
    shown = ast.get_docstring(tree) if tree is not None else None
    for block in _Search().blocks((shown or "").splitlines()):
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
    search = _Search()
    is_alone = all(block.kind == "shell" for block in search.blocks(text.splitlines()))
    return is_alone and search.reads(text, "shell")


# --- blocks ---------------------------------------------------------------------------------------


class _Search:
    """The files within a message; no more than ``MOST_READ`` lines are read."""

    def __init__(self) -> None:
        self._left = MOST_READ
        self._marks = marks()

    def reads(self, text: str, kind: str) -> bool:
        """Whether a text of this kind says something of a run."""
        if kind_of(text, "") != kind or not self._may_read(1 + text.count("\n")):
            return False
        try:
            read = read_text(text, "")
            return bool(read.commands or read.calls or (read.keys and document_kind(read)))
        except ValueError:
            return False

    def _may_read(self, lines: int = 1) -> bool:
        self._left -= lines
        return self._left >= 0

    def blocks(self, lines: list[str]) -> Iterator[_Block]:
        """The files in these lines; a fence ends what is before it."""
        start = 0
        for end in (*(n for n, line in enumerate(lines) if FENCE.match(line)), len(lines)):
            before = [line for line in lines[max(0, start - 1 - BEFORE) : start] if line.strip()]
            yield from self._of_segment(lines[start:end], before)
            start = end + 1

    def _of_segment(self, lines: list[str], before: list[str]) -> Iterator[_Block]:
        """The files in lines without a fence; all of them are one, or some are."""
        whole = "\n".join(lines)
        if not whole.strip():
            return
        kind = kind_of(whole, "")
        if kind != "shell" and len(lines) <= MOST_LINES and self.reads(whole, kind):
            yield _Block(whole.strip("\n"), kind, _named(before, kind))
            return
        at = 0
        while at < len(lines):
            kind, end = self._beginning(lines, at)
            if not kind:
                for line in lines[at:end]:
                    yield from self._spans(line)
            else:
                text = "\n".join(lines[at:end]).strip("\n")
                near = [*before, *lines[max(0, at - 2 * BEFORE) : at]]
                yield _Block(text, kind, _named(near, kind))
            at = end

    def _beginning(self, lines: list[str], at: int) -> tuple[str, int]:
        """The kind of the file that begins at a line, or none, and the line after it."""
        line = lines[at]
        if looks_like_shell(line) or ASSIGNMENT.match(line):
            end = _end_of_commands(lines, at)
            return "shell" * self.reads("\n".join(lines[at:end]), "shell"), end
        if line.lstrip().startswith("{") and (end := self._end_of_json(lines, at)):
            return "json", end
        if line.startswith(("import ", "from ")) and (end := self._end_of_python(lines, at)):
            return "python", end
        if KEY.match(line):
            end = self._end_of_yaml(lines, at)
            return ("yaml", end) if end else ("", _end_of_paragraph(lines, at))
        return "", at + 1

    def _spans(self, line: str) -> Iterator[_Block]:
        """Commands within a sentence."""
        for match in CODE_SPAN.finditer(line):
            if looks_like_shell(match[2]) and self.reads(match[2], "shell"):
                yield _Block(match[2].strip(), "shell")

    def _end_of_json(self, lines: list[str], at: int) -> int:
        """The line after an object that says something of a run; 0 if none begins here."""
        rest = "\n".join(lines[at:])
        try:
            _, length = json.JSONDecoder().raw_decode(rest.lstrip())
        except (ValueError, RecursionError):
            return 0
        text = rest[: len(rest) - len(rest.lstrip()) + length]
        return at + text.count("\n") + 1 if self.reads(text, "json") else 0

    def _end_of_python(self, lines: list[str], at: int) -> int:
        """The line after the longest script that begins here and says something of a run; 0 if there is none."""
        end = len(lines)
        while end > at and self._may_read():
            text = "\n".join(lines[at:end])
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    ast.parse(text)
            except (SyntaxError, ValueError, RecursionError) as problem:
                wrong = getattr(problem, "lineno", None) or 1
                end = min(end - 1, at + wrong - 1)
            else:
                return end if self.reads(text, "python") else 0
        return 0

    def _end_of_yaml(self, lines: list[str], at: int) -> int:
        """The line after the longest config that begins here; 0 if there is none."""
        end = at
        while end < min(len(lines), at + MOST_LINES) and _is_yaml_line(lines[end]):
            end += 1
        while end > at and self._left > 0 and self._is_marked(lines[at:end]):
            while not lines[end - 1].strip():
                end -= 1
            if self.reads("\n".join(lines[at:end]), "yaml"):
                return end
            while end > at and lines[end - 1].strip():  # without its last paragraph
                end -= 1
        return 0

    def _is_marked(self, lines: Iterable[str]) -> bool:
        """Whether a key by which a config is known is among these lines."""
        keys = (KEY.match(line) for line in lines)
        return any(key is not None and key[1] in self._marks for key in keys)


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


def _end_of_paragraph(lines: list[str], at: int) -> int:
    """The line after keys that are of no config: the first that is blank, or no key."""
    end = at + 1
    while end < len(lines) and lines[end].strip() and KEY.match(lines[end]):
        end += 1
    return end


def _is_yaml_line(line: str) -> bool:
    return not line.strip() or any(shape.match(line) for shape in (KEY, ITEM, COMMENT))
