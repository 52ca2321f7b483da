"""The phases of a step, as ``on_path/headroom_inside/stopping.py`` names them."""

from __future__ import annotations

from typing import NamedTuple

LOADING, FORWARD, BACKWARD, OPTIMIZER = "loading", "forward", "backward", "optimizer"
BEFORE_OPTIMIZER = "before the optimizer"
ORDER = (LOADING, FORWARD, BACKWARD, BEFORE_OPTIMIZER, OPTIMIZER)
"""In order of time."""


class PhaseEnd(NamedTuple):
    """When a phase ended, in microseconds."""

    time: int
    phase: str
    step: int
    """From 1; 0 while loading."""
