"""What the uncertain costs of a step come to together.

The ends of a sum are not the sums of the ends: a run that is slow in everything at once is rarer than one that is slow
in one thing. Costs of one cause, such as all matrix products, are fast or slow together; different causes are
independent, so their deviations add in squares.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from estimator.values.arithmetic import root, total
from estimator.values.results import TimePart


class Cause(Enum):
    """What makes a cost fast or slow."""

    PRODUCTS = "the rate of matrix products"
    SHAPES = "tiles that products do not fill, and matrices that they move"
    ATTENTION = "the attention kernel"
    TRAFFIC = "how many operators between products are fused"
    LOSS = "the loss kernel"
    UNPACKING = "the kernel that unpacks quantised weights"
    OPTIMIZER = "the optimizer's kernels"
    LOOPS = "loops over chunks"


class Cost(NamedTuple):
    """Seconds of something that a step does, if its cause is fast and if it is slow."""

    cause: Cause
    name: str
    """The part of the step in which it is listed."""
    low: float
    high: float


def together(costs: Iterable[Cost]) -> tuple[TimePart, ...]:
    """The parts of a step, whose ends add up to those of the sum.

        typical  M = Σ √(low · high)                 deviation  D² = Σ over causes (Σ of its costs (high - low) / 2)²
        ends     √(M² + D²) - D  to  √(M² + D²) + D, whose product is M²

    A single cost keeps its own ends. Every part is drawn to its typical seconds by the same factor.

    Source: derived: variances of independent terms add; the logarithm of the sum is taken as symmetric, as those of the
    costs are.

    >>> [alone] = together([Cost(Cause.PRODUCTS, "products", 1.0, 4.0)])
    >>> alone.low_seconds, alone.high_seconds
    (1.0, 4.0)
    """
    typical: dict[str, float] = {}
    deviations: dict[Cause, float] = {}
    for cost in costs:
        typical[cost.name] = typical.get(cost.name, 0.0) + root(cost.low * cost.high)
        deviation = (cost.high - cost.low) / 2
        deviations[cost.cause] = deviations.get(cost.cause, 0.0) + deviation
    middle, squares = total(typical.values()), total(it * it for it in deviations.values())
    reach, off = root(middle * middle + squares), root(squares)
    return tuple(
        TimePart(name, seconds * (reach - off) / middle, seconds * (reach + off) / middle)
        for name, seconds in typical.items()
    )
