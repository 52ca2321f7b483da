"""One estimate of an 80-layer model, as a multiple of a floor measured in the same run.

    python benchmarks/bench_estimate.py

The floor is a loop of 100,000 additions in Python, so that the ratio survives a change of machine. Every run has
a different context length, as when a slider moves, so that no cached answer replaces the arithmetic. Each setup is
timed as the median of its runs, with runs of the floor in between. Prints only, without a threshold.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # to be run from anywhere

from estimator import (
    Method,
    MixedPrecision,
    Model,
    TrainingSetup,
    catalog,
    estimate,
)

ADDITIONS = 100_000
RUNS = 25

GPU = catalog.gpu("A100-SXM4-80GB")
LLAMA_70B = Model(
    model_type="llama",
    vocab_size=128_256,
    hidden_size=8192,
    intermediate_size=28_672,
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=8192,
)

SETUPS = {
    "full, bfloat16, autocast": TrainingSetup(),
    "full, no autocast": TrainingSetup(mixed_precision=MixedPrecision.NO),
    "full, checkpointing": TrainingSetup(gradient_checkpointing=True),
    "LoRA": TrainingSetup(method=Method.LORA),
    "QLoRA, checkpointing": TrainingSetup(method=Method.QLORA, gradient_checkpointing=True),
}


def floor() -> int:
    """A fixed amount of Python work."""
    total = 0
    for number in range(ADDITIONS):
        total += number
    return total


def milliseconds(work: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    """Times every setup and the floor alternately, and prints medians and ratios."""
    floors: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in SETUPS}
    for run in range(RUNS):
        for name, setup in SETUPS.items():
            asked = setup.replace(max_length=1024 + 8 * run)
            floors.append(milliseconds(floor))
            times[name].append(milliseconds(partial(estimate, LLAMA_70B, GPU, asked)))
    base = statistics.median(floors)
    print(f"floor: {ADDITIONS:,} additions in {base:.2f} ms (median of {len(floors)})")
    for name, measured in times.items():
        median = statistics.median(measured)
        print(f"{name:26} {median:7.2f} ms   {median / base:5.2f} × floor")


if __name__ == "__main__":
    main()
