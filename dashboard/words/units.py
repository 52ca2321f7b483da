"""Numbers with their units. Only this module knows GiB and GB; everything else counts in bytes."""

from __future__ import annotations

from estimator import contract

GIB = 2**30
GB = 10**9


def in_gib(size: int) -> float:
    """Bytes as GiB for an axis, rounded to thousandths, so equal setups give equal figures."""
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
    """A range: ``81.4 to 83.5 GiB``, or one number if both ends read the same."""
    return gib(high) if number(low) == number(high) else f"{number(low)} to {gib(high)}"


def duration(low_hours: float, high_hours: float) -> str:
    """A range of time, in the unit that suits its high end: minutes, hours or days.

    >>> duration(0.2, 0.5), duration(3.14, 6.9), duration(60, 100), duration(2, 2)
    ('12 to 30 minutes', '3.1 to 6.9 hours', '2.5 to 4.2 days', '2.0 hours')
    >>> duration(0.001, 0.002), duration(0.001, 0.05), duration(0.97, 1.2)
    ('less than a minute', 'less than 3 minutes', '1.0 to 1.2 hours')
    """
    if 60 * high_hours < 1:
        return "less than a minute"
    if high_hours < 1:
        low, high = f"{60 * low_hours:.0f}", f"{60 * high_hours:.0f}"
        unit = "minute" if high == "1" else "minutes"
        if low == "0":
            return f"less than {high} {unit}"
    elif high_hours < 72:
        low, high, unit = f"{low_hours:.1f}", f"{high_hours:.1f}", "hours"
    else:
        low, high, unit = f"{low_hours / 24:,.1f}", f"{high_hours / 24:,.1f}", "days"
    return f"{high} {unit}" if low == high else f"{low} to {high} {unit}"


def dollars(low: float, high: float) -> str:
    """A range of US dollars: ``$8 to 19``; with cents below ten dollars.

    >>> dollars(8.4, 19.2), dollars(0.844, 1.9), dollars(3, 3)
    ('$8 to 19', '$0.84 to 1.90', '$3.00')
    >>> dollars(0.001, 0.02), dollars(0.001, 0.002), dollars(0, 0)
    ('up to $0.02', 'less than $0.01', '$0.00')
    """
    if 0 < high < 0.005:
        return "less than $0.01"
    if 0 < low < 0.005:
        return f"up to ${high:,.2f}" if high < 10 else f"up to ${high:,.0f}"

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
    """A parameter count: ``7.24 billion``.

    >>> count(7_241_732_096), count(999_900_000), count(124_439_808), count(1_000)
    ('7.24 billion', '1 billion', '124 million', '1,000')
    """
    for unit, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if parameters >= 0.9995 * unit:
            return f"{float(f'{parameters / unit:.3g}'):,g} {name}"
    return f"{parameters:,}"


def ratio(value: float) -> str:
    """A factor with three figures.

    >>> ratio(1.254), ratio(114.76), ratio(12.34), ratio(1_234.5), ratio(0.001)
    ('1.25 ×', '115 ×', '12.3 ×', '1,234 ×', '<0.01 ×')
    """
    if 0 < value < 0.005:
        return "<0.01 ×"
    places = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{places}f} ×"


def rate(value: float) -> str:
    """Tokens per second: whole, with two figures below ten.

    >>> rate(1234.5), rate(12.3), rate(3.21), rate(0.41)
    ('1,234', '12', '3.2', '0.41')
    """
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}" if value >= 0.01 else "<0.01"


def seconds(value: float) -> str:
    """Seconds with three figures.

    >>> seconds(0.01234), seconds(1.2345), seconds(123.4), seconds(999.9), seconds(0.00001234)
    ('0.0123', '1.23', '123', '1,000', '<0.0001')
    """
    if 0 < value < 0.0001:
        return "<0.0001"
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def gib_or_bytes(size: int) -> str:
    """A size that stays readable when small: ``1.5 GiB``, ``12.3 MiB``, ``512 bytes``."""
    return f"−{contract.amount(-size)}" if size < 0 else contract.amount(size)
