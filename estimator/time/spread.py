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
from estimator.values.range import Range
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
    """Seconds of something that a step does, from a fast to a slow cause."""

    cause: Cause
    name: str
    """The part of the step in which it is listed."""
    seconds: Range[float]


def together(costs: Iterable[Cost]) -> tuple[TimePart, ...]:
    """The parts of a step, whose ends add up to those of the sum.

        typical  M = Σ √(low · high)                 deviation  D² = Σ over causes (Σ of its costs (high - low) / 2)²
        ends     √(M² + D²) - D  to  √(M² + D²) + D, whose product is M²

    A single cost keeps its own ends. Every part is drawn to its typical seconds by the same factor.

    Source: derived: variances of independent terms add; the logarithm of the sum is taken as symmetric, as those of the
    costs are.

    >>> together([Cost(Cause.PRODUCTS, "products", Range(1.0, 4.0))])
    (TimePart(name='products', seconds=Range(low=1.0, high=4.0)),)
    """
    typical: dict[str, float] = {}
    deviations: dict[Cause, float] = {}
    for cause, name, seconds in costs:
        typical[name] = typical.get(name, 0.0) + root(seconds.low * seconds.high)
        deviation = (seconds.high - seconds.low) / 2
        deviations[cause] = deviations.get(cause, 0.0) + deviation
    middle = total(typical.values())
    squares = total(deviation * deviation for deviation in deviations.values())
    reach, off = root(middle * middle + squares), root(squares)
    low, high = reach - off, reach + off
    return tuple(
        TimePart(name, Range(own * low / middle, own * high / middle))
        for name, own in typical.items()
    )
