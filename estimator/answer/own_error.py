"""What a user's own error, of memory that ran out, says of their run, and where it differs from this setup.

Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``malloc`` (the message) and ``format_size`` (two decimals).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from estimator.answer.estimate import estimate
from estimator.answer.overflow import beside_bytes, stopped_by, where
from estimator.step.asked_for import of_this_size, segment_bytes
from estimator.step.reserved import is_replayed
from estimator.values.arithmetic import ceil_div
from estimator.values.range import Range
from estimator.values.results import Estimate
from estimator.values.specs import Gpu, Phase, Verdict

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE = r"(\d{1,9}(?:\.\d{1,2})?) (bytes|KiB|MiB|GiB)"
REQUESTED = re.compile(rf"out of memory\.\s+Tried\s+to\s+allocate\s+{SIZE}")
FIGURES: dict[str, tuple[str, ...]] = {
    "capacity": (rf"total\s+capac?i?ty\s+of\s+{SIZE}", rf"{SIZE}\s+total\s+capacity"),
    "free": (rf"of\s+which\s+{SIZE}\s+is\s+free", rf"{SIZE}\s+free"),
    "process": (rf"this\s+process\s+has\s+{SIZE}\s+memory\s+in\s+use",),
    "allocated": (rf"{SIZE}\s+is\s+allocated\s+by\s+PyTorch", rf"{SIZE}\s+already\s+allocated"),
    "unused": (rf"{SIZE}\s+is\s+reserved\s+by\s+PyTorch\s+but\s+unallocated",),
    "reserved": (rf"{SIZE}\s+reserved\s+in\s+total\s+by\s+PyTorch",),
}
"""Each figure of the message, as it was written before torch 2.1 and since; 2.1 wrote ``capacty``."""
ON_THE_HOST = re.compile(
    r"SIGKILL|exit ?code\s*:? -9\b|return code = -9\b|oom[-_]kill|DefaultCPUAllocator: can't allocate|^Killed$",
    re.MULTILINE,
)
"""What is left in a log when the system ends a process that fills the machine's own memory, or refuses it memory."""
OUTSIDE = re.compile(
    r"CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|"
    r"Cuda failure (?:\d+ )?'out of memory'"
)
"""What the driver, cuBLAS, cuDNN and NCCL say where a card has no memory for them."""
LONGEST_MESSAGE = 4_000
"""Characters of a message: ours."""
OTHERS = 2**28
"""Bytes of other processes that are worth a sentence: ours, a desktop's."""
MOST_TENSORS = 2
"""Tensors of one size that are named: ours."""


class OwnError(NamedTuple):
    """The figures of an out-of-memory message, in bytes; None where it does not say one."""

    requested: Range[int] | None = None
    """Of the segment that PyTorch asked for: what prints as the message's number. None: PyTorch was not refused."""
    capacity: int | None = None
    free: int | None = None
    process: int | None = None
    """All of the process, the CUDA context too."""
    allocated: int | None = None
    """Of tensors."""
    unused: int | None = None
    """Reserved and not allocated."""
    on_host: bool = False
    """Whether the machine's own memory ran out, not a card's."""

    @property
    def others(self) -> int:
        """Bytes of the card that other processes hold; 0 where the message does not say."""
        if self.capacity is None or self.free is None or not self.process:
            return 0
        return max(0, self.capacity - self.free - self.process)

    def is_of(self, gpu: Gpu | None) -> bool:
        """Whether a card is as large as the message's."""
        return gpu is not None and self.capacity is not None and gpu.has_memory(self.capacity)


def error_in(text: str) -> OwnError | None:
    """The first out-of-memory message of a text; None if there is none.

    >>> error_in("CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 31.75 GiB total capacity)").capacity / 2**30
    31.75
    """
    found = REQUESTED.search(text)
    if found is None:
        on_host = ON_THE_HOST.search(text) is not None
        return OwnError(on_host=on_host) if on_host or OUTSIDE.search(text) else None
    message = text[found.start() : found.start() + LONGEST_MESSAGE]
    if (following := REQUESTED.search(message, 1)) is not None:
        message = message[: following.start()]
    said: dict[str, Any] = {name: _figure(patterns, message) for name, patterns in FIGURES.items()}
    reserved = said.pop("reserved")
    if reserved is not None and said["allocated"] is not None:
        said["unused"] = max(0, reserved - said["allocated"])
    return OwnError(_printed(found[1], found[2]), **said)


def _printed(number: str, unit: str) -> Range[int]:
    """The bytes that print as a number with two decimals."""
    middle, within = float(number) * UNITS[unit], 0.005 * UNITS[unit]
    return Range(round(middle - within), round(middle + within))


def _figure(patterns: Iterable[str], message: str) -> int | None:
    for pattern in patterns:
        if (found := re.search(pattern, message)) is not None:
            return round(float(found[1]) * UNITS[found[2]])
    return None


Sized = Callable[[int], str]


def said_of(error: OwnError, of: Estimate, size: Sized) -> Iterator[str]:
    """What a message says, and what of it this setup explains, a sentence each; ``size`` says a number of bytes."""
    if error.requested is None:
        yield _of_others(error, of, size)
        return
    requested = size(sum(error.requested) // 2)
    held = f"held {size(error.allocated)} of tensors and " if error.allocated else ""
    yield f"PyTorch {held}could not get another {requested}."
    if error.others >= OTHERS:
        yield f"Other processes held {size(error.others)} of the card; nvidia-smi lists them."
    if error.unused is not None and error.unused >= error.requested.high:
        yield (
            f"It had {size(error.unused)} reserved and unused, in pieces smaller than that: "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True joins them."
        )
    if error.is_of(of.gpu):
        yield from _compared(error, of)
    elif error.capacity is not None:
        yield f"That card has {size(error.capacity)}: choose it to see what this setup needs there."


def _of_others(error: OwnError, of: Estimate, size: Sized) -> str:
    """What is said where PyTorch's allocator was not refused."""
    if error.on_host:
        return (
            "The process was ended, most often because the machine's own memory ran out: this setup takes "
            f"{size(of.host_bytes)} of it in one process, offloaded tensors included."
        )
    said = (
        "The card had no memory left for what lies outside PyTorch's allocator: CUDA, cuBLAS, NCCL."
    )
    if of.gpu is None:
        return said
    left = of.gpu.memory_bytes - of.need_high_bytes
    return f"{said} This setup leaves {size(left)} of it." if left > 0 else said


def _compared(error: OwnError, of: Estimate) -> Iterator[str]:
    """The tensors of this setup that are as large as the one that PyTorch could not get."""
    assert error.requested is not None
    if of.gpu is None or not is_replayed(of.model, of.gpu, of.setup):
        return
    room = of.gpu.memory_bytes - beside_bytes(of)
    alike = [*of_this_size(of.model, of.gpu, of.setup, error.requested, room)]
    if stops_at(error, of):
        yield "This setup stops at the same request."
        return
    if alike:
        named = dict.fromkeys(where(stopped_by(of, one).at, of.setup.optimisation) for one in alike)
        yield f"This setup requests as much {' and '.join(islice(named, MOST_TENSORS))}."
    else:
        yield "No tensor of this setup has that size: the rows, the batch or another setting differed."
    if of.verdict is Verdict.FITS and error.others < OTHERS:
        yield "With these settings the run fits."


HELD = 0.6, 1.05
"""What was held with the request, as parts of what a setup holds at its highest in that layer or stage: ours."""
LENGTHS = tuple(512 * 2**power for power in range(9))
TRIED: Sequence[Mapping[str, Any]] = (
    *({"per_device_train_batch_size": 2**power} for power in range(7)),
    *({"max_length": length} for length in LENGTHS),
    *({"loss": loss} for loss in ("standard", "chunked_trl")),
    {"attn_implementation": "eager"},
    *({"gradient_checkpointing": on} for on in (False, True)),
    *({"dtype": dtype} for dtype in ("float32", "bfloat16")),
    {"use_liger_kernel": False},
    {"optim": "adamw_torch"},
)
"""What people's files leave out, or their tool sets by itself."""


def explained_by(error: OwnError, of: Estimate) -> list[Mapping[str, Any]]:
    """The changes of one key, each of which makes the setup stop at the request that the message names.

    Empty if it does so as it is. Error: tensors that are as large by coincidence may be among them.
    """
    if not error.is_of(of.gpu) or stops_at(error, of):
        return []
    found = []
    for change in (*TRIED, *_lengths(error, of)):
        try:
            other = estimate(of.model, of.gpu, of.setup.replace(**change))
        except ValueError:
            continue
        if other.setup != of.setup and stops_at(error, other):
            found.append(change)
    return found


def _lengths(error: OwnError, of: Estimate) -> Iterator[Mapping[str, Any]]:
    """The lengths of rows at which the logits, in 16 or in 32 bits, would be as large as the request."""
    assert error.requested is not None
    rows = of.setup.batch.per_device_train_batch_size
    for width in (2, 4):
        each = width * of.model.vocab_size * rows
        least, most = error.requested.low // each, ceil_div(error.requested.high, each)
        if most and not any(least <= length <= most for length in LENGTHS):  # which are tried
            yield {"max_length": (least + most) // 2}


def stops_at(error: OwnError, of: Estimate) -> bool:
    """Whether a setup stops at a request of the message's size, with as many tensors there.

    Source: as ``Estimate.needs``; the segment's size, ``segment_bytes``.
    """
    stop = of.needs.refused
    if stop is None or error.requested is None:
        return False
    low, high = error.requested
    if not low <= segment_bytes(stop.bytes) <= high:
        return False
    if error.allocated is None or stop.phase is Phase.LOAD:
        return True  # a moment of loading leaves out what is copied meanwhile
    there = stopped_by(of, stop).among.moment.bytes
    least, most = (part * there for part in HELD)
    return least <= error.allocated + stop.bytes <= most
