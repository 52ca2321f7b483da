"""The packages of the page's environment: version, licence and size of each, and which pins are outdated.

    make audit

Asks the package index only for the newest versions; exits with 1 if a pin is outdated.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"


def locked(text: str) -> dict[str, str]:
    """The version of each package in a lock file.

    >>> locked("altair==6.3.0")
    {'altair': '6.3.0'}
    """
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ \\;]+)", text, re.M))


def licence(of: Distribution) -> str:
    """A package's licence according to its metadata."""
    about = of.metadata
    named = about.get("License-Expression") or about.get("License") or ""
    if len(named) > 40 or not named:
        found = [one for one in about.get_all("Classifier", []) if one.startswith("License ::")]
        named = (
            found[0].rpartition(":: ")[2]
            if found
            else named.strip().splitlines()[:1] and named[:40]
        )
    return str(named or "not said")


def size(of: Distribution) -> int:
    """Total bytes of a package's files."""
    paths = [Path(str(file.locate())) for file in of.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> int:
    """Print the table."""
    command = [sys.executable, "-m", "pip", "list", "--outdated", "--format", "json"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    newest = {
        package["name"].lower().replace("_", "-"): package["latest_version"]
        for package in json.loads(said)
    }
    behind, total = 0, 0
    for name, version in locked(LOCK.read_text(encoding="utf-8")).items():
        try:
            of = distribution(name)
        except ImportError:  # for another platform
            continue
        newer = newest.get(name, "")
        behind += bool(newer)
        total += size(of)
        print(f"{name:28}{version:14}{newer:14}{size(of) / 1e6:7.1f} MB  {licence(of)}")
    print(f"{'all':56}{total / 1e6:7.1f} MB")
    print(f"{behind} behind" if behind else "none behind")
    return int(bool(behind))


if __name__ == "__main__":
    sys.exit(main())
