"""Machines that may be taken away: how much longer a run takes whose work since the last checkpoint is lost."""

from __future__ import annotations

import math


def stretched(rate: float, interval_hours: float, restart_hours: float) -> float:
    """Expected hours of a run per hour of its work (no unit), with interruptions at random.

        e^(λR) · (e^(λτ) - 1) / (λτ)     λ: interruptions per hour of the whole job, τ: hours between checkpoints,
                                         R: hours until it runs again

    An interruption loses the work since the last checkpoint; it may come while the job restarts, too.

    Leaves out: the time to write a checkpoint; waiting until a machine can be had again, unless R has it.
    Error: interruptions come at the same rate all the time; a spot market's come in waves.
    Source: derived. Work of τ takes min(X, τ) at first, with X the time to an interruption; after one, R + τ must pass
    undisturbed, which takes (e^(λ(R + τ)) - 1) / λ on average. So τ takes (1 - e^(-λτ)) · e^(λ(R + τ)) / λ. The setting
    is that of J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future
    Generation Computer Systems 22 (2006), doi:10.1016/j.future.2004.11.016, without the time to write a checkpoint.

    >>> round(stretched(0.1, 1, 0.25), 4), stretched(0, 1, 0.25)
    (1.0783, 1.0)
    """
    if not rate:
        return 1.0
    lost = rate * interval_hours
    return math.exp(rate * restart_hours) * math.expm1(lost) / lost
