"""Threads for dear work beside the event loop, which serves all visitors: few at a time, few that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

R = TypeVar("R")


class BusyError(Exception):
    """As much work is asked for as may wait."""


class BoundedPool:
    """Runs work in ``threads`` threads; beyond ``most`` pieces, running and waiting, it raises ``BusyError``."""

    def __init__(self, name: str, threads: int, most: int) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._most = most
        self._asked: dict[Hashable, Future[Any]] = {}

    async def run(self, key: Hashable, work: Callable[[], R], patience: float | None = None) -> R:
        """The result of some work, done once for all who ask with the same key at the same time.

        After ``patience`` seconds it raises ``TimeoutError``; the work goes on, for whoever asks next.
        """
        future = self._asked.get(key)
        if future is None:
            if len(self._asked) >= self._most:
                raise BusyError
            future = self._asked[key] = self._threads.submit(work)
            future.add_done_callback(lambda _: self._asked.pop(key, None))
        result: R = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), patience)
        return result
