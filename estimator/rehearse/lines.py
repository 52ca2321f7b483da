"""A line of somebody's code, as a rehearsal names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of somebody's code."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        shown = self.file.split("site-packages/")[-1]
        return f"{shown}:{self.line} `{self.text}`"


def line_of(found: Mapping[str, Any] | None) -> CodeLine | None:
    """A line as a report has it."""
    return None if found is None else CodeLine(**found)
