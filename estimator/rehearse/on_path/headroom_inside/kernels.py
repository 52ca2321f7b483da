"""Kernels that are compiled while a run goes on: launches succeed and compute nothing."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from . import record


def _launched(*_: Any, **__: Any) -> None:
    """What a launch returns; nobody reads it."""


def launch_nothing(module: ModuleType) -> None:
    """Triton's kernels are neither compiled nor tuned; what their callers allocate is allocated.

    Source: triton 3.7, runtime/jit.py, JITFunction.run; runtime/autotuner.py, Autotuner.run, Heuristics.run.
    """
    for name in ("JITFunction", "Autotuner", "Heuristics"):
        if hasattr(module, name):
            getattr(module, name).run = _launched


def compile_nothing(torch: Any) -> None:
    """``torch.compile`` leaves everything as it is, and says so: its own kernels are not played."""
    compiled = torch.compile

    @functools.wraps(compiled)
    def left(what: Any = None, *told: Any, **named: Any) -> Any:
        if isinstance(
            getattr(what, "__self__", what), torch.nn.Module
        ):  # not a library's own function
            record.here.is_compiled = True
            record.note("torch.compile is left out; a compiled step usually keeps less.")
        return compiled(what, *told, **{**named, "disable": True})

    torch.compile = left
