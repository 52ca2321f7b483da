"""Reads the user's own files by path: regular files alone, and no more of them than is asked for."""

from __future__ import annotations

import stat
from pathlib import Path

from estimator.values.refusals import InputError


def regular_file(path: str | Path, most: int | None = None) -> bytes:
    """The bytes of a file; ``InputError`` says why it cannot be read, or that it has more than ``most`` bytes.

    Pipes and devices are refused before they are opened: they may have no end, or never begin.
    """
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise InputError(f"{path} is no regular file; save it as one.")
        with Path(path).open("rb") as file:
            content = file.read(-1 if most is None else most + 1)
    except OSError as problem:
        raise InputError(
            f"{path} cannot be read: {(problem.strerror or 'unknown').lower()}."
        ) from None
    if most is not None and len(content) > most:
        raise InputError(f"{path} is larger than {most // 2**20} MiB; that is no config.")
    return content
