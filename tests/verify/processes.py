"""Runs one function in several processes that communicate over gloo."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS = 2


def in_two_processes(folder: Path, call: Callable[..., Any], **told: Any) -> list[Any]:
    """The same in two."""
    return in_processes(RANKS, folder, call, **told)


def in_processes(ranks: int, folder: Path, call: Callable[..., Any], **told: Any) -> list[Any]:
    """Each rank's result, rank 0 first; the text of the exception if it raised one."""
    spawn = multiprocessing.get_context("spawn")
    found = spawn.Queue()
    store = str(folder / "store")
    Path(store).unlink(missing_ok=True)
    workers = [
        spawn.Process(target=_run, args=(rank, ranks, store, call, told, found))
        for rank in range(ranks)
    ]
    for worker in workers:
        worker.start()
    answers = dict(found.get(timeout=240) for _ in workers)
    for worker in workers:
        worker.join()
    return [answers[rank] for rank in range(ranks)]


def _run(
    rank: int, ranks: int, store: str, call: Callable[..., Any], told: Any, found: Any
) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    try:
        answer = call(**told)
    except (ValueError, AssertionError, AttributeError, RuntimeError) as error:
        answer = f"{type(error).__name__}: {error}"
    found.put((rank, answer))
    distributed.barrier()
    distributed.destroy_process_group()
