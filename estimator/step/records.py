"""Which recorded steps are kept: those used last, of all plans together, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import Any, Generic, TypeVar

MOST_BYTES = 64 * 2**20
"""Bytes of recorded steps that are kept: ours, some 250 steps. One that is dropped is played again when it is
asked for."""

T = TypeVar("T")


class _All:
    """The records of all plans, the last used last."""

    def __init__(self) -> None:
        self.records: OrderedDict[int, tuple[Records[Any], object, int]] = OrderedDict()
        self.bytes = 0
        self.lock = Lock()


_ALL = _All()


class Records(Generic[T]):
    """The recorded steps of one plan, each for the sizes at which its comparisons come out alike.

    >>> some = Records[str]()
    >>> some.add("a step", 100)
    >>> list(some)
    ['a step']
    """

    def __init__(self) -> None:
        self._records: tuple[T, ...] = ()

    def __iter__(self) -> Iterator[T]:
        """Those that are kept now."""
        return iter(self._records)

    def add(self, record: T, size: int) -> None:
        """Keeps a record of ``size`` bytes; beyond the bound, those used longest ago go, of whichever plan."""
        with _ALL.lock:
            self._records = (*self._records, record)
            _ALL.records[id(record)] = self, record, size
            _ALL.bytes += size
            while _ALL.bytes > MOST_BYTES and len(_ALL.records) > 1:
                _, (owner, oldest, dropped) = _ALL.records.popitem(last=False)
                owner._records = tuple(record for record in owner._records if record is not oldest)
                _ALL.bytes -= dropped

    def use(self, record: T) -> None:
        """Makes a record the one used last."""
        with _ALL.lock:
            if id(record) in _ALL.records:
                _ALL.records.move_to_end(id(record))
