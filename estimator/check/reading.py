"""What files say: each a run, or all of them one."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.check.files import Found
from estimator.check.judged import Asked
from estimator.values.json_text import read_object


def read(files: Sequence[Found], *, together: bool = False) -> list[Asked]:
    """The runs of files; of a folder those files that are no runs are left out."""
    return [_setup(it) for it in files]


def _setup(file: Found) -> Asked:
    """A setup of the contract, as one JSON object."""
    try:
        keys = read_object(file.content, file.name)
    except ValueError as problem:
        return Asked(files=(file.name,), keys={}, problems=(str(problem),))
    return Asked(files=(file.name,), keys=keys)
