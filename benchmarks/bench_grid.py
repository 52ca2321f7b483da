"""Times need, hours and dollars of a million setups of one model, and compares 10,000 needs with single estimates.

    python benchmarks/bench_grid.py [--random 10000]

Each kind of step is asked twice: cold, when its programs are still to be recorded, and warm. Processor time is printed
beside the clock's, since other work on the machine slows the one more than the other, and the warm one as a multiple
of a floor: a sum of a hundred products of a million numbers, timed beside it. Prints; fails only where a need
differs by a byte.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one core, whatever else the machine does

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # to be run from anywhere

from estimator import Method, Strategy, TrainingSetup, catalog, need, needs, runs

GPU = catalog.gpu("A100-SXM4-80GB")
MODEL = catalog.model("mistralai/Mistral-7B-v0.1")
BATCHES = np.arange(1, 101)
LENGTHS = 128 * np.arange(1, 101)
FSDP: Mapping[str, Any] = {"strategy": Strategy.FSDP, "num_gpus": 8}
SETUPS: Mapping[str, tuple[TrainingSetup, Mapping[str, Any]]] = {
    "full, checkpointing": (
        TrainingSetup(gradient_checkpointing=True),
        {"gradient_accumulation_steps": np.arange(1, 101)},
    ),
    "LoRA, 20 ranks": (
        TrainingSetup(method=Method.LORA),
        {"gradient_accumulation_steps": np.arange(1, 6), "lora_r": 8 * np.arange(1, 21)},
    ),
    "LoRA, FSDP, 5 numbers of GPUs": (
        TrainingSetup(method=Method.LORA, **FSDP),
        {
            "gradient_accumulation_steps": np.arange(1, 6),
            "lora_r": np.array([4, 8, 16, 64]),
            "num_gpus": np.array([2, 4, 8, 16, 32]),
        },
    ),
}


def grid(axes: Mapping[str, Any]) -> dict[str, Any]:
    """A million setups: every combination of batch, length and the other numbers."""
    every = {"per_device_train_batch_size": BATCHES, "max_length": LENGTHS, **axes}
    meshed = np.meshgrid(*every.values(), indexing="ij")
    return dict(zip(every, meshed, strict=True))


def timed(task: Callable[[], None]) -> tuple[float, float]:
    """Wall-clock and CPU seconds."""
    clock, processor = time.perf_counter(), time.process_time()
    task()
    return time.perf_counter() - clock, time.process_time() - processor


def floor() -> None:
    """A hundred products of a million numbers, summed in chunks that fit the processor's cache."""
    for start in range(0, FLOOR.size, 8192):
        part = FLOOR[start : start + 8192]
        total = np.zeros_like(part)
        for factor in range(100):
            total += part * factor


FLOOR = np.linspace(0, 1, 1_000_000)


def differing(setup: TrainingSetup, count: int, seed: int) -> int:
    """The number of random setups for which arrays and single estimates differ."""
    chance = np.random.default_rng(seed)
    asked = {
        "per_device_train_batch_size": chance.integers(1, 257, count),
        "max_length": chance.integers(1, 40_000, count),
        "lora_r": chance.choice([4, 8, 16, 64], count),
        "gradient_accumulation_steps": chance.integers(1, 4, count),
    }
    many = needs(MODEL, GPU, setup, **asked)
    wrong = 0
    for place in range(count):
        cell: dict[str, Any] = {key: int(values[place]) for key, values in asked.items()}
        one = need(MODEL, GPU, replace(setup, **cell))
        wrong += tuple(one) != (many.low_bytes[place], many.high_bytes[place])
    return wrong


def _said(seconds: tuple[float, float]) -> str:
    return f"{seconds[0]:5.2f} s ({seconds[1]:5.2f} s of processor)"


def main() -> None:
    """Times each kind of step, cold and warm, then compares random setups."""
    parser = argparse.ArgumentParser(description="need, hours and dollars of a million setups")
    parser.add_argument("--random", type=int, default=10_000, help="setups that are compared")
    arguments = parser.parse_args()
    for name, (setup, axes) in SETUPS.items():
        asked = grid(axes)
        count = asked["max_length"].size

        def ask(setup: TrainingSetup = setup, asked: Mapping[str, Any] = asked) -> None:
            needs(MODEL, GPU, setup, **asked)
            runs(MODEL, GPU, setup, **asked)

        cold, warm = timed(ask), timed(ask)
        base = timed(floor)
        print(
            f"{name:30} {count:,} setups: cold {_said(cold)}, warm {_said(warm)}, "
            f"{warm[1] / base[1]:.1f} × floor ({_said(base)})"
        )
    wrong = 0
    share = -(-arguments.random // len(SETUPS))
    for seed, (setup, _) in enumerate(SETUPS.values()):
        wrong += differing(setup, share, seed)
    print(f"{share * len(SETUPS):,} random setups: {wrong} differ from the reader of one setup")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
