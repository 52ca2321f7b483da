"""Reads the files of runs from the paths on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from estimator.sources.local_files import regular_file
from estimator.sources.repository import from_text
from estimator.values.refusals import InputError
from estimator.values.specs import Model

ENDINGS = (".yaml", ".yml", ".json", ".py", ".ipynb", ".sh")
"""The file names looked for in a folder."""
MOST_FILES = 10_000
"""Files of one command: ours."""
LONGEST_PATH = 1000
"""Characters of a folder's name: ours."""
LARGEST_FILE = 10 * 2**20
"""Largest file read, in bytes: ours; more than any notebook without its images."""
MOST_BYTES = 256 * 2**20
"""Bytes of all files of one command: ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """One file and its bytes."""

    name: str
    """The path as given on the command line."""
    content: bytes
    from_folder: bool = False
    """Found in a folder rather than named, so it may not describe a run at all."""


def found(paths: Sequence[str]) -> tuple[list[FoundFile], list[str]]:
    """The files at the given paths, searching folders, and the names of those that are too large to be configs.

    ``InputError`` names a path that cannot be read. A large file is left out only where a folder has it.
    """
    files: list[FoundFile] = []
    large: list[str] = []
    total = 0
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(_read(path, from_folder=False))
            continue
        for inner in _below(path):
            if inner.stat().st_size > LARGEST_FILE:
                large.append(str(inner))
                continue
            files.append(_read(inner, from_folder=True))
            total += len(files[-1].content)
            if len(files) > MOST_FILES or total > MOST_BYTES:
                raise InputError(
                    f"{path} has more than {MOST_FILES:,} files, or {MOST_BYTES // 2**20} MiB of "
                    "them; name fewer at once."
                )
    if not files and not large:
        raise InputError(f"{', '.join(paths)}: no file that ends in {', '.join(ENDINGS)} is there.")
    return files, large


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix in ENDINGS and path.is_file() and not hidden:
            yield path


def _read(path: Path, *, from_folder: bool) -> FoundFile:
    content = regular_file(path, LARGEST_FILE)
    return FoundFile(name=str(path), content=content, from_folder=from_folder)


def local_model(name: object) -> Model | None:
    """The model of a folder that has a config.json, as ``from_pretrained`` finds it; None for any other path."""
    if not isinstance(name, str) or len(name) > LONGEST_PATH:
        return None
    config = Path(name) / "config.json"
    if not config.is_file():
        return None
    found = from_text(_read(config, from_folder=False).content, str(config))
    if found.model is None:
        raise InputError(found.problem)
    return found.model
