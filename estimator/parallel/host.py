"""The host of a GPU: its link, the bandwidth of its memory, and the threads that step an offloaded optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from estimator.values.facets.mesh import Mesh
from estimator.values.range import Range
from estimator.values.specs import Gpu

LANE: Mapping[int, float] = MappingProxyType(
    {
        **{1: 2.5 * 8 / 10 / 8, 2: 5 * 8 / 10 / 8},
        **{number: rate * 128 / 130 / 8 for number, rate in ((3, 8), (4, 16), (5, 32), (6, 64))},
    }
)
"""GB/s of a lane of PCIe in one direction, by generation: PCI-SIG, 2.5 to 64 GT/s, 8/10 and since the third 128/130
encoding (the sixth has another, of about the same share)."""
LANES = 16
"""Lanes of a slot for a GPU, where neither the card nor the setup says otherwise."""
PCIE = Range(0.35, 0.88)
"""Share of PCIe's rate that copies of pinned memory reach. At best 55.4 of 63 GB/s, one way, on an H200:
stas00/ml-engineering at 744d01e, network/README.md, "PCIe". At worst 11 of 31.5 GB/s to an A100 while it also sends:
forums.developer.nvidia.com/t/352186."""
CHIP = Range(0.38, 0.82)
"""The same of NVLink-C2C, one way and both ways at once, on half a GB300 module: there, "NVLink-C2C"."""


class Memory(NamedTuple):
    """Memory of a machine."""

    bandwidth: float
    """GB/s, both sockets together, by the processors' datasheets."""
    nodes: int
    """NUMA nodes."""


DESKTOP = Memory(51.2, 1)
"""Two channels of DDR4-3200, 25.6 GB/s each: the slow end of a card that no known machine has."""
DGX_2 = Memory(256.0, 2)
"""Two Xeon 8168 with six channels of DDR4-2666, 21.3 GB/s each."""
DGX_A100 = Memory(409.6, 8)
"""Two EPYC 7742 with eight channels of DDR4-3200, 25.6 GB/s each, as four nodes a socket (NPS4)."""
DGX_H100 = Memory(614.4, 2)
"""Two Xeon 8480C with eight channels of DDR5-4800, 38.4 GB/s each."""
MACHINES: Mapping[str, tuple[int, Memory]] = MappingProxyType(
    {
        "Pascal": (3, DGX_2),
        "Volta": (3, DGX_2),
        "Turing": (3, DGX_2),
        "Ampere": (4, DGX_A100),
        "Ada Lovelace": (4, DGX_A100),
        "Hopper": (5, DGX_H100),
        "Blackwell": (5, DGX_H100),
        "Blackwell Ultra": (5, DGX_H100),
    }
)
"""PCIe's generation and the memory of machines of a GPU's age, by ``Gpu.architecture``."""
MEMORY = Range(0.45, 0.8)
"""Share of a host's memory bandwidth that DeepSpeed's Adam reaches with all cores. At worst 10·10⁹ elements of 30 bytes
in 2.57 s on a DGX-2: Ren et al. 2021, arXiv:2101.06840, table 4, whose 10⁹ in 0.22 s are 0.53. At best 0.8, our
assumption."""
THREAD = Range(9.45, 25.0)
"""GB/s that one thread moves. Slow: Qwen-72B on machines of eight A100, 42 bytes for each of 18.2·10⁹ elements in 10 s,
taken as eight processes of one thread each (github.com/deepspeedai/DeepSpeed/issues/6834). Fast: our assumption."""


class Host(NamedTuple):
    """Rates of a machine, in GB/s."""

    link: Range[float]
    """Of one GPU's link to its host, one direction."""
    memory: Range[float]
    """Of the optimizer's step on the CPU, all processes of the machine together."""


def pcie(generation: int, lanes: int = LANES) -> float:
    """Rate of a PCIe link in one direction (GB/s).

    Source: as ``LANE``.

    >>> round(pcie(4), 1), round(pcie(5, 8), 1), round(pcie(3), 2)
    (31.5, 31.5, 15.75)
    """
    return LANE[generation] * lanes


def slot(gpu: Gpu, mesh: Mesh) -> Range[float]:
    """Rate of the GPU's PCIe link in one direction (GB/s): the slower of card and host.

    Without a word on either the host is of the GPU's age; of an unknown card it spans generations 3 to 5.

    Source: data/gpus.csv, ``pcie_generation`` and ``pcie_lanes``, by row; the keys of the same names.

    >>> slot(Gpu(name="card", memory_bytes=2**34, pcie_generation=4), Mesh(pcie_generation=3, pcie_lanes=8))
    Range(low=7.876923076923077, high=7.876923076923077)
    """
    lanes = min(gpu.pcie_lanes or LANES, mesh.pcie_lanes or LANES)
    found = [*filter(None, (gpu.pcie_generation, mesh.pcie_generation))]
    if found:
        return Range.of(pcie(min(found), lanes))
    known = MACHINES.get(gpu.architecture)
    slow, fast = (known[0], known[0]) if known is not None else (3, 5)
    return Range(pcie(slow, lanes), pcie(fast, lanes))


def host_of(gpu: Gpu, mesh: Mesh, ranks: int = 1) -> Host:
    """The host of a GPU, in a machine where ``ranks`` processes run (GB/s).

        link      0.35 to 0.88 of PCIe, 0.38 to 0.82 of a chip-to-chip link
        memory    at worst the least of 0.45 of the bandwidth, 0.8 of that of one NUMA node for each process (its pages
                  lie where it first wrote them), and 9.45 GB/s for each of its threads; at best 0.8 of the bandwidth,
                  or 25 GB/s a thread

    ``torchrun`` and ``accelerate launch`` give a process one thread unless told otherwise, the slow end; DeepSpeed's
    launcher leaves it all cores, the fast end.

    Source: torch 2.13, distributed/run.py, ``config_from_args`` (OMP_NUM_THREADS); accelerate 1.15, commands/launch.py,
    ``_validate_launch_command`` (``num_cpu_threads_per_process``); DeepSpeed 0.19.6, launcher/launch.py, ``main``
    (``bind_cores_to_rank``) and csrc/includes/cpu_adam.h, ``Step_AVX`` (``omp parallel for``).
    """
    link = PCIE * slot(gpu, mesh)
    if gpu.host_link_gb_per_s is not None and mesh.pcie_generation is None:
        link = CHIP * gpu.host_link_gb_per_s
    slow, fast = _memory(gpu, mesh, ranks)
    each, cores = mesh.num_cpu_threads_per_process, mesh.host_cores
    least = min(cores or ranks * (each or 1), ranks * (each or 1))
    most = min(cores or ranks * each, ranks * each) if each else cores
    pages = MEMORY.high * slow.bandwidth * min(1.0, ranks / slow.nodes)
    worst = min(MEMORY.low * slow.bandwidth, pages, THREAD.low * least)
    best = MEMORY.high * fast.bandwidth
    return Host(link, Range(worst, best if most is None else min(best, THREAD.high * most)))


def _memory(gpu: Gpu, mesh: Mesh, ranks: int) -> Range[Memory]:
    """The memory of a machine."""
    if gpu.host_memory_gb_per_s is not None:  # a CPU of its own, or its share of one
        slow = fast = Memory(ranks * gpu.host_memory_gb_per_s, ranks)
    else:
        _, known = MACHINES.get(gpu.architecture, (0, None))
        slow, fast = known or DGX_2, known or DGX_H100
        slow = slow if gpu.machines else DESKTOP
    if (given := mesh.host_memory_bandwidth_gb_per_s) is not None:
        slow, fast = slow._replace(bandwidth=given), fast._replace(bandwidth=given)
    return Range(slow, fast)
