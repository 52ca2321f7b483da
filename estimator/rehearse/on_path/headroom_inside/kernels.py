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


def drive_nothing(module: ModuleType) -> None:
    """Triton asks its driver what the card is, and compiles a helper to do so; here torch answers.

    Source: triton 3.7, backends/nvidia/driver.py, CudaUtils; driver.c, ``getDeviceProperties``.
    """
    driver: Any = module
    driver.CudaUtils = CardUtils


class CompiledModule:
    """A library of kernels that would be compiled; each is launched and computes nothing."""

    def plan(self, *_: Any, **__: Any) -> list[int]:
        """How an attention is cut up, which its kernel alone reads: prefill.py and decode.py, ``_plan_info``."""
        return [0]

    def __getattr__(self, name: str) -> Any:
        return _launched


def build_nothing(module: ModuleType) -> None:
    """FlashInfer's kernels are not compiled by nvcc, which takes it minutes; what its callers allocate is allocated.

    Source: flashinfer 0.7, jit/core.py, JitSpec.build_and_load.
    """
    if hasattr(module, "JitSpec"):
        module.JitSpec.build_and_load = lambda *_, **__: CompiledModule()


class CardUtils:
    """What the helper says of a card; all else that it can do is done."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Sizes in bytes; clocks in kHz, which nobody has here."""
        card = record.here.torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": card.shared_memory_per_block_optin,
            "max_num_regs": card.regs_per_multiprocessor,
            "multiprocessor_count": card.multi_processor_count,
            "warpSize": card.warp_size,
            "sm_clock_rate": 1_000_000,
            "mem_clock_rate": 1_000_000,
            "mem_bus_width": 256,
        }

    def __getattr__(self, name: str) -> Any:
        return _launched


def compile_nothing(torch: Any) -> None:
    """``torch.compile`` leaves everything as it is, and says so: its own kernels are not played."""
    compiled = torch.compile

    @functools.wraps(compiled)
    def left(what: Any = None, *told: Any, **named: Any) -> Any:
        if getattr(what, "__module__", "") == "torchao.optim.adam":
            return functools.partial(_low_bit_step, torch)
        if isinstance(
            getattr(what, "__self__", what), torch.nn.Module
        ):  # not a library's own function
            record.here.is_compiled = True
            record.note("torch.compile is left out; a compiled step usually keeps less.")
        return compiled(what, *told, **{**named, "disable": True})

    torch.compile = left


def _low_bit_step(torch: Any, p: Any, *told: Any) -> None:
    """The compiled step of a matrix in torchao's AdamW8bit or AdamW4bit: what lies between its kernels.

    Source: torchao 0.18, optim/adam.py, single_param_adam; the code that torch 2.13's inductor writes for it: scales,
    moments in float32, and for 4 bits their codes as int64. A vector's step is one kernel.
    """
    moment = told[2]
    if p.dim() < 2 or not hasattr(moment, "codes"):
        return
    count, scales = p.numel(), moment.scale.numel()
    dtypes = [(scales, torch.float32)] * 2 + [(count, torch.float32)] * 2
    if moment.codes.numel() < count:
        dtypes += [(count, torch.int64)] * 2
    held = [torch.empty(size, dtype=dtype, device=p.device) for size, dtype in dtypes]
    del held
