"""What the optimizer's step asks PyTorch's allocator for: its loop over the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from estimator.families.packed import FLOAT32_BYTES
from estimator.resident.model import (
    Resident,
)
from estimator.resident.optimizer import (
    LOW_BIT_OPTIMIZERS,
    RULES,
    Trainable,
    between_kernels,
    state_tensors,
)
from estimator.step.blocks import (
    GIVE,
    GIVE_ALL,
    GIVE_BEFORE,
    TAKE,
    TAKE_ONCE,
    Request,
)
from estimator.step.request_keys import STEPPED, Keys, scratch, taken
from estimator.tape.scratch import Card, rows_summed
from estimator.values.arithmetic import allocated, ceil_div, elements
from estimator.values.facets.optimisation import Optimisation
from estimator.values.specs import Optimizer

NORM_CHUNK = 65_536
"""Elements whose norm one block of threads adds up: torch 2.13, aten/src/ATen/native/cuda/MultiTensorApply.cuh,
``kChunkSize``."""


RENEWING = 3
"""The played step in which APOLLO renews its projectors."""


def flat_step(resident: Resident) -> Iterator[Request]:
    """DeepSpeed's flat gradient in 16 bits and in float32."""
    part = resident.transient // 3
    yield from (
        Request(TAKE, STEPPED, allocated(size))
        for size in (part, resident.transient - part)
        if size
    )
    yield Request(GIVE_ALL, STEPPED)


def optimizer_step(
    keys: Keys,
    groups: Sequence[Sequence[Trainable]],
    optimisation: Optimisation,
    resident: Resident,
    card: Card,
    step: int = 1,
) -> Iterator[Request]:
    """The optimizer's own loop over its groups and their tensors; states are made in the first step.

    ``step``: of those played, from 1; only APOLLO's differ.
    """
    optim, width = optimisation.optim, optimisation.optim_state_dtype
    if optim in LOOPS:
        yield from LOOPS[optim](keys, chain(*groups), card, step)
        return
    copies = RULES[optim].step_copies
    for group in groups:
        for tensor in group:
            sizes = state_tensors(tensor, optim, width)
            key = keys.new(len(sizes))
            yield from (Request(TAKE_ONCE, key + at, size) for at, size in enumerate(sizes) if size)
            if between := between_kernels(tensor, optim):
                yield from (Request(TAKE, STEPPED, size) for size in between)
                yield Request(GIVE_ALL, STEPPED)
        each = width.bytes if width else None
        for tensor in group:
            size = allocated(elements(tensor.shape) * (each or tensor.width))
            yield from (Request(TAKE, STEPPED, size) for _ in range(copies))
        yield Request(GIVE_ALL, STEPPED)
    if resident.transient and not copies and optim not in LOW_BIT_OPTIMIZERS:
        yield Request(TAKE, STEPPED, allocated(resident.transient))
        yield Request(GIVE_ALL, STEPPED)


def norms(tensors: Iterable[Trainable]) -> Iterator[Request]:
    """Partial sums of every tensor's norm, as many as the largest has, and one number for each tensor.

    Source: torch 2.13, aten/src/ATen/native/cuda/ForeachReduceOp.cu, ``foreach_tensor_norm_cuda``.
    """
    trained = [*tensors]
    if not trained:
        return
    most = max(ceil_div(elements(tensor.shape), NORM_CHUNK) for tensor in trained)
    yield Request(TAKE, STEPPED, allocated(FLOAT32_BYTES * most * len(trained)))
    yield from (Request(TAKE, STEPPED, allocated(FLOAT32_BYTES)) for _ in trained)
    yield Request(GIVE_ALL, STEPPED)


def _adafactor(
    keys: Keys, trained: Iterable[Trainable], card: Card, step: int
) -> Iterator[Request]:
    """transformers' loop. Its names hold a tensor's gradient, weight and update until the next tensor's replace them.

    Source: transformers 5.23, optimization.py, ``Adafactor.step``.
    """
    names = [_Name(keys) for _ in range(3)]
    gradient, weight, update = names
    inner = keys.new(1)
    for tensor in trained:
        whole = allocated(FLOAT32_BYTES * elements(tensor.shape))
        is_narrow = tensor.width < FLOAT32_BYTES
        if is_narrow:
            yield from gradient.bound(whole)
        states = state_tensors(tensor, Optimizer.ADAFACTOR, None)[:-1]  # without a scalar
        key = keys.new(len(states))
        yield from (Request(TAKE_ONCE, key + at, size) for at, size in enumerate(states))
        if is_narrow:
            yield from weight.bound(whole)
        yield Request(TAKE, inner, whole)  # the square
        new = update.taken(whole)
        yield new
        yield Request(GIVE, inner)
        yield update.dropped()
        if len(states) > 1:
            rows, columns = states
            yield Request(TAKE, inner, rows)
            yield Request(GIVE, inner)
            yield Request(TAKE, inner, columns)
            yield from scratch(taken(rows_summed(tensor.shape[-2], tensor.shape[-1], card)))
            yield Request(GIVE, inner)
            yield Request(TAKE, inner, rows)
            yield Request(TAKE, inner, columns)
        yield update.taken(whole)
        yield Request(GIVE_ALL, inner)
        yield update.dropped()
        yield Request(TAKE, inner, whole)  # its negative
        yield Request(GIVE, inner)
    for name in names:
        yield name.dropped(last=True)


def _apollo(keys: Keys, trained: Iterable[Trainable], card: Card, step: int) -> Iterator[Request]:
    """APOLLO's loop. Its names hold what the tensor before has left. Updates are limited from the second step on.

    Projectors are made in the first step and renewed in the third, which stands for every 200th.

    Source: apollo-torch 1.0.3, apollo.py, ``step``, random_projector.py, ``get_orthogonal_matrix``.
    """
    names = [_Name(keys) for _ in range(4)]
    low_gradient, denominator, quotient, update = names
    inner = keys.new(1)
    for tensor in trained:
        whole = allocated(elements(tensor.shape) * tensor.width)
        states = state_tensors(tensor, Optimizer.APOLLO_ADAMW, None)
        key = keys.new(len(states))
        made = [Request(TAKE_ONCE, key + at, size) for at, size in enumerate(states)]
        size = whole
        yield low_gradient.dropped(last=True)
        if tensor.is_linear:
            projector, size, *_ = states
            made.pop(0)
        if tensor.is_linear and step != RENEWING - 1:
            wide = projector // tensor.width * FLOAT32_BYTES
            if tensor.width < FLOAT32_BYTES:
                yield Request(TAKE, inner, allocated(FLOAT32_BYTES * elements(tensor.shape)))
            yield Request(TAKE, inner, wide)  # random numbers
            yield Request(TAKE, inner, wide)  # the same over √r
            yield Request(GIVE_BEFORE, inner)
            yield Request(TAKE, key, projector)
            yield Request(GIVE_ALL, inner)
            yield Request(GIVE_BEFORE, key)
        if tensor.is_linear:
            yield low_gradient.taken(size)
        yield from made
        for name in (denominator, quotient):
            yield name.taken(size)
            yield name.dropped()
        if tensor.is_linear:
            yield update.taken(whole)
            yield update.dropped()
            if step > 1:
                yield update.taken(whole)  # limited
                yield update.dropped()
            yield quotient.dropped(last=True)
    for name in names:
        yield name.dropped(last=True)


class _Name:
    """A Python name: what it held before is freed once it is bound anew."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys.new(2)
        self._turn = 0

    def taken(self, size: int) -> Request:
        """The new tensor, while the name still holds the old one."""
        self._turn = 1 - self._turn
        return Request(TAKE, self._keys + self._turn, size)

    def dropped(self, *, last: bool = False) -> Request:
        """The old tensor, or the last one."""
        return Request(GIVE, self._keys + (self._turn if last else 1 - self._turn))

    def bound(self, size: int) -> Iterator[Request]:
        """The new tensor, after the name has let go of the old one: ``grad = p.grad`` comes before ``grad.float()``."""
        yield self.dropped(last=True)
        yield self.taken(size)


LOOPS: Mapping[Optimizer, Callable[[Keys, Iterable[Trainable], Card, int], Iterator[Request]]] = {
    Optimizer.ADAFACTOR: _adafactor,
    Optimizer.APOLLO_ADAMW: _apollo,
}
"""Optimizers whose loop is none of torch's."""
