"""What a setup answers, whole, and the digest of each part of it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimator.__main__ import answer_lines

SETUPS = Path(__file__).with_name("setups.jsonl")
PARTS = {
    "memory": "peak_ phases moments components",
    "need": "need_ allocated_ least_ device_ capacity_ verdict fits first_overflow per_gpu",
    "host": "stored_ host_ nvme_ disk_ run_disk_ paged_",
    "time": "step_ tokens_per_second_ flops_ mfu_ steps_per_epoch total_steps epoch_hours_ total_hours_",
    "money": "energy_ usd_ price_ cost_",
    "words": "assumptions error",
}
"""Parts of an answer, by how its keys begin; what is in none of them belongs to "rest"."""
DIGITS = 9
"""Significant digits of a float: the last ones may differ from machine to machine."""


def answer(setup: Mapping[str, object]) -> dict[str, Any]:
    """The answer of the command line to this setup, or its ``error``."""
    given, said = io.BytesIO(json.dumps(setup).encode() + b"\n"), io.StringIO()
    answer_lines(given, said)
    whole: dict[str, Any] = json.loads(said.getvalue())
    return whole


def parts(whole: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """An answer's keys, part by part."""
    parted: dict[str, dict[str, Any]] = {}
    for key, value in whole.items():
        part = next(
            (name for name, keys in PARTS.items() if key.startswith(tuple(keys.split()))), "rest"
        )
        parted.setdefault(part, {})[key] = value
    return parted


def digests(whole: Mapping[str, Any]) -> dict[str, str]:
    """Ten hexadecimal digits a part."""
    return {name: _digest(part) for name, part in parts(whole).items()}


def _digest(part: object) -> str:
    return hashlib.sha256(json.dumps(_rounded(part), sort_keys=True).encode()).hexdigest()[:10]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def read(count: int | None = None) -> list[dict[str, Any]]:
    """Lines of the corpus, all or as many as ``count``, spread evenly: ``setup``, and a digest by part."""
    lines = SETUPS.read_text().splitlines()
    few = min(count or len(lines), len(lines))
    return [json.loads(lines[at * len(lines) // few]) for at in range(few)]
