"""Communication between GPUs: over their links inside a machine, over the network between machines.

The bracket's low end is a hierarchical exchange over the fastest network offered with the GPU, links and network at
once; its high end is one ring through all GPUs over the slowest.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.parallel.host import PCIE, slot
from estimator.values.arithmetic import larger
from estimator.values.facets.mesh import Mesh
from estimator.values.range import Range, by_end
from estimator.values.specs import Gpu, Machine

GIGA = 1e9
"""Bytes per second in one GB/s."""
BITS = 8
"""Bits in a byte."""
RING = Range(0.78, 1.0)
"""Share of a link's rate that NCCL's rings reach. Slow end: 235 of 300 GB/s on eight A100, 361 to 368 of 450 on
eight H200, at 16 GiB. An H200's all-reduce inside its switches reaches 1.07: stas00/ml-engineering at 744d01e,
network/README.md, "Inter-node speed depends on intra-node speed" and "SHARP"."""
ETHERNET = Machine(
    name="25 Gb/s Ethernet",
    gpus=1,
    network_gbit_per_s=25,
    source="data/machines.csv, its slowest row (p3.16xlarge); a plain port of a server",
)
"""The slow end, for a machine of any size, if no machine with the GPU is known."""


class Links(NamedTuple):
    """Bytes per second in one direction."""

    gpu: Range[float]
    """One GPU's link inside its machine; slow end: what NCCL's ring reaches."""
    network: Range[float]
    """One machine's network, all ports used by GPUs."""


class ExchangeGroup(NamedTuple):
    """GPUs of one collective."""

    ranks: int
    per_machine: int
    """The most ranks in one machine."""
    side_by_side: int = 1
    """Number of equal groups that share a machine's ports."""


def links(
    gpu: Gpu,
    mesh: Mesh,
    link_gb_per_s: float | None = None,
    network_gb_per_s: float | None = None,
) -> Links:
    """Bytes per second of a GPU's link and of a machine's network, one direction.

    The user's figures, in 10⁹ bytes a second, override the GPU's: half of its interconnect, and the networks of its
    known machines. GPUs that its link does not join, such as more than the two of a bridge, exchange over PCIe. A
    fraction of a machine has the same fraction of its network. Without a known machine the fast end is at least the
    GPU's own link, the slow end 25 Gb/s Ethernet.

    Source: data/gpus.csv (``interconnect_gb_per_s``, ``interconnect_gpus``) and data/machines.csv, by row.

    >>> card = Gpu(name="card", memory_bytes=2**34, interconnect_gb_per_s=600, network_gb_per_s=50)
    >>> links(card, Mesh())
    Links(gpu=Range(low=234000000000.0, high=300000000000.0), network=Range(low=50000000000.0, high=50000000000.0))
    """
    own = peers(gpu, mesh, link_gb_per_s)
    given = network_gb_per_s or gpu.network_gb_per_s
    if given:
        return Links(own, Range.of(given * GIGA))
    if not gpu.machines:
        slow = ETHERNET.network_gbit_per_s / BITS * GIGA
        return Links(own, Range(slow, max(slow, own.high)))
    rates = [
        machine.network_gbit_per_s * min(1.0, mesh.gpus_per_node / machine.gpus) / BITS * GIGA
        for machine in gpu.machines
    ]
    return Links(own, Range(min(rates), max(rates)))


def peers(gpu: Gpu, mesh: Mesh, link_gb_per_s: float | None = None) -> Range[float]:
    """Bytes per second of a GPU's link to others of its machine, one direction.

    Source: as ``links``, ``slot`` and ``RING``; NVIDIA's bridges join two cards, those of an H200 NVL up to four.

    >>> of = {"interconnect_gb_per_s": 600, "interconnect_gpus": 2, "pcie_generation": 4}
    >>> bridged = Gpu(name="card", memory_bytes=2**34, **of)
    >>> [round(peers(bridged, Mesh(num_gpus=number)).high / GIGA, 1) for number in (2, 4)]
    [300.0, 31.5]
    """
    if link_gb_per_s:
        return RING * link_gb_per_s * GIGA
    if gpu.interconnect_gb_per_s is not None and joins(gpu, mesh):
        return RING * (gpu.interconnect_gb_per_s / 2 * GIGA)
    return Range(PCIE.low, 1.0) * slot(gpu, mesh) * GIGA


def joins(gpu: Gpu, mesh: Mesh) -> bool:
    """Whether the GPU's own link, and not PCIe, joins all GPUs of a machine.

    Source: as ``peers``.

    >>> bridged = Gpu(name="card", memory_bytes=2**34, interconnect_gb_per_s=600, interconnect_gpus=2)
    >>> [joins(bridged, Mesh(num_gpus=number)) for number in (2, 4)]
    [True, False]
    """
    joined = gpu.interconnect_gpus
    return joined is None or 1 < min(mesh.num_gpus, mesh.gpus_per_node) <= joined


def exchange_seconds(size: float, group: ExchangeGroup, by: Links) -> Range[float]:
    """Seconds of an all-gather of ``size`` bytes in total.

        inside   S · (n - 1) / n / link, at its slow end at worst       n: GPUs of the group
        between  best   S · (n - m) / n / network, inside meanwhile    m: of them in one machine
                 worst  S · (n - 1) / n / network, or the link if that is slower: one ring through all

    The network is one machine's, shared by the groups side by side in it. A reduce-scatter takes the same time, an
    all-reduce twice as long. Leaves out: latency, in-network reduction (SHARP), other jobs on the same network.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md (ring: n - 1 parts of n through every link); best case derived: a
    machine has m of n parts and must receive the others.

    >>> exchange_seconds(16e9, ExchangeGroup(16, 8), Links(gpu=Range(78e9, 100e9), network=Range(10e9, 50e9)))
    Range(low=0.16, high=1.5)
    """
    n, m, beside = group
    inside = size * (n - 1) / n / by.gpu
    if n <= m:
        return inside
    shared = beside * size
    between = Range(shared * (n - m), shared * (n - 1)) / n / by.network
    return by_end(larger, inside, between)


def shards(mesh: Mesh) -> ExchangeGroup:
    """The GPUs that one sharded copy spans: inside a machine if they divide it evenly (counts).

    Source: accelerate 1.15, parallelism_config.py, ``_get_mesh``: the shards are an inner dimension of the mesh.

    >>> shards(Mesh(num_gpus=16)), shards(Mesh(num_gpus=16, dp_replicate_size=4))
    (ExchangeGroup(ranks=16, per_machine=8, side_by_side=1), ExchangeGroup(ranks=4, per_machine=8, side_by_side=2))
    """
    ranks, node, parts = mesh.shard_ranks, mesh.gpus_per_node, mesh.tp_size
    if mesh.num_gpus <= node or node % (ranks * parts) == 0:
        return ExchangeGroup(ranks, node, max(1, node // ranks))
    return ExchangeGroup(ranks, min(ranks - 1, max(1, node // parts)), min(parts, node))


def parts(mesh: Mesh) -> ExchangeGroup:
    """The GPUs that divide every layer, the innermost dimension of the mesh (counts).

    Source: transformers 5.23, distributed/utils.py, ``initialize_distributed_mesh``.

    >>> parts(Mesh(num_gpus=16, tp_size=2))
    ExchangeGroup(ranks=2, per_machine=8, side_by_side=4)
    """
    return shards(Mesh(num_gpus=mesh.tp_size, gpus_per_node=mesh.gpus_per_node))


def replicas(mesh: Mesh) -> ExchangeGroup:
    """The GPUs that hold the same shard of each copy (hsdp); copies fill the machines one after another (counts).

    Source: as ``shards``: the replicas are the outer dimension.

    >>> replicas(Mesh(num_gpus=16, dp_replicate_size=2))
    ExchangeGroup(ranks=2, per_machine=1, side_by_side=8)
    """
    ranks, node = mesh.shard_ranks * mesh.tp_size, mesh.gpus_per_node
    copies = mesh.dp_replicate_size
    if mesh.num_gpus <= node:
        return ExchangeGroup(copies, node)
    return ExchangeGroup(copies, max(1, node // ranks), min(ranks, node))


def network_sentences(gpu: Gpu, mesh: Mesh) -> list[str]:
    """Assumptions about the network between machines; none if the job runs in one.

    Source: as ``links``.
    """
    if mesh.num_gpus <= mesh.gpus_per_node:
        return []
    count, rest = divmod(mesh.num_gpus, mesh.gpus_per_node)
    largest = max((machine.gpus for machine in gpu.machines), default=mesh.gpus_per_node)
    is_machine = mesh.gpus_per_node <= largest
    unit = "machine" if is_machine else "group"
    among = f"{count} {unit}{'s' * (count > 1)} of {mesh.gpus_per_node}"
    if rest:
        among += f" and {rest} GPU{'s' * (rest > 1)} of one more"
    by = links(gpu, mesh)
    slow, fast = (f"{end / GIGA:.4g}" for end in by.network)
    rate = f"{slow} GB/s" if slow == fast else f"{slow} to {fast} GB/s"
    if gpu.network_gb_per_s:
        whose = ", as you specified"
    elif gpu.machines:
        first, last = gpu.machines[0].name, gpu.machines[-1].name
        whose = f" ({first})" if first == last else f" ({first} to {last})"
    else:
        whose = f" (from {ETHERNET.name} to the speed of the GPU's own link)"
    return [
        f"{mesh.num_gpus:,} GPUs are {among}; the network between {unit}s is {rate} per {unit}{whose}. "
        + (
            'Set your own with gpu {"like": a card, "network_gb_per_s": …}.'
            if slow != fast
            else "A slower network makes the step longer."
        )
        + (
            ""
            if is_machine
            else f" The machines known with it have {largest}; gpus_per_node says otherwise."
        )
    ]
