"""One test over all rows of a table: where each is milliseconds, collecting hundreds of tests takes longer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

import pytest


def for_each(
    names: str | tuple[str, ...], rows: Collection[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Called as ``pytest.mark.parametrize``, but the whole is one test, which ends with every row that fails."""
    listed = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)

    def over(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def whole(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            for row in rows:
                values = [row] if isinstance(names, str) and len(listed) == 1 else row
                try:
                    test(**dict(zip(listed, values, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as wrong:
                    wrong.add_note(f"for {row!r:.200}")
                    failed.append(wrong)
            assert rows, "a test of no row tests nothing"
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(rows)} rows", failed)

        given = inspect.signature(test)
        others = [parameter for name, parameter in given.parameters.items() if name not in listed]
        whole.__signature__ = given.replace(parameters=others)
        return whole

    return over
