"""A folder of one's own cards, models and prices, named by ``HEADROOM_DATA``: the same tables as ``data/``.

A row replaces the shipped row of its name; prices of a card replace all its shipped prices. Cells and columns may be
left out where the contract has a default. What is wrong is said once, at the start, in a sentence a row.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from estimator.values.kinds import near, one_of
from estimator.values.refusals import InputError, show

FOLDER = "HEADROOM_DATA"
"""The environment variable that names the folder."""
NAMED_BY: Mapping[str, str] = MappingProxyType(
    {"gpus.csv": "name", "models.csv": "hub_id", "prices.csv": "gpu"}
)
"""The tables that one may have, each with the column that names what a row is about."""
MOST_ROWS = 10_000
"""Rows of a table that are read. Our choice."""

Row = dict[str, str]


def folder() -> Path | None:
    """The folder; None where the environment names none."""
    named = os.environ.get(FOLDER, "").strip()
    return Path(named) if named else None


@lru_cache(maxsize=8)
def _read(path: Path) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, restval="")
        rows: list[Row] = []
        for row in reader:
            if None in row:  # cells beyond the first line's
                raise InputError(f"line {reader.line_num} has more cells than the first line")
            rows.append({name: cell or "" for name, cell in row.items()})
        return tuple(reader.fieldnames or ()), tuple(rows)


def own_rows(table: str) -> tuple[Row, ...]:
    """One's own rows of a table, as they are written."""
    where = folder()
    if where is None or table not in NAMED_BY or not (where / table).is_file():
        return ()
    return _read(where / table)[1]


def with_own(table: str, shipped: list[Row], blank: Mapping[str, str]) -> list[Row]:
    """The shipped rows, without those whose name one's own have, and then one's own; ``blank`` fills empty cells."""
    own = own_rows(table)
    if not own:
        return shipped
    by = NAMED_BY[table]
    names = {row.get(by, "").casefold() for row in own}
    kept = [row for row in shipped if row[by].casefold() not in names]
    return kept + [filled(row, shipped[0], blank) for row in own]


def filled(row: Row, columns: Iterable[str], blank: Mapping[str, str]) -> Row:
    """A row with every column; what is empty has its default."""
    return {name: row.get(name, "").strip() or blank.get(name, "") for name in columns}


def wrong_files(columns: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """A sentence for the folder, each file and each column that cannot be read; ``columns``: those of each table."""
    where = folder()
    if where is None:
        return
    if not where.is_dir():
        yield f"{FOLDER} names {show(str(where))}, which is no folder; name one with {one_of(list(NAMED_BY))}."
        return
    found = [name for name in NAMED_BY if (where / name).is_file()]
    if not found:
        yield f"{FOLDER} names {show(str(where))}, which has none of {', '.join(NAMED_BY)}; put one there."
    for table in found:
        try:
            header, rows = _read(where / table)
        except (OSError, UnicodeDecodeError, csv.Error, InputError) as problem:
            yield f"{table} cannot be read ({problem}); save it as CSV in UTF-8."
            continue
        known = list(columns[table])
        for name in header:
            if name not in known:
                meant = near(name, known)
                hint = f"did you mean {one_of(meant)}?" if meant else "leave it out."
                yield f"{table} has a column {show(name)} that Headroom does not know; {hint}"
        if NAMED_BY[table] not in header:
            yield f"{table} has no column {NAMED_BY[table]}; add it."
        if len(rows) > MOST_ROWS:
            yield f"{table} has {len(rows):,} rows, more than {MOST_ROWS:,}; shorten it."
