"""Plays a setup in a process of its own, with as much memory as it is given.

The parent has imported the libraries and allocated nothing, so a fork costs milliseconds.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from estimator.contract.setups import parse

AMPLE = 2**40
"""Bytes of a card that is never full."""


class Trial(NamedTuple):
    """What became of a run."""

    allocated: int
    """``torch.cuda.max_memory_allocated``, loading included, in bytes."""
    reserved: int
    """``torch.cuda.max_memory_reserved``, in bytes."""
    died: str
    """PyTorch's out-of-memory message; empty where the run went through."""


def trial(setup: Mapping[str, Any], memory: int = AMPLE, rank: int = 0) -> Trial:
    """Play one rank of a setup, an object of the contract with a config as its model, on so many bytes."""
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_play, args=(there, setup, memory, rank))
    process.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the run ended with status {process.exitcode}") from None
    process.join()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def _play(pipe: Connection, given: Mapping[str, Any], memory: int, rank: int) -> None:
    _quiet()
    import torch

    from tests.verify.null import one_gpu

    torch.cuda._is_in_bad_fork = lambda: False  # no driver loses its context: there is none
    died = ""
    try:
        one_gpu.null.null_limit(memory)
        _, _, setup = parse(given)
        split = setup.allocator.max_split_size_mb
        torch.cuda.memory._set_allocator_settings(
            f"expandable_segments:{setup.allocator.expandable_segments},"
            f"roundup_power2_divisions:{setup.allocator.roundup_power2_divisions}"
            + ("" if split is None else f",max_split_size_mb:{split}")
        )
        one_gpu.play(given["model"], setup, rank)
    except torch.OutOfMemoryError as error:
        died = str(error).split(" If reserved but")[0]
    except Exception:
        pipe.send(traceback.format_exc())
        return
    pipe.send(Trial(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), died))


def _quiet() -> None:
    log = os.open(os.environ.get("NULL_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
