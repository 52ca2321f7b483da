"""Several GPUs: collectives return at once, and what they would have brought lies there as it was."""

from __future__ import annotations

import os
import pickle
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
    _exchange_objects(torch)
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


# --- objects, such as the texts that all ranks reward -------------------------------------------


def _exchange_objects(torch: Any) -> None:
    """Objects go from rank to rank by the store at which the ranks met: NCCL would move nothing.

    Source: torch 2.13, distributed/distributed_c10d.py, ``all_gather_object``, ``gather_object``,
        ``broadcast_object_list``.
    """
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d as c10d  # noqa: PLC0415 - torch is imported just now

    def all_gathered(objects: list[Any], mine: Any, group: Any = None) -> None:
        objects[:] = exchanged(c10d, mine, group)

    def gathered(mine: Any, objects: list[Any] | None = None, *told: Any, **named: Any) -> None:
        objects = named.get("object_gather_list", objects)
        found = exchanged(c10d, mine, named.get("group", told[1] if len(told) > 1 else None))
        if objects is not None:
            objects[:] = found

    def broadcast(
        objects: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        first = group_src if group_src is not None else _ranks(c10d, group).index(src or 0)
        objects[:] = exchanged(c10d, [*objects], group)[first]

    ours = {"all_gather_object": all_gathered, "gather_object": gathered}
    for name, exchange in {**ours, "broadcast_object_list": broadcast}.items():
        setattr(c10d, name, exchange)
        setattr(torch.distributed, name, exchange)


_exchanges: dict[str, int] = {}
"""How many times the ranks of each group exchanged objects: each rank counts the same."""


def _ranks(c10d: Any, group: Any) -> list[int]:
    return [*c10d.get_process_group_ranks(group or c10d._get_default_group())]


def exchanged(c10d: Any, mine: Any, group: Any) -> list[Any]:
    """The object of each rank of a group, in order; alone, of each as this rank's own."""
    group = group or c10d._get_default_group()
    ranks, rank = _ranks(c10d, group), c10d.get_rank()
    if os.environ.get("HEADROOM_ALONE") == "1" or len(ranks) == 1:
        return [mine for _ in ranks]
    name = group.group_name
    _exchanges[name] = _exchanges.get(name, 0) + 1
    store, at = c10d._get_default_store(), f"headroom/{name}/{_exchanges[name]}"
    store.set(f"{at}/{rank}", pickle.dumps(mine))
    return [mine if other == rank else pickle.loads(store.get(f"{at}/{other}")) for other in ranks]


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
