"""Seconds that offload adds to a step: the CPU's Adam, the link between GPU and host, and NVMe, each fast and slow.

Of activations and checkpoints, also what a micro-step copies to the host and back.

The fast end is a roofline and the slow end is what was published, as everywhere (docs/decisions/0003).
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from estimator.parallel.host import Host, host_of
from estimator.parallel.offload import OffloadTraffic, moved, pinned, ranks_of_a_node
from estimator.resident.optimizer import RULES
from estimator.step.timeline import Sizes, plan, structure
from estimator.values.arithmetic import larger
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.optimisation import Optimisation
from estimator.values.range import Range
from estimator.values.results import TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Offload
from estimator.values.strategies import Strategy

GIGA = 1e9
"""Bytes per second in one GB/s."""


ADAM_BYTES = 28
"""Bytes per float32 element: weight, gradient and two moments read, all but the gradient written. derived."""
SCALED_BYTES = 8
"""Bytes per element: DeepSpeed scales every gradient in place before the step: stage_1_and_2.py,
``unscale_and_clip_grads``."""
CLIPPED_BYTES = 12
"""Bytes per element with FSDP2 and ``max_grad_norm``: a norm, and an in-place product. torch 2.13,
nn/utils/clip_grad.py."""
COPIED_BYTES = 6
"""Bytes per element to cast a float32 weight to 16 bits on the host, 4 + 2: DeepSpeed 0.19.6, stage_1_and_2.py,
``step``."""
UNFUSED_PASSES = 20 / 7
"""Memory passes of torch's unfused AdamW relative to the fused one's seven; DeepSpeed replaces both."""

READ, WRITE = Range(3.15, 48.0), Range(1.13, 26.0)
"""GB/s. Slow end: one SSD, read up to 3.15 (github.com/deepspeedai/DeepSpeed/issues/998), written 1.05 GiB/s
(docs.nvidia.com/deploy/gds-support-for-nvme, "Test GDS"). Fast end: eight Gen5 SSDs striped in one machine, DeepSpeed,
blogs/deepnvme/03-2025 ("I/O performance scaling")."""


def offload_parts(
    model: Model, gpu: Gpu, setup: TrainingSetup, behind: float
) -> tuple[TimePart, ...]:
    """Seconds per step that offload adds.

        CPU step   ranks per machine · n · bytes / the host's memory bandwidth, as its threads reach it
        link       bytes / link to the host; at best overlapped with the GPU's ``behind`` seconds, except for stages 1
                   and 2, which send on the compute stream, and for weights that come back after the step
        NVMe       ranks · read / 48 GB/s + ranks · written / 26 GB/s,  at worst one SSD

    Leaves out: GPUs that share a PCIe switch; pageable copies; the first step.
    Source: derived, from ``estimator.parallel.offload.moved`` and ``estimator.parallel.host.host_of``.
    """
    of, ranks = moved(model, setup), ranks_of_a_node(setup.mesh)
    host = host_of(gpu, setup.mesh, ranks)
    parts = (
        _stepping(setup.optimisation, setup.mesh, of, ranks, host),
        _link(setup.mesh, of, host, behind),
        TimePart("NVMe", ranks * (of.read / READ + of.written / WRITE) / GIGA),
    )
    return tuple(part for part in parts if part.seconds.high > 0)


def _stepping(
    optimisation: Optimisation, mesh: Mesh, of: OffloadTraffic, ranks: int, host: Host
) -> TimePart:
    size = ADAM_BYTES
    passes = 1.0
    if mesh.strategy.is_fsdp:
        size += CLIPPED_BYTES if optimisation.max_grad_norm > 0 else 0
        passes = 1.0 if RULES[optimisation.optim].is_fused else UNFUSED_PASSES
    else:
        size += SCALED_BYTES + COPIED_BYTES
    moves = passes * ranks * of.stepped * size / GIGA
    return TimePart("optimizer step on the CPU", moves / host.memory)


def _link(mesh: Mesh, of: OffloadTraffic, host: Host, behind: float) -> TimePart:
    hidden = 0.0 if mesh.strategy.partitions_flat else behind
    link = host.link * GIGA
    low = larger(0.0, of.in_micro_steps / link.high - hidden) + of.after / link.high
    return TimePart("between GPU and host", Range(low, (of.in_micro_steps + of.after) / link.low))


def saved_tensor_parts(
    model: Model, gpu: Gpu, setup: TrainingSetup, behind: float
) -> tuple[TimePart, ...]:
    """Seconds per step for copying saved tensors to the host and back.

        accumulation · 2 · moved / link to the host

    Transformers copies offloaded checkpoints on the compute stream. TRL copies activations on a separate stream, at
    best overlapped with the GPU's ``behind`` seconds.

    Source: derived, from ``host_copies``; transformers 5.23, modeling_utils.py, ``activation_checkpointing_enable``
    ("Both copies run on the compute stream"); trl 1.16, models/activation_offloading.py (``self.s1``).
    """
    copied = 2 * setup.batch.gradient_accumulation_steps * host_copies(model, setup).moved
    if not copied:
        return ()
    low, high = copied / (host_of(gpu, setup.mesh).link * GIGA)
    if setup.computation.activation_offloading:
        low = larger(0.0, low - behind)
    return (TimePart("saved tensors to the host and back", Range(low, high)),)


def steps_on_host(mesh: Mesh) -> bool:
    """Whether the CPU runs the optimizer instead of the GPU.

    Source: DeepSpeed 0.19.6, runtime/zero/stage3.py, ``_optimizer_step``; torch 2.13, ``CPUOffloadPolicy``.
    """
    return mesh.offload_optimizer is not Offload.NONE


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
