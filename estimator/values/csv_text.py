"""Writes CSV for programs and spreadsheets: no cell is taken for a formula."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

FORMULA = ("=", "+", "-", "@", "|", "%")
"""What a text begins with, after blanks, that a spreadsheet computes or passes to another program."""
BLANKS = ("\t", "\r", "\n")
"""What a text begins with that a spreadsheet drops before it looks for a formula."""


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    r"""Rows as CSV; None and NaN are empty, and a text that a spreadsheet would compute has an apostrophe before it.

    Source: RFC 4180 (a cell with a comma, a quote or a line's end is quoted, its quotes doubled; lines end in CRLF);
    https://owasp.org/www-community/attacks/CSV_Injection (= + - @, tab, carriage return and line feed).

    >>> csv_text([["name", "GiB"], ["=1+1, or 2", -5.5], ["a", None]])
    'name,GiB\r\n"\'=1+1, or 2",-5.5\r\na,\r\n'
    """
    return "".join(f"{','.join(map(_cell, row))}\r\n" for row in rows)


def _cell(value: object) -> str:
    text = "" if value is None or (isinstance(value, float) and isnan(value)) else str(value)
    if (text.lstrip().startswith(FORMULA) or text.startswith(BLANKS)) and not _is_number(text):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip() == text
