"""Plays every case and writes data/played.csv: what PyTorch's own allocator allocates, reserves and needs.

usage: python -m tests.verify.null.played [TEXT …]     only the cases whose id has one of these texts; other rows stay
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from estimator.proof.replays import least_memory

TABLE = Path(__file__).parents[3] / "data" / "played.csv"
COLUMNS = (
    "id",
    "setup",
    "allocated_bytes",
    "reserved_bytes",
    "least_bytes",
    "versions",
    "retrieved",
)
PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "bitsandbytes", "deepspeed")


def played(name: str, setup: dict[str, Any]) -> dict[str, Any]:
    """The row of a setup: the most of any rank."""
    from estimator.contract.setups import parse
    from tests.verify.null.ranks import differing
    from tests.verify.null.trial import trial

    spare = {rank: trial(setup, rank=rank) for rank in differing(parse(setup)[2])}
    least = 0
    for rank in sorted(spare, key=lambda rank: -spare[rank].allocated):
        if least and not trial(setup, least, rank).died:
            continue
        least = least_memory(
            lambda memory, rank=rank: bool(trial(setup, memory, rank).died),
            max(least, spare[rank].allocated - 1),
            spare[rank].reserved,
        )
    return {
        "id": name,
        "setup": json.dumps(setup, separators=(",", ":")),
        "allocated_bytes": max(value.allocated for value in spare.values()),
        "reserved_bytes": max(value.reserved for value in spare.values()),
        "least_bytes": least,
        "versions": ", ".join(
            f"{package} {version(package)}" for package in PACKAGES if _is_here(package)
        ),
        "retrieved": date.today().isoformat(),
    }


def _is_here(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def name_of(setup: dict[str, Any]) -> str:
    """A readable identifier: family and layers, method, batch × length, and all other keys."""
    model = setup["model"]
    layers = model.get("num_hidden_layers", model.get("n_layer"))
    width = model.get("hidden_size", 768)
    shown = {"model", "gpu", "method", "per_device_train_batch_size", "max_length"}
    others = [f"{key}={value}" for key, value in setup.items() if key not in shown]
    shape = f"{setup['per_device_train_batch_size']}x{setup['max_length']}"
    return " ".join([f"{model['model_type']}-{width}x{layers}", setup["method"], shape, *others])


def main(wanted: Iterable[str]) -> None:
    """Play the cases and write the table."""
    from tests.verify.null.cases import cases

    names = {name_of(setup): setup for setup in cases()}
    rows = {row["id"]: row for row in _stored()}
    for name, setup in names.items():
        if wanted and not any(text in name for text in wanted):
            continue
        try:
            rows[name] = played(name, setup)
        except RuntimeError as problem:
            print(f"{name}: {problem}", flush=True)
            continue
        print(name, *(rows[name][column] for column in COLUMNS[2:5]), flush=True)
        _write(rows[name] for name in names if name in rows)


def _stored() -> list[dict[str, str]]:
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def _write(rows: Iterable[dict[str, Any]]) -> None:
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    import peft  # noqa: F401 - libraries that a run would import are here before it forks
    import torch  # noqa: F401
    import transformers  # noqa: F401

    main(sys.argv[1:])
