"""Dollars and kilowatt-hours of a run.

Dollars are US dollars at one price for each GPU-hour, which is named with its provider and its day.
"""

from __future__ import annotations

from estimator.results import RunCost, RunTime
from estimator.specs import Gpu, Price, TrainingSetup

WATTS_PER_KILOWATT = 1000


def run_cost(time: RunTime, gpu: Gpu, setup: TrainingSetup) -> RunCost | None:
    """US dollars of the run, whole job; None where no price is known.

        hours · GPUs · price     price: one's own, else the cheapest listing that rents as few GPUs

    Leaves out: storage, traffic, idle hours, taxes; that providers bill by the minute or the second.
    Error: listings of one GPU differ by 2 to 4 times between providers (data/prices.csv).
    Source: data/prices.csv, by row.
    """
    usd, listing = setup.usd_per_gpu_hour, None
    if usd is None:
        listing = cheapest(gpu, setup.num_gpus)
        if listing is None:
            return None
        usd = listing.usd_per_gpu_hour
    gpu_hours_low = setup.num_gpus * time.total_hours_low
    gpu_hours_high = setup.num_gpus * time.total_hours_high
    return RunCost(
        usd_per_gpu_hour=usd,
        price=listing,
        cost_usd_low=gpu_hours_low * usd,
        cost_usd_high=gpu_hours_high * usd,
    )


def cheapest(gpu: Gpu, num_gpus: int) -> Price | None:
    """The listing with the lowest US dollars a GPU-hour among those that rent no more GPUs than are asked for.

    Source: data/prices.csv, by row.

    >>> eight = Price(provider="by the node", usd_per_gpu_hour=1.0, date="2026-11-21", min_gpus=8)
    >>> cheapest(Gpu(name="card", memory_bytes=2**34, prices=(eight,)), 1) is None
    True
    """
    offered = [price for price in gpu.prices if price.min_gpus <= num_gpus]
    return min(offered, key=lambda price: price.usd_per_gpu_hour, default=None)


def energy_kwh(time: RunTime, gpu: Gpu, setup: TrainingSetup) -> tuple[float, float] | None:
    """Kilowatt-hours of the run, low and high, whole job: the boards at their rated power for all its hours.

        hours · GPUs · TDP

    Leaves out: the host, cooling, power supplies; a GPU that waits draws less than its TDP.
    Source: derived; TDP from data/gpus.csv.
    """
    if gpu.tdp_w is None:
        return None
    kilowatts = setup.num_gpus * gpu.tdp_w / WATTS_PER_KILOWATT
    return kilowatts * time.total_hours_low, kilowatts * time.total_hours_high
