"""Which line of whose code asked: the script's, a library's, torch's."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from types import FrameType
from typing import Any

_INSTALLED = tuple(
    {os.path.abspath(path) + os.sep for path in sysconfig.get_paths().values()} - {os.sep}
)
_HERE = os.path.dirname(os.path.abspath(__file__))


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python or to a package, and not to the user's own code."""
    parts = ("site-packages", "dist-packages")
    return (
        file.startswith("<")
        or any(f"{os.sep}{part}{os.sep}" in file for part in parts)
        or os.path.abspath(file).startswith(_INSTALLED)
    )


def is_in_torch(file: str) -> bool:
    """Whether a file is torch's own."""
    return f"{os.sep}torch{os.sep}" in file


def is_ours(file: str) -> bool:
    """Whether a file belongs to the rehearsal."""
    return os.path.dirname(file) == _HERE


def line(file: str, number: int, function: str) -> dict[str, Any]:
    """A line of code as a report has it."""
    return {
        "file": file,
        "line": number,
        "function": function,
        "text": linecache.getline(file, number).strip(),
    }


def innermost_of_script() -> dict[str, Any] | None:
    """The line of the user's own code that calls torch here; None where a library does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_ours(file) and not is_in_torch(file):
            if is_installed(file):
                return None
            return line(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None
