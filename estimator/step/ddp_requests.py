"""What DDP asks PyTorch's allocator for: copies by which the ranks' weights become equal, and buckets of gradients.

Source: torch 2.13, as each function says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from estimator.families.model_tree import modules_in_order, tied_head
from estimator.families.modules import weight_shapes
from estimator.families.weights import weight_width
from estimator.parallel.ddp import finds_unused
from estimator.parallel.placements import module_adapters
from estimator.resident.optimizer import Trainable
from estimator.step.blocks import GIVE, NO_LIMIT, TAKE, Request
from estimator.values.arithmetic import allocated, elements
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

BROADCAST = 250 * 2**20
"""Bytes of weights that are sent together: nn/parallel/distributed.py, ``broadcast_bucket_size``."""
IN_FLIGHT = 2
"""Broadcasts at once: csrc/distributed/c10d/comm.cpp, ``max_in_flight``."""
FIRST = 2**20
"""Bytes at which the first bucket is full: csrc/distributed/c10d/reducer.hpp, ``kDefaultFirstBucketBytes``."""
OTHERS = 25 * 2**20
"""Bytes at which each other one is: nn/parallel/distributed.py, ``bucket_cap_mb``."""


class Sent(NamedTuple):
    """A tensor."""

    width: int
    """Bytes per element. Tensors of one width share a bucket."""
    bytes: int


def together(tensors: Iterable[Sent], limits: Sequence[int]) -> list[list[int]]:
    """Bytes of tensors by bucket: one is closed once it holds as many bytes as its limit.

    Source: csrc/distributed/c10d/reducer.cpp, ``compute_bucket_assignment_by_size``.

    >>> together([Sent(4, 3), Sent(4, 3), Sent(2, 1), Sent(4, 9)], [3, 10])
    [[3], [3, 9], [1]]
    """
    found: list[tuple[int, list[int]]] = []
    open_: dict[int, tuple[int, list[int]]] = {}
    closed: dict[int, int] = {}
    for at, tensor in enumerate(tensors):
        _, inside = open_.setdefault(tensor.width, (at, []))
        inside.append(tensor.bytes)
        number = min(closed.get(tensor.width, 0), len(limits) - 1)
        if sum(inside) >= limits[number]:
            found.append(open_.pop(tensor.width))
            closed[tensor.width] = number + 1
    return [inside for _, inside in sorted([*found, *open_.values()])]


def made_equal(model: Model, setup: TrainingSetup, temporary: int) -> Iterator[Request]:
    """All weights are sent by the first rank, each bucket from a copy of its tensors unless it has only one.

    ``temporary``: the first of three keys.

    Source: csrc/distributed/c10d/comm.cpp, ``broadcast_coalesced``; nn/parallel/distributed.py,
    ``_sync_module_states``.
    """
    flying: deque[int] = deque()
    for number, inside in enumerate(together(_weights(model, setup), [BROADCAST])):
        if len(flying) >= IN_FLIGHT:
            yield Request(GIVE, flying.popleft())
        key = temporary + number % (IN_FLIGHT + 1)
        flying.append(key)
        if len(inside) > 1:
            yield Request(TAKE, key, allocated(sum(inside)))
    yield from (Request(GIVE, key) for key in flying)


def _weights(model: Model, setup: TrainingSetup) -> Iterator[Sent]:
    """Weights and adapters in the order of ``named_parameters``; packed ones are left out."""
    tied = tied_head(model)
    for module in (located.module for located in modules_in_order(model)):
        if module not in tied and not setup.adapters.has_packed_base:
            width = weight_width(module, setup)
            for shape in weight_shapes(module):
                yield Sent(width, width * elements(shape))
        for tensor in module_adapters(module, setup):
            yield Sent(tensor.width, tensor.width * elements(tensor.shape))


def buckets(
    trained: Sequence[Trainable], setup: TrainingSetup
) -> tuple[list[int], list[int] | None]:
    """Bytes of each bucket of gradients, of the trained tensors in the order of the model: at first, and from the
    second step on where they are made anew.

    Where DDP looks for unused parameters, they stay as they are, in the order of the model, reversed. Else the first
    step has one bucket, and the order in which its gradients came decides the others.

    Leaves out: that a layer's norms come between its weights in that order.
    Source: nn/parallel/distributed.py, ``compute_bucket_size_limits``; csrc/distributed/c10d/reducer.cpp,
    ``rebuild_buckets``.
    """
    tensors = [Sent(tensor.width, tensor.width * elements(tensor.shape)) for tensor in trained]
    if finds_unused(setup):
        return [*map(sum, reversed(together(tensors, [FIRST, OTHERS])))], None
    whole = [*map(sum, together(tensors, [NO_LIMIT]))]
    return whole, [*map(sum, together(tensors[::-1], [FIRST, OTHERS]))]
