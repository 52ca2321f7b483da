"""The planner on questions of ten thousand setups: its time, and its front against brute force.

    python benchmarks/bench_plan.py

The first answer is what to take of the setups that are computed when a fifth is done. Brute force asks ``estimate``
about every setup and compares every point with every other. Prints times; fails if a front or a need differs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # so the script runs from any folder

from estimator import (
    Candidates,
    Method,
    Offer,
    Question,
    TokenLengths,
    Verdict,
    advise,
    candidates,
    catalog,
    estimate,
    middle_dollars,
    middle_hours,
    pick,
)

CARDS = [card for card in catalog.gpus().values() if card.prices and card.supports_bf16]
LENGTHS = TokenLengths.of_quantiles({0.5: 500, 0.9: 1500, 0.99: 3000, 1.0: 4096})
NO_OFFLOAD = {"offload_optimizer": ("none",), "offload_param": ("none",)}
QUESTIONS = {
    "full or LoRA of 0.6B": Question(
        models=("Qwen/Qwen3-0.6B",),
        offers=tuple(Offer(gpu=card, most=12) for card in CARDS),
        num_train_examples=50_000,
        lengths=LENGTHS,
        effective_batch=48,
        methods=(Method.FULL, Method.LORA),
        tried={**NO_OFFLOAD, "strategy": ("ddp", "fsdp"), "gradient_checkpointing": (False, True)},
    ),
    "QLoRA of 8B, many ranks": Question(
        models=("Qwen/Qwen3-8B",),
        offers=tuple(Offer(gpu=card, most=8) for card in CARDS),
        num_train_examples=20_000,
        lengths=LENGTHS,
        effective_batch=64,
        methods=(Method.QLORA,),
        ranks=(8, 16, 32, 64),
        tried={**NO_OFFLOAD, "strategy": ("ddp",), "gradient_checkpointing": (False, True)},
    ),
    "LoRA of 32B, sharded": Question(
        models=("Qwen/Qwen3-32B",),
        offers=tuple(Offer(gpu=card, most=16) for card in CARDS),
        num_train_examples=20_000,
        lengths=LENGTHS,
        effective_batch=64,
        methods=(Method.LORA,),
        keys={"dtype": "bfloat16"},
        ranks=(16, 64),
        tried={
            **NO_OFFLOAD,
            "strategy": ("zero3", "fsdp"),
            "gradient_checkpointing": (False, True),
        },
    ),
}


def brute_force(found: Candidates) -> tuple[set[int], int]:
    """The front by definition, from estimates, and how many needs differ from the arrays'."""
    points, wrong = {}, 0
    for place in range(len(found)):
        one = estimate(found.of(place).model, found.gpu(place), found.setup(place))
        wrong += one.need_high_bytes != found.high_bytes[place]
        wrong += one.need_low_bytes != found.low_bytes[place]
        if one.verdict is Verdict.FITS and one.time and one.cost and one.gpu:
            room = (one.gpu.memory_bytes - one.need_high_bytes) / one.gpu.memory_bytes
            points[place] = (middle_dollars(one), middle_hours(one), -room)
    places = np.array(list(points))
    costs = np.array(list(points.values())).reshape(-1, 3)
    front = set()
    for place, own in zip(places.tolist(), costs, strict=True):
        beaten = (costs <= own).all(axis=1) & (costs < own).any(axis=1)
        if not beaten.any():
            front.add(place)
    return front, wrong


class First:
    """Takes the time of the first answer."""

    def __init__(self) -> None:
        self._start = time.process_time()
        self.seconds = 0.0

    def __call__(self, share: float, so_far: Callable[[], Candidates]) -> None:
        """Follows the progress of ``candidates``."""
        if share >= 0.2 and not self.seconds and pick(so_far()).recommended is not None:
            self.seconds = time.process_time() - self._start


def main() -> None:
    """Time each question cold and warm, and compare its front."""
    failed = False
    for name, question in QUESTIONS.items():
        times, first = [], First()
        for watched in (first, None):
            start = time.process_time()
            found = candidates(question, progress=watched)
            times.append(time.process_time() - start)
        start = time.perf_counter()
        answer = advise(found, replace(question, deadline_hours=100.0))
        again = time.perf_counter() - start
        expected, wrong = brute_force(found)
        differ = len(expected ^ set(answer.front.tolist()))
        failed |= bool(wrong or differ)
        print(
            f"{name:26} {len(found):,} setups: first answer {first.seconds:.1f} s, cold {times[0]:.1f} s, "
            f"warm {times[1]:.1f} s of processor, "
            f"a filter {1000 * again:.0f} ms; front of {len(expected)}, {differ} differ from brute force, "
            f"{wrong} needs differ"
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
