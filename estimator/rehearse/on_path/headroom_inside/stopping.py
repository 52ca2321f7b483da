"""Follows torch through its phases: where memory runs out, and when enough steps were taken."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from . import asked, kernels, lines, ranks, record, saving, values
from .record import here

FORWARD, BACKWARD, OPTIMIZER, LOADING = "forward", "backward", "optimizer", "loading"
BEFORE_OPTIMIZER = "before the optimizer"
"""Between the backward pass and the optimizer: clipping, and whatever the script does there."""


def torch_is_here(torch: ModuleType) -> None:
    """Watch a torch that has just been imported."""
    here.torch = torch
    here.peaks = record.Peaks(torch._C)
    here.recorder = asked.RequestRecorder(torch)
    _follow_backward(torch)
    _follow_optimizers(torch)
    _at_the_next_forward(torch)
    values.of_torch(torch)
    saving.write_no_files(torch)
    kernels.compile_nothing(torch)
    ranks.answer(torch)
    torch.cuda._lazy_call(lambda: torch._C._cuda_attach_out_of_memory_observer(_out_of_memory))
    torch.backends.cudnn.enabled = False  # its convolutions plan with figures that nobody has here
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
            _end_if_enough()
            here.backwards += 1
            # without a module's call since the optimizer, the forward pass is not told from what came before
            record.close(LOADING if here.now == LOADING else FORWARD, BACKWARD)
            found = backward(*told, **named)
            record.close(BACKWARD, FORWARD)
            ranks.pause(torch)
            return found
        finally:
            depth[0] -= 1

    torch.autograd.backward = followed


def _follow_optimizers(torch: Any) -> None:
    from torch.optim import optimizer  # noqa: PLC0415 - torch is imported just now

    taken: dict[int, int] = {}
    seen: dict[int, int] = {}
    inside: list[int] = []

    def before(of: Any, *_: Any) -> None:
        if record.is_on() and not inside:
            record.close(BEFORE_OPTIMIZER if here.now == FORWARD else here.now, OPTIMIZER)
        inside.append(id(of))

    def after(of: Any, *_: Any) -> None:
        inside.pop()
        if inside or not record.is_on():
            return
        # DeepSpeed steps once for each group of weights: without a backward pass between them, these are one
        if id(of) not in seen or not here.backwards or seen[id(of)] != here.backwards:
            taken[id(of)] = taken.get(id(of), 0) + 1
        seen[id(of)] = here.backwards
        here.steps = max(taken.values())
        ranks.pause(torch)
        _at_the_next_forward(torch)  # until then gradients are dropped, which belongs to this phase

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


def _at_the_next_forward(torch: Any) -> None:
    """Begin the forward phase where a module on the card is called with gradients."""

    def first(module: Any, given: Any) -> None:
        if not _is_on_card(torch, module, given):
            return
        _end_if_enough()
        if not torch.is_grad_enabled():
            return
        hook.remove()
        if here.now in {LOADING, OPTIMIZER}:
            record.close(here.now, FORWARD)

    hook = torch.nn.modules.module.register_module_forward_pre_hook(first)


def _end_if_enough() -> None:
    """End the run where a step more would begin."""
    if record.is_on() and here.steps >= int(os.environ.get("HEADROOM_STEPS", "4")):
        here.held = asked.held()
        record.finish()


def _is_on_card(torch: Any, module: Any, given: Any) -> bool:
    if any(isinstance(value, torch.Tensor) and value.is_cuda for value in given):
        return True
    return any(parameter.is_cuda for parameter in module.parameters())


# --- where memory runs out ----------------------------------------------------------------------


def _out_of_memory(device: int, asked: int, _: int, free: int) -> None:
    """PyTorch calls this where an allocation failed, before it raises."""
    frames = list(_stack())
    stats = here.torch.cuda.memory_stats(device)
    script = next(
        (frame for frame in frames if not lines.is_installed(frame.f_code.co_filename)), None
    )
    innermost = next(
        (frame for frame in frames if not lines.is_in_torch(frame.f_code.co_filename)),
        frames[0] if frames else None,
    )
    here.failed.append(
        {
            "asked": asked,
            "allocated": stats["allocated_bytes.all.current"],
            "reserved": stats["reserved_bytes.all.current"],
            "free": free,
            "device": device,
            "phase": here.now,
            "step": here.step,
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
        if not lines.is_ours(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _line(frame: FrameType | None) -> dict[str, Any] | None:
    if frame is None:
        return None
    return lines.line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _module(frames: list[FrameType]) -> str:
    """The full name of the innermost module that is being called; empty outside of a forward pass."""
    called = [
        frame.f_locals["self"]
        for frame in frames
        if frame.f_code.co_name in {"_call_impl", "_wrapped_call_impl"} and "self" in frame.f_locals
    ]
    if not called:
        return ""
    names = {id(module): name for name, module in called[-1].named_modules()}
    return str(names.get(id(called[0]), ""))
