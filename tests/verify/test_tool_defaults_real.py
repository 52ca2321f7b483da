"""No tool has changed a default: data/tool_defaults.csv matches the newest wheels on PyPI, read with ``ast``.

Without a network, the installed packages are read instead and the others skipped.
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
def test_defaults_match_the_newest_versions(tool, tmp_path):
    rows = [row for row in TABLE if row["tool"] == tool]
    try:
        wheel = tool_defaults.downloaded(tmp_path, tool)
    except (subprocess.CalledProcessError, tool_defaults.MissingError):
        after = [tool_defaults.read_row(row, *installed(tool)) for row in rows]
    else:
        after = tool_defaults.reread(rows, lambda _: wheel)
    assert tool_defaults.moved(rows, after) == []


def installed(tool: str) -> tuple[str, tool_defaults.Source]:
    """An installed package's version and a reader of its files; nothing is imported."""
    try:
        found = metadata.distribution(tool)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{tool} is not installed here, and there is no network")
    return found.version, lambda file: Path(str(found.locate_file(file))).read_text(
        encoding="utf-8"
    )
