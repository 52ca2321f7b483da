"""Numbers with units, for the terminal. The display edge of the command line: bytes become GiB here."""

from __future__ import annotations

GIB = 2**30
"""Bytes in a GiB."""


def gib(size: int) -> str:
    """Bytes in GiB, as a column shows them.

    >>> gib(3 * 2**29)
    '1.50'
    """
    return f"{size / GIB:,.2f}"


def amount(size: int) -> str:
    """Bytes with the unit in which they are readable.

    >>> amount(3 * 2**29), amount(3 * 2**19), amount(512)
    ('1.50 GiB', '1.5 MiB', '512 bytes')
    """
    if size >= GIB:
        return f"{gib(size)} GiB"
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size:,} bytes"


def share(part: int, whole: int) -> str:
    """A part in percent of the whole.

    >>> share(1, 8)
    '12.5 %'
    """
    return f"{100 * part / whole:.1f} %" if whole else "-"
