"""Appends rows to `data/measurements.csv`, which `estimator/sources/catalog.py` reads."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from estimator.sources.catalog import COUNTERS, DATA, MOMENTS
from estimator.values.refusals import InputError

TABLE = DATA / "measurements.csv"

COLUMNS = (
    "id",
    "setup",
    "gpu",
    "outcome",
    "measured",
    *(f"{counter}_{moment}_bytes" for counter in COUNTERS for moment in MOMENTS),
    "allocated_first_step_bytes",
    "device_idle_bytes",
    "total_parameters",
    "trainable_parameters",
    "step_seconds",
    "alloc_retries",
    "cases_before",
    "versions",
    "source",
    "retrieved",
    "note",
)

MEASURED, OUT_OF_MEMORY = "measured", "out_of_memory"
"""The two outcomes that are recorded; anything else is printed and not recorded."""

Row = Mapping[str, str | int | float | None]


def append(table: Path, row: Row) -> None:
    """Appends one row and flushes it to disk; a new table starts with its header.

    None or missing values become empty cells.
    """
    unknown = row.keys() - set(COLUMNS)
    assert not unknown, unknown
    is_new = not table.exists() or not table.stat().st_size
    if not is_new:
        _check_header(table)
    with table.open("a", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS, restval="", lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def _check_header(table: Path) -> None:
    with table.open(encoding="utf-8", newline="") as lines:
        header = next(csv.reader(lines))
    if tuple(header) != COLUMNS:
        raise InputError(
            f"{table} has other columns than this script writes; give --output another file."
        )
