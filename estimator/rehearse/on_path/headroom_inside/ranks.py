"""Several GPUs: collectives return at once, and what they would have brought lies there as it was."""

from __future__ import annotations

import os
import time
from types import ModuleType
from typing import Any

from . import record

LONGER_THAN_A_LOOK = 0.25
"""Seconds between two passes. NCCL's watchdog looks every 0.1 s for collectives that have ended, and what these used is
freed at the next one: torch 2.13, csrc/distributed/c10d/ProcessGroupNCCL.hpp, ``shelvesToUnstash_``. A pass takes a
card longer than that, and this one 0.02 s: DDP's first bucket would outlive it."""


def answer(torch: Any) -> None:
    """Let ranks agree without a word from each other."""
    distributed = torch.nn.parallel.distributed
    # compares the ranks' shapes, all of which are read as zero here
    distributed._verify_param_shape_across_processes = lambda *_, **__: None
    if os.environ.get("HEADROOM_ALONE") == "1":
        _alone(torch)


def pause(torch: Any) -> None:
    """Let NCCL's watchdog look."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        time.sleep(LONGER_THAN_A_LOOK)


def all_agree(utils: ModuleType) -> None:
    """DeepSpeed compares each rank's list of modules with rank 0's, which never comes."""
    module: Any = utils
    for name in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
        if hasattr(module, name):
            setattr(module, name, lambda *_, **__: None)


def no_step_overflows(stage: ModuleType) -> None:
    """DeepSpeed reads a flag and a norm from blocks that may hold what lay there before, and would skip the step."""
    module: Any = stage
    if hasattr(module, "is_invalid_grad_norm"):
        module.is_invalid_grad_norm = lambda _: False
    for name in ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"):
        optimizer = vars(module).get(name)
        if optimizer is not None and "has_overflow" in vars(optimizer):
            optimizer.has_overflow = _never(optimizer.has_overflow)


def _never(asked: Any) -> Any:
    def answered(*told: Any, **named: Any) -> bool:
        asked(*told, **named)
        return False

    return answered


# --- one rank without the others ----------------------------------------------------------------


def _alone(torch: Any) -> None:
    """The process group has a store that answers for the ranks that are not there."""
    from torch.distributed import distributed_c10d as c10d  # noqa: PLC0415 - torch is imported just now

    begin = c10d.init_process_group
    kept_store = store(torch)

    def begun(*_: Any, **named: Any) -> Any:
        record.note("The other ranks are not there; what they would send is as this rank's own.")
        kept = {
            name: named[name] for name in ("timeout", "pg_options", "device_id") if name in named
        }
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return begin("nccl", store=kept_store, rank=rank, world_size=size, **kept)

    c10d.init_process_group = torch.distributed.init_process_group = begun


def store(torch: Any) -> Any:
    """A store that answers for ranks that are not there. NCCL's threads ask it until the process ends."""

    class Store(torch.distributed.Store):  # type: ignore[misc]
        """Keys of this rank; of others, zeros as many as NCCL's identifier has."""

        def __init__(self) -> None:
            super().__init__()
            self._values: dict[str, bytes] = {}

        def set(self, key: str, value: Any) -> None:
            self._values[key] = value

        def get(self, key: str) -> bytes:
            return self._values.get(key, bytes(128))

        def add(self, key: str, amount: int) -> int:
            total = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(total).encode()
            return total

        def check(self, _: list[str]) -> bool:
            return False

        def wait(self, *_: Any) -> None:
            pass

    return Store()
