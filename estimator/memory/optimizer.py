"""Bytes of optimizer states, and what the step allocates for a moment beside them, per GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from estimator.arithmetic import allocated, ceil_div
from estimator.memory.weights import elements
from estimator.specs import Dtype, Optimizer

EIGHT_BIT_BLOCK = 256
"""Elements that share one float32 absmax in 8-bit states: bitsandbytes 0.50, optim/optimizer.py, blockwise."""
EIGHT_BIT_MINIMUM = 4096
"""Tensors with fewer elements keep float32 states: bitsandbytes 0.50, optim/optimizer.py, ``min_8bit_size``."""
PAGED_MINIMUM = 100_000
"""Tensors with fewer elements are not paged: bitsandbytes 0.50, optim/optimizer.py, ``get_state_buffer``."""


class Trainable(NamedTuple):
    """One trained tensor, and how many alike."""

    shape: tuple[int, ...]
    width: int
    """Bytes per element."""
    alike: int
    is_embedding: bool = False


class States(NamedTuple):
    """Bytes of states inside torch's allocator, and in bitsandbytes' managed memory outside it."""

    resident_bytes: int
    paged_bytes: int


def _torch_states(number: int) -> Callable[[Trainable, int], int]:
    def states(tensor: Trainable, width: int) -> int:
        return number * allocated(elements(tensor.shape) * width)

    return states


def _fused_adamw(tensor: Trainable, width: int) -> int:
    # the fused kernel keeps its step counter, one float32, on the GPU: torch 2.13, optim/adam.py, _init_group
    return _torch_states(2)(tensor, width) + allocated(4)


def _bitsandbytes_states(number: int, *, eight_bit: bool) -> Callable[[Trainable, int], int]:
    def states(tensor: Trainable, width: int) -> int:
        count = elements(tensor.shape)
        if not eight_bit or count < EIGHT_BIT_MINIMUM or tensor.is_embedding:
            return number * allocated(4 * count)
        return number * (allocated(count) + allocated(4 * ceil_div(count, EIGHT_BIT_BLOCK)))

    return states


def _adafactor(tensor: Trainable, width: int) -> int:
    # float32 means of rows and of columns of the last two dimensions; vectors whole:
    # transformers 5.23, optimization.py, Adafactor._get_options (beta1 None: no first moment)
    if len(tensor.shape) < 2:
        return allocated(4 * elements(tensor.shape))
    stack = elements(tensor.shape[:-2])
    return allocated(4 * stack * tensor.shape[-2]) + allocated(4 * stack * tensor.shape[-1])


_STATES: dict[Optimizer, Callable[[Trainable, int], int]] = {
    Optimizer.ADAMW_TORCH_FUSED: _fused_adamw,
    Optimizer.ADAMW_TORCH: _torch_states(2),
    Optimizer.ADAMW_BNB_8BIT: _bitsandbytes_states(2, eight_bit=True),
    Optimizer.PAGED_ADAMW_8BIT: _bitsandbytes_states(2, eight_bit=True),
    Optimizer.PAGED_ADAMW_32BIT: _bitsandbytes_states(2, eight_bit=False),
    Optimizer.ADAFACTOR: _adafactor,
    Optimizer.SGD: _torch_states(0),
    Optimizer.SGD_MOMENTUM: _torch_states(1),
    Optimizer.LION_32BIT: _bitsandbytes_states(1, eight_bit=False),
    Optimizer.LION_8BIT: _bitsandbytes_states(1, eight_bit=True),
}
_PAGED = {Optimizer.PAGED_ADAMW_8BIT, Optimizer.PAGED_ADAMW_32BIT}
KEEPS_PARAMETER_DTYPE = frozenset(
    {Optimizer.ADAMW_TORCH_FUSED, Optimizer.ADAMW_TORCH, Optimizer.SGD_MOMENTUM}
)
"""Optimizers whose states take the parameter's dtype, so that a what-if dtype means something."""


def state_rule(optim: Optimizer) -> Callable[[Trainable, int], int]:
    """The rule that gives one tensor's states in bytes from its width.

    Source: derived, one rule an optimizer; see ``optimizer_states`` for where each was read.
    """
    return _STATES[optim]


def optimizer_states(
    tensors: Iterable[Trainable], optim: Optimizer, state_dtype: Dtype | None
) -> States:
    """Bytes of all states after the first step.

    AdamW keeps two tensors and SGD with momentum one in the parameter's dtype; bitsandbytes' 8-bit optimizers one byte
    and 4/256 an element a state, but float32 for small tensors and for embeddings; Adafactor rows + columns in float32.

    Source: torch 2.13, optim/adam.py and sgd.py; bitsandbytes 0.50, optim/optimizer.py, ``init_state``;
    transformers 5.23, optimization.py, ``Adafactor``, and trainer.py (embeddings registered for 32-bit states).

    >>> optimizer_states([Trainable((4096, 4096), 2, 1)], Optimizer.ADAMW_TORCH, None).resident_bytes == 4 * 4096**2
    True
    """
    resident = paged = 0
    rule = _STATES[optim]
    for tensor in tensors:
        what_if = state_dtype is not None and optim in KEEPS_PARAMETER_DTYPE
        width = state_dtype.bytes if what_if and state_dtype is not None else tensor.width
        size = tensor.alike * rule(tensor, width)
        if optim in _PAGED and elements(tensor.shape) >= PAGED_MINIMUM:
            paged += size
        else:
            resident += size
    return States(resident, paged)


def step_transient(
    tensors: Iterable[Trainable], optim: Optimizer, state_dtype: Dtype | None
) -> int:
    """Bytes that ``optimizer.step()`` allocates beside weights, gradients and states, at its highest.

    Foreach AdamW: a square root of every second moment at once. Adafactor: float32 copies of the largest tensor's
    gradient and weight and two working tensors, 16 bytes an element (8 where they are float32 already). Others: none.

    Source: torch 2.13, optim/adam.py, ``_multi_tensor_adam`` (``_foreach_sqrt``);
    transformers 5.23, optimization.py, ``Adafactor.step``.

    >>> step_transient([Trainable((1024, 1024), 2, 3)], Optimizer.ADAMW_TORCH, None) == 3 * 2 * 1024**2
    True
    """
    tensors = list(tensors)
    if optim is Optimizer.ADAMW_TORCH:
        width = state_dtype.bytes if state_dtype is not None else None
        return sum(t.alike * allocated(elements(t.shape) * (width or t.width)) for t in tensors)
    if optim is Optimizer.ADAFACTOR:
        return max(elements(t.shape) * (16 if t.width < 4 else 8) for t in tensors)
    return 0
