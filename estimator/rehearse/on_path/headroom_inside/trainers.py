"""Reads transformers' Trainer as it is about to train, for the estimate beside the rehearsal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from . import record
from .record import here

OLDEST_PYTHON = (3, 11)
"""Headroom's own; the rehearsal itself runs under older ones, too."""

SEQUENCES = (
    "input_ids", "prompt_ids", "chosen_ids", "rejected_ids", "completion_ids", "chosen_input_ids", "rejected_input_ids",
)  # fmt: skip
"""Columns of tokens: trl 1.16, trainer/dpo_trainer.py, kto_trainer.py, ``DataCollatorFor…``."""
MOST_ROWS = 100_000
"""Rows up to which their lengths are looked at: a second."""


def watch(module: ModuleType) -> None:
    """Read every Trainer before its first step; it saves nothing and deletes no checkpoint."""
    trainer: Any = module.Trainer
    train = trainer.train

    def watched(self: Any, *told: Any, **named: Any) -> Any:
        if record.is_on() and here.keys is None:
            _read(self)
        return train(self, *told, **named)

    trainer.train = watched
    if hasattr(trainer, "_get_train_sampler"):
        trainer._get_train_sampler = longest_first(trainer._get_train_sampler)
    for name in ("_save_checkpoint", "save_model"):
        if hasattr(trainer, name):
            setattr(trainer, name, _not_saved)


def longest_first(get: Any) -> Any:
    """Where rows are drawn at random the longest come first, since a few steps of a run would not meet them."""

    def drawn(self: Any, *told: Any, **named: Any) -> Any:
        sampler = get(self, *told, **named)
        if type(sampler).__name__ != "RandomSampler":
            return sampler
        lengths = _lengths(sampler.data_source)
        if lengths is None or min(lengths) == max(lengths):
            return sampler
        record.note("Rows are drawn at random; here the longest come first.")
        return _LongestFirst(lengths)

    return drawn


class _LongestFirst:
    """A sampler of all rows."""

    def __init__(self, lengths: list[int]) -> None:
        self._order = sorted(range(len(lengths)), key=lambda row: -lengths[row])

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)


def _lengths(rows: Any) -> list[int] | None:
    """Tokens of each row, of all its sequences together; None where they cannot be looked at."""
    if not rows or len(rows) > MOST_ROWS:
        return None
    names = [column for column in getattr(rows, "column_names", None) or () if column in SEQUENCES]
    try:
        if names:
            columns = [[len(sequence or ()) for sequence in rows[name]] for name in names]
            return [sum(row) for row in zip(*columns)]  # noqa: B905 - Python 3.9 has no strict
        if isinstance(rows, list):
            return [len(row["input_ids"]) for row in rows]
    except (KeyError, TypeError, IndexError):
        pass
    return None


def _not_saved(*_: Any, **__: Any) -> None:
    record.note("Saving is not rehearsed: the weights are zeros.")


def _read(trainer: Any) -> None:
    if sys.version_info < OLDEST_PYTHON:
        here.keys_problem = f"its Python is {sys.version_info[0]}.{sys.version_info[1]}, and the estimate needs 3.11"
        return
    root = os.environ["HEADROOM_ROOT"]
    sys.path.append(root)
    try:
        from estimator.preflight import live  # noqa: PLC0415 - found only while its folder is on the path

        length = os.environ.get("HEADROOM_MAX_LENGTH")
        here.keys = live.keys_of(trainer, int(length) if length else None)
    except Exception as problem:  # of whatever kind: the rehearsal goes on without it
        here.keys_problem = f"{problem}"
    finally:
        sys.path.remove(root)
