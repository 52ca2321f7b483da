"""No tool has moved a default: data/tool_defaults.csv says what the newest wheels at PyPI say, read by ``ast``.

Where there is no network the packages that are installed here are read instead; then others are skipped.
"""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from benchmarks import tool_defaults

pytestmark = pytest.mark.verify
TABLE = tool_defaults.table()
TOOLS = sorted({row["tool"] for row in TABLE})


@pytest.mark.parametrize("tool", TOOLS)
def test_no_default_of_the_newest_version_is_another(tool: str, tmp_path: Path) -> None:
    rows = [row for row in TABLE if row["tool"] == tool]
    try:
        wheel = tool_defaults.downloaded(tmp_path, tool)
    except (subprocess.CalledProcessError, tool_defaults.MissingError):
        after = [tool_defaults.read_row(row, *installed(tool)) for row in rows]
    else:
        after = tool_defaults.reread(rows, lambda _: wheel)
    assert tool_defaults.moved(rows, after) == []


def installed(tool: str) -> tuple[str, tool_defaults.Source]:
    """The version of an installed package, and how to read a file of it; nothing is imported."""
    try:
        found = metadata.distribution(tool)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{tool} is not installed here, and there is no network")
    return found.version, lambda file: Path(str(found.locate_file(file))).read_text(
        encoding="utf-8"
    )
