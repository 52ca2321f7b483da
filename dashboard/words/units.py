"""Numbers with their units. GiB and GB exist here only; everything else counts in bytes."""

from __future__ import annotations

GIB = 2**30
GB = 10**9


def in_gib(size: int) -> float:
    """Bytes as GiB, for an axis; to the thousandth, so that equal setups draw equal figures."""
    return round(size / GIB, 3)


def number(size: int) -> str:
    """Bytes as a number of GiB without the unit: ``54.0``, ``1,208``, ``<0.1``.

    >>> number(54 * GIB), number(1), number(0), number(1208 * GIB)
    ('54.0', '<0.1', '0', '1,208')
    """
    if size == 0:
        return "0"
    if 0 < size < GIB / 20:
        return "<0.1"
    return f"{size / GIB:,.1f}" if size < 1000 * GIB else f"{size / GIB:,.0f}"


def gib(size: int) -> str:
    """Bytes as GiB: ``54.0 GiB``."""
    return f"{number(size)} GiB"


def gb(size: int) -> str:
    """Bytes as the decimal GB of the rule of thumb, without the unit: ``14.5``."""
    return f"{size / GB:,.1f}"


def between(low: int, high: int) -> str:
    """A bracket: ``81.4 to 83.5 GiB``, or one number where both ends read the same."""
    return gib(high) if number(low) == number(high) else f"{number(low)} to {gib(high)}"


def duration(low_hours: float, high_hours: float) -> str:
    """A bracket of time in the unit that its high end calls for: minutes, hours or days.

    >>> duration(0.2, 0.5), duration(3.14, 6.9), duration(60, 100), duration(2, 2)
    ('12 to 30 minutes', '3.1 to 6.9 hours', '2.5 to 4.2 days', '2.0 hours')
    """
    if high_hours < 1:
        low, high = f"{60 * low_hours:.0f}", f"{60 * high_hours:.0f}"
        unit = "minutes"
    elif high_hours < 72:
        low, high, unit = f"{low_hours:.1f}", f"{high_hours:.1f}", "hours"
    else:
        low, high, unit = f"{low_hours / 24:,.1f}", f"{high_hours / 24:,.1f}", "days"
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"


def dollars(low: float, high: float) -> str:
    """A bracket of US dollars: ``$8 to 19``; cents below ten dollars.

    >>> dollars(8.4, 19.2), dollars(0.844, 1.9), dollars(3, 3)
    ('$8 to 19', '$0.84 to 1.90', '$3.00')
    """
    places = 2 if high < 10 else 0
    first, last = f"{low:,.{places}f}", f"{high:,.{places}f}"
    return f"${last}" if first == last else f"${first} to {last}"


def share(part: int, whole: int) -> str:
    """A share in whole percent: ``66 %``, ``<1 %``.

    >>> share(2, 3), share(1, 1000), share(0, 5)
    ('67 %', '<1 %', '0 %')
    """
    percent = 100 * part / whole if whole else 0.0
    return "<1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


def count(parameters: int) -> str:
    """A parameter count: ``7.24 billion``."""
    for unit, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if parameters >= unit:
            return f"{parameters / unit:.3g} {name}"
    return f"{parameters:,}"


def seconds(value: float) -> str:
    """Seconds with three figures.

    >>> seconds(0.01234), seconds(1.2345), seconds(123.4)
    ('0.0123', '1.23', '123')
    """
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def gib_or_bytes(size: int) -> str:
    """A size that stays readable when small: ``1.5 GiB``, ``12.3 MiB``, ``512 bytes``."""
    if size < 0:
        return f"−{gib_or_bytes(-size)}"
    if size >= GIB:
        return f"{size / GIB:,.2f} GiB"
    if size >= 2**20:
        return f"{size / 2**20:,.1f} MiB"
    return f"{size:,} bytes"
