"""A cache for what all visitors of the same setup are shown, each part of which is computed by one of them alone.

Without the lock, visitors who come to a new setup at the same moment would all compute it, since ``lru_cache`` keeps
only what is finished. One lock for all arguments costs little, since Python runs one thread at a time anyway; each
function has its own, so that a figure does not wait for another visitor's remedies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import Lock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def computed_once(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator that caches a function's last ``maxsize`` results and computes each only once.

    >>> @computed_once(maxsize=8)
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> double(4)
    8
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        cached, lock = lru_cache(maxsize)(function), Lock()

        @wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with lock:
                return cached(*args, **kwargs)  # type: ignore[arg-type]  # setups are hashable

        return locked

    return decorate
