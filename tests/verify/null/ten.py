"""Rehearses ten public scripts again, which TRL's package brings, and compares them with data/rehearsed.csv.

usage: python -m tests.verify.null.ten PYTHON     of an environment with PyTorch's CUDA build
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.verify.null.public import TABLE, rehearse
from tests.verify.null.public_scripts import PLAYS

TEN = [play for play in PLAYS if play.path.startswith("trl/scripts/")][:10]
SIZE = "tiny"
ALIKE = 0.001
"""Share by which two rehearsals of one script may differ: ours."""
FIGURES = ("allocated_bytes", "reserved_bytes", "least_bytes")


def main(python: str) -> int:
    """Rehearse them; returns 1 if one is other than the table says."""
    with TABLE.open(encoding="utf-8") as file:
        known = {row["id"]: row for row in csv.DictReader(file) if row["size"] == SIZE}
    os.environ["HEADROOM_TRL"] = str(Path(python).parent)
    where = subprocess.run(
        [python, "-c", "import importlib.util as u; print(u.find_spec('trl').origin)"],
        text=True,
        capture_output=True,
        check=True,
    )
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        checkouts = Path(folder)
        installed = Path(where.stdout.strip()).parent / "scripts"
        shutil.copytree(installed, checkouts / "trl" / "trl" / "scripts")
        for play in TEN:
            found, said = rehearse(play, SIZE, checkouts), known[play.id]
            sizes = {name: (int(str(found.get(name) or 0)), int(said[name])) for name in FIGURES}
            is_same = all(abs(here / there - 1) <= ALIKE for here, there in sizes.values())
            wrong += not is_same
            print(f"{'as before' if is_same else 'OTHERWISE'}: {play.id}", flush=True)
            if not is_same:
                print(f"  now and in the table: {sizes}; {found.get('sentence', '')}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
