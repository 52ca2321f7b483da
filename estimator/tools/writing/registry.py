"""The tools that setups are written for."""

from __future__ import annotations

from collections.abc import Mapping

from estimator.tools.writing import axolotl, llamafactory, ms_swift, scripts, verl
from estimator.tools.writing.writer import ToolWriter

WRITERS: dict[str, ToolWriter] = {
    "trl": scripts.TRL,
    "trainer": scripts.TRAINER,
    "axolotl": axolotl.WRITER,
    "llamafactory": llamafactory.WRITER,
    "ms_swift": ms_swift.WRITER,
    "verl": verl.WRITER,
}
"""By the tool's name; of others only files that are there are changed."""
NO_FILES = ToolWriter()
WRITABLE: Mapping[str, frozenset[str]] = {name: writer.parts for name, writer in WRITERS.items()}
"""The parts of a config that a tool's files can hold, by tool; those that are not named here have no writer."""


def writer_of(tool: str) -> ToolWriter:
    """A tool's writer, by its name; one that writes no files where it has none."""
    return WRITERS.get(tool, NO_FILES)
