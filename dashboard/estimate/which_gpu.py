"""The setup on every GPU of the catalogue."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.words import terms, units
from estimator import Estimate, Ranking, Verdict, catalog, rank_gpus


def every_gpu(of: Estimate) -> tuple[list[Estimate], Ranking]:
    """The setup on every card of the catalogue and on the chosen one, and the best of them.

    Cards that hold it come first, the smallest before the others; then the rest, the largest before the others.
    """
    cards = list(catalog.gpus().values())
    if of.gpu is not None and of.gpu not in cards:
        cards.append(of.gpu)
    ranking = rank_gpus(of.model, of.setup, cards)
    return sorted(ranking.estimates, key=_from_the_smallest_that_holds_it), ranking


def _from_the_smallest_that_holds_it(estimate: Estimate) -> tuple[int, int]:
    assert estimate.gpu is not None
    assert estimate.verdict is not None
    size = estimate.gpu.memory_bytes
    return list(Verdict).index(
        estimate.verdict
    ), size if estimate.verdict is Verdict.FITS else -size


def gpu_row(estimate: Estimate) -> dict[str, object]:
    """One card as a row of the table, with plain numbers for sorting."""
    assert estimate.gpu is not None
    assert estimate.verdict is not None
    time, cost = (estimate.time, estimate.cost) if estimate.can_run else (None, None)
    return {
        "GPU": estimate.gpu.name,
        "Verdict": terms.sign(estimate.verdict),
        "Usable": units.in_gib(estimate.gpu.memory_bytes),
        "Headroom": units.in_gib(estimate.headroom_bytes),
        "Hours, fast": None if time is None else round(time.total_hours.low, 2),
        "Hours, slow": None if time is None else round(time.total_hours.high, 2),
        "Dollars, low": None if cost is None else round(cost.cost_usd.low, 2),
        "Dollars, high": None if cost is None else round(cost.cost_usd.high, 2),
        "Memory is": "derived" if estimate.gpu.memory_is_derived else "read",
    }


def gpus_head(rows: Sequence[Estimate]) -> str:
    """One-sentence summary of the table."""
    fitting = [row for row in rows if row.verdict is Verdict.FITS]
    if not fitting:
        largest = max(rows, key=lambda row: row.gpu.memory_bytes if row.gpu else 0)
        assert largest.gpu is not None
        return (
            f"None of the {len(rows)} GPUs holds it: on the largest, {largest.gpu.name}, it needs "
            f"{units.gib(largest.need_high_bytes)}."
        )
    smallest = fitting[0]
    assert smallest.gpu is not None
    return (
        f"{len(fitting)} of {len(rows)} GPUs hold{'s' * (len(fitting) == 1)} it; the smallest is "
        f"{smallest.gpu.name}, with {units.gib(smallest.headroom_bytes)} to spare. Choose a row to switch to that GPU."
    )
