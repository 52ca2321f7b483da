"""Visitors who come to a new setup at the same moment share one computation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import sleep

from dashboard.estimate.computed_once import computed_once


def test_threads_that_ask_at_the_same_moment_compute_once():
    asked: list[int] = []
    together = Barrier(8)

    @computed_once(maxsize=8)
    def double(number: int) -> int:
        asked.append(number)
        sleep(0.02)  # lets the other threads ask meanwhile
        return 2 * number

    def visit(_: int) -> int:
        together.wait()
        return double(4)

    with ThreadPoolExecutor(max_workers=8) as visitors:
        assert list(visitors.map(visit, range(8))) == [8] * 8
    assert asked == [4]
