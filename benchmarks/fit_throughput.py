"""The fitted shares of estimator/time/throughput.py, from the published runs of data/throughput.csv.

    python benchmarks/fit_throughput.py

For each run: what share of the dense rate its matrix products must have reached, if everything else took as long as the
slow end says. Runs that the host held back say nothing and are left out. Prints the shares by generation, the share of
runs inside the bracket with its median width, and the runs outside; judges nothing.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # to be run from anywhere

from estimator.proof.accuracy import PublishedRun, published_runs
from estimator.time.flops import attended_pairs, work
from estimator.time.throughput import SLOW_SHARE
from estimator.values.results import TERA

LOWEST = 0.05
"""The share of runs of a generation that may lie below what is called slow."""


def slow_share(run: PublishedRun) -> float | None:
    """Share of the dense rate that this run's matrix products reached; None where they do not decide."""
    time = run.estimated
    products = (time.hardware_flops_per_step - _attention(run)) / (time.peak_tflops * TERA)
    waits = any(part.name == "waiting for the host" and part.high_seconds for part in time.parts)
    rest = time.step_seconds_high - products / SLOW_SHARE[run.gpu.architecture]
    left = run.step_seconds - rest
    return None if waits or left <= 0 else products / left


def _attention(run: PublishedRun) -> float:
    pairs = attended_pairs(run.model, run.setup.max_length, skips=True)
    whole = work(run.model, run.setup, run.setup.max_length, pairs=pairs)
    return run.setup.gradient_accumulation_steps * (whole.attention + whole.attention_again)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of all lies below."""
    return sorted(values)[int(share * (len(values) - 1))]


def report(name: str, runs: Iterable[PublishedRun]) -> None:
    """Print how many lie inside, and how wide the bracket is."""
    runs = list(runs)
    if runs:
        inside = sum(run.inside for run in runs) / len(runs)
        width = statistics.median(run.width for run in runs)
        print(f"{name:28} {len(runs):4} runs   inside {inside:6.1%}   median width {width:.2f}")


def main() -> None:
    """Fit, and say how well it holds."""
    shares: dict[str, list[float]] = defaultdict(list)
    for run in published_runs():
        if run.gpu.architecture in SLOW_SHARE and (share := slow_share(run)) is not None:
            shares[run.gpu.architecture].append(share)
    for generation, found in shares.items():
        low, middle = quantile(found, LOWEST), statistics.median(found)
        used = SLOW_SHARE[generation]
        print(
            f"{generation:14} {len(found):4} runs   slow share {low:.2f} (used {used})   median {middle:.2f}"
        )
    print()
    kinds: dict[str, Callable[[PublishedRun], bool]] = {
        "one GPU": lambda run: run.setup.num_gpus == 1,
        "several GPUs": lambda run: run.setup.num_gpus > 1,
        "several machines": lambda run: run.crosses,
        "all": lambda run: True,
    }
    for name, chosen in kinds.items():
        report(name, filter(chosen, published_runs()))
    unknown = [replace(run, link_gb_per_s=None) for run in published_runs() if run.crosses]
    report("their network not told", unknown)
    for run in published_runs():
        if not run.inside:
            time = run.estimated
            ends = f"{time.step_seconds_low:.2f} to {time.step_seconds_high:.2f}"
            print(f"  {run.step_seconds:8.2f} s, not {ends:>18}   {run.id}")


if __name__ == "__main__":
    main()
