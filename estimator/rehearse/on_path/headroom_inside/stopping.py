"""Follows torch through its phases: where memory runs out, and when enough steps were taken."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from . import record, saving, values
from .record import here

FORWARD, BACKWARD, OPTIMIZER, LOADING = "forward", "backward", "optimizer", "loading"
BEFORE_OPTIMIZER = "before the optimizer"
"""Between the backward pass and the optimizer: clipping, and whatever the script does there."""


def torch_is_here(torch: ModuleType) -> None:
    """Watch a torch that has just been imported."""
    here.torch = torch
    here.peaks = record.Peaks(torch._C)
    _follow_backward(torch)
    _follow_optimizers(torch)
    _follow_the_first_forward(torch)
    values.of_torch(torch)
    saving.write_no_files(torch)
    torch.cuda._lazy_call(lambda: torch._C._cuda_attach_out_of_memory_observer(_out_of_memory))
    if torch.backends.cuda.is_built() and hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
        torch.backends.cuda.enable_cudnn_sdp(False)
        if int(os.environ.get("NULL_CAPABILITY", "80")) >= 90:
            record.note(
                "cuDNN's attention is not played; PyTorch's flash attention runs in its place."
            )


# --- phases -------------------------------------------------------------------------------------


def _follow_backward(torch: Any) -> None:
    backward = torch.autograd.backward
    depth = [0]

    def followed(*told: Any, **named: Any) -> Any:
        if depth[0] or not record.is_on():  # checkpointing calls it again
            return backward(*told, **named)
        depth[0] += 1
        try:
            record.close(here.now, here.steps + 1, BACKWARD)
            return backward(*told, **named)
        finally:
            depth[0] -= 1
            if not sys.exc_info()[0]:
                record.close(BACKWARD, here.steps + 1, FORWARD)

    torch.autograd.backward = followed


def _follow_optimizers(torch: Any) -> None:
    from torch.optim import optimizer  # noqa: PLC0415 - torch is imported just now

    wanted = int(os.environ.get("HEADROOM_STEPS", "4"))
    taken: dict[int, int] = {}
    inside: list[int] = []

    def before(of: Any, *_: Any) -> None:
        if record.is_on() and not inside:
            name = BEFORE_OPTIMIZER if here.now == FORWARD else here.now
            record.close(name, here.steps + 1, OPTIMIZER)
        inside.append(id(of))

    def after(of: Any, *_: Any) -> None:
        inside.pop()
        if inside or not record.is_on():
            return
        record.close(OPTIMIZER, here.steps + 1, FORWARD)
        taken[id(of)] = taken.get(id(of), 0) + 1
        here.steps = max(taken.values())
        if here.steps >= wanted:
            record.finish()

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


def _follow_the_first_forward(torch: Any) -> None:
    def first(module: Any, given: Any) -> None:
        on_card = any(isinstance(it, torch.Tensor) and it.is_cuda for it in given) or any(
            it.is_cuda for it in module.parameters(recurse=True)
        )
        if torch.is_grad_enabled() and on_card:
            hook.remove()
            if here.now == LOADING:
                record.close(LOADING, 0, FORWARD)

    hook = torch.nn.modules.module.register_module_forward_pre_hook(first)


# --- where memory runs out ----------------------------------------------------------------------


def _out_of_memory(device: int, asked: int, _: int, free: int) -> None:
    """PyTorch calls this where an allocation failed, before it raises."""
    frames = list(_stack())
    stats = here.torch.cuda.memory_stats(device)
    script = next((it for it in frames if not _is_installed(it)), None)
    innermost = next((it for it in frames if not _is_in_torch(it)), frames[0] if frames else None)
    here.failed.append(
        {
            "asked": asked,
            "allocated": stats["allocated_bytes.all.current"],
            "reserved": stats["reserved_bytes.all.current"],
            "free": free,
            "device": device,
            "phase": here.now,
            "step": here.steps + 1,
            "line": _line(script),
            "library_line": _line(innermost) if innermost is not script else None,
            "module": _module(frames),
        }
    )


def _stack() -> Iterator[FrameType]:
    """The main thread's frames, the innermost first: a backward pass runs in a thread of its own, without frames."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main or 0)
    while frame is not None:
        if os.path.dirname(frame.f_code.co_filename) != os.path.dirname(__file__):
            yield frame
        frame = frame.f_back


_INSTALLED = tuple(
    {os.path.abspath(it) + os.sep for it in sysconfig.get_paths().values()} - {os.sep}
)


def _is_installed(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    parts = ("site-packages", "dist-packages")
    return (
        file.startswith("<")
        or any(f"{os.sep}{it}{os.sep}" in file for it in parts)
        or os.path.abspath(file).startswith(_INSTALLED)
    )


def _is_in_torch(frame: FrameType) -> bool:
    return f"{os.sep}torch{os.sep}" in frame.f_code.co_filename


def _line(frame: FrameType | None) -> dict[str, Any] | None:
    if frame is None:
        return None
    file, number = frame.f_code.co_filename, frame.f_lineno
    return {
        "file": file,
        "line": number,
        "function": frame.f_code.co_name,
        "text": linecache.getline(file, number).strip(),
    }


def _module(frames: list[FrameType]) -> str:
    """The full name of the innermost module that is being called; empty outside of a forward pass."""
    called = [
        it.f_locals["self"]
        for it in frames
        if it.f_code.co_name in {"_call_impl", "_wrapped_call_impl"} and "self" in it.f_locals
    ]
    if not called:
        return ""
    names = {id(module): name for name, module in called[-1].named_modules()}
    return str(names.get(id(called[0]), ""))
