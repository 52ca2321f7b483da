"""Computes what branches ask for: small tensors of whole numbers and truths, whose values came from the host.

The card's memory is address space of this process, so the same operator of the CPU can run on it in place.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import warnings
from collections.abc import Iterable
from typing import Any

from . import lines, record
from .record import here

MOST = 2**20
"""Elements up to which a tensor is computed."""
MOST_READS = 10_000
"""Times that one line may read a value in one phase before it counts as waiting for another value."""
COMPARISONS = tuple(
    f"{name}.{of}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for of in ("Scalar", "Tensor")
)
"""Of numbers with a point, too: these count as zeros."""
WHOLE = (
    *COMPARISONS, "logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not", "bitwise_and.Tensor",
    "bitwise_or.Tensor", "bitwise_xor.Tensor", "all", "all.dim", "any", "any.dim", "sum", "sum.dim_IntList", "max",
    "min", "amax", "amin", "cumsum", "add.Tensor", "sub.Tensor", "mul.Tensor", "where.self", "masked_fill_.Scalar",
    "fill_.Scalar", "copy_", "cat", "scatter_.value", "arange.start_out", "argmax", "isin.Tensor_Tensor", "clamp",
    "sort.stable", "index.Tensor", "gather", "flip", "argmin", "max.dim", "min.dim", "multinomial",
)  # fmt: skip
"""Operators that are computed where all their tensors are of whole numbers or truths."""
MADE = ("empty.memory_format", "empty_strided")
"""Operators that make a tensor without a value."""
CHOOSING = ("argmax", "argmin", "max.dim", "min.dim", "multinomial", "gather", "index.Tensor")
"""Operators of which the first is chosen where that is not known, such as the next token."""
FINITE = {"all": True, "all.dim": True, "any": False, "any.dim": False}
"""What is said of tensors that are not computed: all of it is as it should be, and nothing is not."""


def answer(torch: Any) -> None:
    """Give operators of the card a second kernel, which computes after the first has allocated."""
    here.library = library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():  # it says that these kernels were there before
        warnings.simplefilter("ignore")
        library.impl("nonzero", _nonzero, "CUDA")
        library.impl("_local_scalar_dense", _read, "CUDA")
        if not hasattr(torch.library, "get_kernel"):  # torch before 2.9
            return
        for name in WHOLE:
            _compute(torch, library, name)
        for name in MADE:
            _make(torch, library, name)
        _route(torch, library)


def _make(torch: Any, library: Any, name: str) -> None:
    """Whole numbers are zeros until something writes them: a kernel such as Triton's never does."""
    kernel = torch.library.get_kernel(f"aten::{name}", "CUDA")

    def made(keys: Any, *told: Any, **named: Any) -> Any:
        found = kernel.call_boxed(keys, *told, **named)
        _clear(torch, found)
        return found

    library.impl(name, made, "CUDA", with_keyset=True)


def _compute(torch: Any, library: Any, name: str) -> None:
    operator, _, overload = name.partition(".")
    called = getattr(getattr(torch.ops.aten, operator), overload or "default")
    kernel = torch.library.get_kernel(f"aten::{name}", "CUDA")
    compares = name in COMPARISONS
    wants = [str(argument.type) == "Tensor" for argument in called._schema.arguments]

    def computed(keys: Any, *told: Any, **named: Any) -> Any:
        if not all(map(isinstance, told, (torch.Tensor if want else object for want in wants))):
            beside = next(value for value in told if isinstance(value, torch.Tensor))
            told = tuple(
                _as_tensor(torch, value, beside) if wants[at] else value
                for at, value in enumerate(told)
            )
        found = kernel.call_boxed(keys, *told, **named)
        tensors = [*_tensors(torch, [*told, *named.values(), found])]
        if all(_is_small(torch, tensor, floats=compares) for tensor in tensors):
            with contextlib.suppress(
                IndexError, RuntimeError
            ):  # an index that a kernel would write
                there = called(
                    *_on_host(torch, told),
                    **{word: _on_host(torch, [value])[0] for word, value in named.items()},
                )
                _copy(torch, there, found)
                return found
        if name in FINITE:  # of much: gradients and weights, which are finite
            on_host(torch, found).fill_(FINITE[name])
        if name in CHOOSING:
            _clear(torch, found)
        return found

    library.impl(name, computed, "CUDA", with_keyset=True)


def _copy(torch: Any, there: Any, found: Any) -> None:
    """Write what was computed on the host where the card's kernel would have."""
    theirs = iter(_tensors(torch, [there]))
    for mine in _tensors(torch, [found]):
        host = next(theirs)
        if host.shape == mine.shape:  # a mask that selects nothing is not known, and selects all
            on_host(torch, mine).copy_(host)


def _clear(torch: Any, found: Any) -> None:
    """Make whole numbers zeros, which nobody computes; else they are what lay there before."""
    for tensor in _tensors(torch, [found]):
        if tensor.is_cuda and _is_small(torch, tensor, floats=False):
            storage = tensor.untyped_storage()
            ctypes.memset(storage.data_ptr(), 0, storage.nbytes())


def _as_tensor(torch: Any, number: Any, beside: Any) -> Any:
    """A number where an operator wants a tensor, of the dtype that the result then has."""
    if isinstance(number, torch.Tensor) or number is None:
        return number
    fits = beside.is_floating_point() or not isinstance(number, float)
    return torch.tensor(number, dtype=beside.dtype if fits else torch.get_default_dtype())


def _tensors(torch: Any, values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(torch, value)


def _is_small(torch: Any, tensor: Any, *, floats: bool) -> bool:
    if tensor.numel() > MOST or tensor.is_complex() or tensor.device.type not in {"cuda", "cpu"}:
        return False
    return floats or not tensor.is_floating_point()


def _on_host(torch: Any, values: Any) -> list[Any]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            is_float = value.is_floating_point() and value.is_cuda
            found.append(
                torch.zeros(value.shape, dtype=value.dtype) if is_float else on_host(torch, value)
            )
        elif isinstance(value, (list, tuple)) and any(
            isinstance(one, torch.Tensor) for one in value
        ):
            found.append([*_on_host(torch, value)])
        else:
            found.append(value)
    return found


def on_host(torch: Any, tensor: Any) -> Any:
    """The same memory as a tensor of the CPU."""
    storage = tensor.untyped_storage()
    if not tensor.is_cuda or not storage.nbytes() or not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype) if tensor.is_cuda else tensor
    count = storage.nbytes() // tensor.element_size()
    memory = (ctypes.c_char * (count * tensor.element_size())).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=count)
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


# --- values that are asked for ------------------------------------------------------------------


def _read(tensor: Any) -> Any:
    """``.item()``, ``bool(tensor)``, ``tolist()``: what lies there, or what the user says for this line."""
    torch = here.torch
    value = on_host(torch, tensor.detach()).reshape(-1)[0].item()
    if tensor.is_floating_point() and not abs(value) < float("inf"):
        value = 0.0
    line = lines.innermost_of_script()
    if line is None:
        return value
    at = f"{os.path.basename(line['file'])}:{line['line']}"
    stop_if_it_waits(at, line)
    if at in _told():
        value = type(value)(float(_told()[at]))
    here.reads.setdefault(f"{at} `{line['text']}`", value)
    return value


def _told() -> dict[str, str]:
    """The values of ``--value``, by line."""
    said = os.environ.get("HEADROOM_VALUES", "")
    return dict(pair.split("=", 1) for pair in said.split("\n") if pair)


def stop_if_it_waits(at: str, line: dict[str, Any]) -> None:
    """End the run where a line reads on and on and no phase ends."""
    moment = len(here.ends), at
    here.waits[moment] = here.waits.get(moment, 0) + 1
    if here.waits[moment] > MOST_READS:
        here.exception = (
            f"a loop that waits for a value: {at} `{line['text']}` read it {MOST_READS:,} times and no step was taken; "
            f"give the value for which it ends: --value {at}=1"
        )
        record.finish("exception")


def _nonzero(mask: Any) -> Any:
    """A mask that is known selects what it selects; of others it is not known, and they select every element."""
    torch = here.torch
    known = _known(torch, mask)
    count = mask.numel() if known is None else len(known)
    if known is None:
        record.note(
            "Masks that are computed on the card select every element, as where no token is left out."
        )
    here.null.null_answer(min(count, 2**31 - 1))
    found = torch.empty(0, dtype=torch.long, device=mask.device)
    found = torch.ops.aten.nonzero.out(mask, out=found)
    if known is not None:
        on_host(torch, found).copy_(known)
    return found


def _known(torch: Any, mask: Any) -> Any:
    if not _is_small(torch, mask, floats=False) or not hasattr(torch.library, "get_kernel"):
        return None
    found = on_host(torch, mask).nonzero()
    return found if len(found) else None


# --- mixtures of experts ------------------------------------------------------------------------

MOST_EXPERTS, MOST_CHOSEN = 1024, 64
"""What a router chooses from, and how many, at most: of a vocabulary there is more."""


def _route(torch: Any, library: Any) -> None:
    """Routers choose experts in turn, or with ``--route one`` all the same."""
    kernel = torch.library.get_kernel("aten::topk", "CUDA")
    alike = os.environ.get("HEADROOM_ROUTE") == "one"

    def topk(keys: Any, scores: Any, k: int, *told: Any, **named: Any) -> Any:
        values, indices = kernel.call_boxed(keys, scores, k, *told, **named)
        if (
            scores.dim()
            and 1 < scores.shape[-1] <= MOST_EXPERTS
            and k <= MOST_CHOSEN
            and indices.numel()
        ):
            rows = indices.numel() // k
            first = (
                torch.zeros(rows, 1, dtype=torch.long) if alike else torch.arange(rows)[:, None] * k
            )
            chosen = (first + torch.arange(k)) % scores.shape[-1]
            on_host(torch, indices).copy_(chosen.reshape(indices.shape))
        return values, indices

    library.impl("topk", topk, "CUDA", with_keyset=True)
