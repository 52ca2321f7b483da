"""Caches that are bounded by the bytes that their results hold, beside the number of results.

``lru_cache`` counts results alone; a result here may take a hundred bytes or ten million. Parts that several results
share are counted once. Sizes are those of a result when it is made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from functools import update_wrapper
from threading import Lock
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Part = tuple[object, int]
"""A part of a result, told from others by its identity, and its bytes."""


class Remembered(Generic[P, R]):
    """A function that remembers its last results: at most ``most`` of them, and ``most_bytes`` of their parts."""

    def __init__(
        self,
        function: Callable[P, R],
        most: int,
        most_bytes: int,
        parts: Callable[[R], Iterable[Part]],
    ) -> None:
        update_wrapper(self, function)
        self._function, self._most, self._most_bytes, self._parts = (
            function,
            most,
            most_bytes,
            parts,
        )
        self._lock = Lock()
        self.cache_clear()

    def cache_clear(self) -> None:
        """Forgets all results."""
        with self._lock:
            self._results: OrderedDict[Hashable, tuple[R, list[Part]]] = OrderedDict()
            self._held: dict[int, tuple[int, int]] = {}
            """Results that hold a part, and its bytes, by its identity."""
            self.bytes = 0
            """Of all parts that the results hold."""

    def __len__(self) -> int:
        """Number of remembered results."""
        return len(self._results)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result."""
        key = (args, *kwargs.items()) if kwargs else args
        found = self._results.get(key)
        if found is not None:
            with self._lock:
                if key in self._results:
                    self._results.move_to_end(key)
            return found[0]
        result = self._function(*args, **kwargs)
        parts = list(self._parts(result))
        with self._lock:
            if key not in self._results:
                self._results[key] = result, parts
                for part in parts:
                    self._hold(part, 1)
            while len(self._results) > self._most or (
                self.bytes > self._most_bytes and len(self._results) > 1
            ):
                _, (_, dropped) = self._results.popitem(last=False)
                for part in dropped:
                    self._hold(part, -1)
        return result

    def _hold(self, part: Part, more: int) -> None:
        holders, size = self._held.get(id(part[0]), (0, part[1]))
        self.bytes += size * (bool(holders + more) - bool(holders))
        if holders + more:
            self._held[id(part[0])] = holders + more, size
        else:
            del self._held[id(part[0])]


def remembered(
    most: int, most_bytes: int, parts: Callable[[R], Iterable[Part]]
) -> Callable[[Callable[P, R]], Remembered[P, R]]:
    """Decorator that makes a function ``Remembered``.

    >>> @remembered(most=8, most_bytes=10, parts=lambda text: [(text, len(text))])
    ... def repeated(letter: str, times: int) -> str:
    ...     return letter * times
    >>> [len(repeated("a", times)) for times in (4, 5, 6)], len(repeated), repeated.bytes
    ([4, 5, 6], 1, 6)
    """
    return lambda function: Remembered(function, most, most_bytes, parts)
