"""What is a text? By its name, and by what stands in it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from estimator.tools.parsed import Text, decoded
from estimator.tools.reading.json_text import read_json
from estimator.tools.reading.python_script import CONFIGS, TRAINERS, read_notebook, read_python
from estimator.tools.reading.shell import looks_like_shell, read_shell
from estimator.tools.reading.yaml_text import read_yaml

NO_FLAGS: Mapping[str, Any] = MappingProxyType({})
READERS = {
    "yaml": read_yaml,
    "json": read_json,
    "python": read_python,
    "notebook": read_notebook,
    "shell": read_shell,
}
SUFFIXES = {
    "yaml": "yaml",
    "yml": "yaml",
    "json": "json",
    "py": "python",
    "ipynb": "notebook",
    "sh": "shell",
    "bash": "shell",
    "slurm": "shell",
    "sbatch": "shell",
}


def read_text(text: str | bytes, name: str, flags: Mapping[str, Any] = NO_FLAGS) -> Text:
    """A file or a pasted text, as its keys, calls or commands; ``ValueError`` is one sentence.

    ``flags``: what a command gives a script.

    >>> read_text("trl sft --max_length 2048", "the text").kind, read_text("seed: 1", "the text").kind
    ('shell', 'yaml')
    """
    plain = decoded(text, name)
    kind = kind_of(plain, name)
    return read_python(plain, name, flags) if kind == "python" else READERS[kind](plain, name)


def kind_of(text: str, name: str) -> str:
    """The kind of a text: a key of ``READERS``."""
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    if suffix in SUFFIXES and not (suffix in {"json", "txt"} and not text.lstrip().startswith("{")):
        return SUFFIXES[suffix]
    start = text.lstrip()
    if start.startswith("{"):
        return "notebook" if '"cells"' in text and '"nbformat"' in text else "json"
    may_be_python = any(
        word in text for word in (*CONFIGS, *TRAINERS, "from_pretrained", "import ")
    )
    tree = parsed_python(text) if may_be_python else None
    if tree is not None and any(
        isinstance(node, ast.Call | ast.Import | ast.ImportFrom) for node in ast.walk(tree)
    ):
        return "python"
    if looks_like_shell(start):
        return "shell"
    is_damaged = may_be_python and tree is None
    begins = (line.startswith(("import ", "from ", "def ")) for line in text.splitlines())
    return "python" if is_damaged and any(begins) else "yaml"


def parsed_python(text: str) -> ast.Module | None:
    """A script's tree; None where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
