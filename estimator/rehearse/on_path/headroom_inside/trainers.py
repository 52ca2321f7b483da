"""Reads transformers' Trainer as it is about to train, for the estimate beside the rehearsal."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from . import record
from .record import here

OLDEST_PYTHON = (3, 11)
"""Headroom's own; the rehearsal itself runs under older ones, too."""


def watch(module: ModuleType) -> None:
    """Read every Trainer before its first step; it saves nothing and deletes no checkpoint."""
    trainer: Any = module.Trainer
    train = trainer.train

    def watched(self: Any, *told: Any, **named: Any) -> Any:
        if record.is_on() and here.keys is None:
            _read(self)
        return train(self, *told, **named)

    trainer.train = watched
    for name in ("_save_checkpoint", "save_model"):
        if hasattr(trainer, name):
            setattr(trainer, name, _not_saved)


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

        here.keys = live.keys_of(trainer)
    except Exception as problem:  # of whatever kind: the rehearsal goes on without it
        here.keys_problem = f"{problem}"
    finally:
        sys.path.remove(root)
