"""Tensors that a micro-step copies to the host and back: offloaded checkpoints, offloaded activations."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from estimator.parallel.offload import pinned, ranks_of_a_node
from estimator.step.timeline import Sizes, plan, structure
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model
from estimator.values.strategies import Strategy


class HostCopies(NamedTuple):
    """Of one rank's micro-step, in bytes."""

    moved: int
    """In one direction."""
    pinned: int
    """Of page-locked memory that holds them, which torch keeps for the next step."""


def host_copies(model: Model, setup: TrainingSetup) -> HostCopies:
    """Bytes that one rank copies to the host in a micro-step, and the page-locked memory that they take.

        offload_checkpoints      Σ checkpointed layers  T · h · p      p: bytes of the layers' input
        activation_offloading    every saved tensor of 1,024 bytes or more that is no parameter and was not saved a
                                 second time while it was being copied

    A page-locked block is rounded up to a power of two.

    Error: none; the tensors are those of the step that is played.
    Source: torch 2.13, autograd/graph.py, ``save_on_cpu``; trl 1.16, models/activation_offloading.py; torch 2.13,
    aten/src/ATen/core/CachingHostAllocator.h.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> setup = TrainingSetup(gradient_checkpointing=True, offload_checkpoints=True)
    >>> host_copies(TINY_LLAMA, setup) == (2 * 1024 * 8 * 2, 2 * 1024 * 8 * 2)
    True
    """
    checkpoints = setup.computation.gradient_checkpointing and setup.computation.offload_checkpoints
    if not (checkpoints or setup.computation.activation_offloading):
        return HostCopies(0, 0)
    if setup.mesh.strategy.places_layers:  # the same tensors, on several GPUs
        setup = setup.replace(strategy=Strategy.NONE, num_gpus=1)
    sized, schedule = plan(model, structure(setup)).step(Sizes.of(setup))
    times: Counter[int] = Counter()
    for run in schedule.runs:
        times[run.segment] += run.length
    copies = [(times[segment], size) for segment, size in sized.host_copies]
    return HostCopies(
        sum(count * size for count, size in copies),
        sum(count * pinned(size) for count, size in copies),
    )


def node_copies(model: Model, setup: TrainingSetup) -> int:
    """Page-locked bytes of one machine that hold activations and checkpoints of all its ranks.

    Source: derived, from ``host_copies``.
    """
    ranks = 1 if setup.mesh.strategy.places_layers else ranks_of_a_node(setup.mesh)
    return ranks * host_copies(model, setup).pinned
