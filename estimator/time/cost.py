"""Dollars and kilowatt-hours of a run.

US dollars at one price per GPU-hour, quoted with its provider and date.
"""

from __future__ import annotations

from functools import lru_cache

from estimator.values.arithmetic import ceil_div
from estimator.values.range import Range
from estimator.values.results import RunCost, RunTime
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Price

WATTS_PER_KILOWATT = 1000


def run_cost(time: RunTime, gpu: Gpu, setup: TrainingSetup) -> RunCost | None:
    """US dollars of the run, whole job with a vLLM server's GPUs; None if no price is known.

        hours · GPUs · price     price: the user's own, else the cheapest listing for so many GPUs; a listing that rents
                                 whole machines bills all GPUs of the machines needed

    Leaves out: storage, traffic, idle hours, taxes; billing by the minute or second.

    Error: listings of one GPU differ by factors of 2 to 4 between providers (data/prices.csv).
    Source: data/prices.csv, by row.
    """
    usd, listing, gpus = setup.run.usd_per_gpu_hour, None, setup.billed_gpus
    if usd is None:
        listing = cheapest(gpu, gpus)
        if listing is None:
            return None
        usd, gpus = listing.usd_per_gpu_hour, rented(listing, gpus)
    cost = gpus * time.total_hours * usd
    return RunCost(usd_per_gpu_hour=usd, price=listing, cost_usd=cost)


@lru_cache(maxsize=1024)
def cheapest(gpu: Gpu, num_gpus: int) -> Price | None:
    """The listing with the lowest total US dollars per hour among those that so many GPUs can be had by.

    Source: data/prices.csv, by row.

    >>> eight = Price(provider="by the node", usd_per_gpu_hour=1.0, date="2026-11-21", min_gpus=8)
    >>> cheapest(Gpu(name="card", memory_bytes=2**34, prices=(eight,)), 1) is None
    True
    """
    offered = [
        price for price in gpu.prices if price.min_gpus <= num_gpus <= (price.max_gpus or num_gpus)
    ]
    return min(
        offered, key=lambda price: price.usd_per_gpu_hour * rented(price, num_gpus), default=None
    )


def rented(price: Price, num_gpus: int) -> int:
    """GPUs billed if a listing rents whole machines (a count).

    Source: data/prices.csv, ``min_gpus``.

    >>> eight = Price(provider="by the node", usd_per_gpu_hour=1.0, date="2026-11-21", min_gpus=8)
    >>> rented(eight, 12)
    16
    """
    return ceil_div(num_gpus, price.min_gpus) * price.min_gpus


def energy_kwh(time: RunTime, gpu: Gpu, gpus: int) -> Range[float] | None:
    """Kilowatt-hours of the run, whole job: rated board power for all hours.

        hours · GPUs · TDP

    Leaves out: host, cooling, power supplies; a waiting GPU draws less than its TDP.
    Source: derived; TDP from data/gpus.csv.
    """
    if gpu.tdp_w is None:
        return None
    return gpus * gpu.tdp_w / WATTS_PER_KILOWATT * time.total_hours
