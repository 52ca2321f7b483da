"""Setups drawn at random, each a number's own: every part of the contract comes up, also what few people combine."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from estimator import catalog
from estimator.values.declaration import Key, Widget
from estimator.values.keys import KEYS
from estimator.values.kinds import (
    Choice,
    Flag,
    ImageSizes,
    Indices,
    Momentum,
    Names,
    Number,
    Percentages,
    Ranks,
    WholeNumber,
)
from estimator.values.methods import Method
from estimator.values.objective import OBJECTIVES
from estimator.values.strategies import Strategy
from tests.beside import BESIDE
from tests.corpus.answers import answer

TRIES = 20
"""Draws of the other keys until a setup is not refused; the last one stands."""
REFUSED = 16
"""Every so many numbers, the first draw stands even where it is refused."""
ALWAYS = (
    "method",
    "objective",
    "strategy",
    "num_gpus",
    "max_length",
    "per_device_train_batch_size",
)
"""Keys that are drawn for every setup, or for none."""
COUNTS = (2, 2, 4, 8, 8, 16, 64)
BATCHES = (1, 2, 2, 3, 4, 8)
LENGTHS = (64, 128, 512, 777, 1024, 1024, 2048, 4096, 8192)
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj")
UNTYPED = frozenset({"beside", "tool_version", "torch_version", "version"})
"""Keys whose text means something of its own."""


def drawn(number: int) -> dict[str, object]:
    """The setup of a number, as the contract reads it: what is trained and how it is shared stays, the rest is drawn
    until it is answered.
    """
    shape = _shape(number)
    for attempt in range(TRIES):
        setup = _with_keys(shape, random.Random(f"{number} {attempt}"))
        if number % REFUSED == 0 or "error" not in answer(setup):
            break
    return setup


def _shape(number: int) -> dict[str, object]:
    pick = random.Random(number)
    shape: dict[str, object] = {"method": str(pick.choice(list(Method)))}
    if pick.random() < 0.6:
        shape["objective"] = str(pick.choice(list(OBJECTIVES.values())))
    if pick.random() < 0.5:
        shared = [strategy for strategy in Strategy if strategy is not Strategy.NONE]
        shape |= {"strategy": str(pick.choice(shared)), "num_gpus": pick.choice(COUNTS)}
    if shape.get("strategy") == Strategy.HSDP:
        shape |= {"num_gpus": pick.choice((4, 8, 16)), "dp_replicate_size": 2}
    if shape.get("objective") in ("grpo", "rloo") and pick.random() < 0.5:
        shape |= {"use_vllm": True}
    return shape


@cache
def _models() -> tuple[tuple[str, ...], ...]:
    """Hub ids, family by family."""
    families: dict[str, list[str]] = {}
    for name, row in sorted(catalog.models().items()):
        families.setdefault(row.model.model_type, []).append(name)
    return tuple(map(tuple, families.values()))


def _with_keys(shape: Mapping[str, object], pick: random.Random) -> dict[str, object]:
    setup = {
        "model": pick.choice(pick.choice(_models())),
        "gpu": pick.choice(sorted(catalog.gpus())),
        "max_length": pick.choice(LENGTHS),
        "per_device_train_batch_size": pick.choice(BATCHES),
        **shape,
    }
    drawn = [key for key in KEYS if not (key.name in ALWAYS or key.name in UNTYPED or key.modelled)]
    of_engines = [key for key in drawn if key.name.startswith("vllm_")]
    engine = pick.sample(of_engines, 2) if "use_vllm" in shape else []
    for key in [*engine, *pick.sample(drawn, pick.choice((0, 1, 2, 3, 5, 8)))]:
        beside = BESIDE.get(key.name, {})
        if any(shape.get(name, value) != value for name, value in beside.items()):
            continue  # what is trained and how it is shared stays
        if (value := _value(key, pick)) is not None:
            setup |= {**beside, key.name: value}
    return setup


def _value(key: Key, pick: random.Random) -> Any:
    """A value of a key; None: none is drawn."""
    steps: Sequence[float] = key.widget.steps if isinstance(key.widget, Widget) else ()
    match key.kind:
        case Choice(words=words):
            return str(pick.choice([*words]))
        case Flag():
            return not key.default
        case WholeNumber(low=low, high=high):
            return pick.choice(
                [value for value in steps or _around(key.default) if low <= value <= high]
            )
        case Number(low=low, high=high):
            return pick.choice(
                [number for number in (0.05, 0.3, 0.5, 0.9, 1.5, 40.0) if low < number < high]
                or [high]
            )
        case Names():
            return sorted(pick.sample(LINEARS, pick.choice((1, 2, 4))))
        case Indices():
            return sorted(pick.sample(range(8), pick.choice((1, 3))))
        case Ranks():
            return {name: pick.choice((2, 8, 64)) for name in pick.sample(LINEARS, 2)}
        case ImageSizes():
            return [
                [pick.choice((224, 448, 1000)), pick.choice((224, 640))]
                for _ in range(pick.choice((1, 2)))
            ]
        case Percentages():
            return "62/10/20/0/8"
        case Momentum():
            return "momentum=0.9"
    return None


def _around(default: object) -> Sequence[int]:
    if not isinstance(default, int) or default < 1:
        return (1, 2, 4, 16, 1_000, 100_000)
    return (max(1, default // 4), max(1, default // 2), default * 2, default * 3)


def setup_of(line: Mapping[str, object]) -> dict[str, object]:
    """The setup of a line of the corpus."""
    setup = line["setup"]
    assert isinstance(setup, dict)
    return setup
