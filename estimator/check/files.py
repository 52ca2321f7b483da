"""Reads the files of runs from the paths on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """One file and its bytes."""

    name: str
    """The path as given on the command line."""
    content: bytes
    from_folder: bool = False
    """Found in a folder rather than named, so it may not describe a run at all."""


def found(paths: Sequence[str]) -> list[FoundFile]:
    """The files at the given paths, searching folders; ``InputError`` names a path that does not exist."""
    files: list[FoundFile] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += (_read(it, from_folder=True) for it in _below(path))
        else:
            files.append(_read(path, from_folder=False))
    if not files:
        raise InputError(f"{', '.join(paths)}: no file that ends in {', '.join(ENDINGS)} is there.")
    if len(files) > MOST_FILES:
        raise InputError(f"{len(files)} files are more than {MOST_FILES}; name fewer at once.")
    return files


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix in ENDINGS and path.is_file() and not hidden:
            yield path


def _read(path: Path, *, from_folder: bool) -> FoundFile:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as problem:
        raise InputError(
            f"{path} cannot be read: {(problem.strerror or 'unknown').lower()}."
        ) from None
    if len(content) > LARGEST_FILE:
        raise InputError(f"{path} is larger than {LARGEST_FILE // 2**20} MiB; that is no config.")
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
