"""Keys of theirs that change memory or time and are not modelled yet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from estimator.tools.lists import listed


class Direction(StrEnum):
    """The direction in which an unmodelled key moves memory."""

    MORE = "more"
    LESS = "less"
    EITHER = "more or less"


LESS, MORE, EITHER = Direction.LESS, Direction.MORE, Direction.EITHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """A key of theirs that changes memory or time but is not modelled yet."""

    theirs: str
    sentence: str
    direction: Direction
    harmless: tuple[Any, ...] = (None, False)
    """Values without effect."""
    same_as: str = ""
    """Another key of theirs, whose value has no effect either."""
    beside: frozenset[str] = frozenset()
    """Keys of theirs beside one of which alone it is not modelled; empty: it never is."""


def not_modelled(
    part: str, *rows: tuple[Any, ...], harmless: tuple[Any, ...] = (None, False)
) -> tuple[Later, ...]:
    """Keys of one part of theirs that are not modelled yet.

    A row has their names, a sentence, a direction, and the values without effect beside ``harmless``.

    >>> rows = not_modelled("args", ("galore_rank galore_scale", "GaLore projects", LESS, 8))
    >>> [(row.theirs, row.harmless) for row in rows]
    [('args.galore_rank', (None, False, 8)), ('args.galore_scale', (None, False, 8))]
    """
    return tuple(
        Later(
            theirs=f"{part}.{name}",
            sentence=sentence,
            direction=direction,
            harmless=(*harmless, *more),
        )
        for names, sentence, direction, *more in rows
        for name in listed(names)
    )
