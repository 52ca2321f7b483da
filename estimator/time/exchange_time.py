"""Seconds of what GPUs send to each other in a step, and of their shares of its work; derived from the strategy."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from estimator.objectives.batch import passes_without_grad
from estimator.parallel.network import exchange_seconds, links, replicas, shards
from estimator.resident.model import Resident
from estimator.time.optimizer_time import OPTIMIZER_STEP
from estimator.time.rates import compute_dtype
from estimator.values.arithmetic import larger, total
from estimator.values.facets.mesh import Mesh
from estimator.values.results import TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model, Strategy


class Sharing(Enum):
    """What is sharded, which determines the communication."""

    REPLICAS = "everything on each GPU, as in DDP"
    STATES = "sharded optimizer states, as in ZeRO 1 and 2"
    WEIGHTS = "sharded weights too, as in ZeRO 3 and FSDP"
    GATHERED_ONCE = "sharded weights that stay gathered until backward, as in FSDP's shard_grad_op"
    LAYERS = "layers on different GPUs that work in turn, as in a device map"


SHARING_OF_STRATEGY: Mapping[Strategy, Sharing] = {
    Strategy.NONE: Sharing.REPLICAS,
    Strategy.DDP: Sharing.REPLICAS,
    Strategy.ZERO1: Sharing.STATES,
    Strategy.ZERO2: Sharing.STATES,
    Strategy.ZERO3: Sharing.WEIGHTS,
    Strategy.FSDP: Sharing.WEIGHTS,
    Strategy.FSDP_GRAD_OP: Sharing.GATHERED_ONCE,
    Strategy.HSDP: Sharing.WEIGHTS,
    Strategy.DEVICE_MAP: Sharing.LAYERS,
}
"""What each strategy shards."""


def communication(
    gpu: Gpu,
    setup: TrainingSetup,
    resident: Resident,
    *,
    sharing: Sharing,
    link_gb_per_s: float | None = None,
    network_gb_per_s: float | None = None,
) -> TimePart:
    """Seconds of communication per step: overlapped with computation at best, added to it at worst.

        replicas   2 · gradients, once per step, among all; the same with sharded states
        weights    2 · weights + gradients, once per micro-batch, both in the compute dtype; gathered once: 1 · weights;
                   and once more for each pass without gradients;
                   hsdp: among the n GPUs of a copy, and then 2 · gradients / n, once per step, among the copies

    ``exchange_seconds`` gives the time within and between machines. ``link_gb_per_s`` and ``network_gb_per_s``: one
    direction; by default the card's and those of its machines.

    Leaves out: latency.
    Source: Rajbhandari et al. 2019, arXiv:1910.02054, section 7; PyTorch, FSDP, ``ShardingStrategy``.
    """
    by = links(gpu, setup.mesh, link_gb_per_s, network_gb_per_s)
    if sharing in (Sharing.WEIGHTS, Sharing.GATHERED_ONCE):
        narrow = min(1.0, compute_dtype(setup.precision).bytes / setup.precision.dtype.bytes)
        gathers = (2 if sharing is Sharing.WEIGHTS else 1) + passes_without_grad(setup)
        exchanged = gathers * (resident.weights + resident.adapters) + resident.gradients
        size = setup.batch.gradient_accumulation_steps * narrow * exchanged
    else:
        size = 2.0 * resident.gradients
    low, high = exchange_seconds(size, shards(setup), by)
    if setup.mesh.dp_replicate_size > 1:
        shard = 2 * resident.gradients / setup.mesh.shard_ranks
        beside = exchange_seconds(shard, replicas(setup.mesh), by)
        low, high = low + beside[0], high + beside[1]
    return TimePart("exchange between GPUs", low, high)


def with_exchange(
    parts: tuple[TimePart, ...], mesh: Mesh, sharing: Sharing, exchange: TimePart
) -> tuple[TimePart, ...]:
    """The parts of a step on one of several GPUs: its share of the optimizer's work, and communication."""
    share = 1 if sharing is Sharing.REPLICAS else mesh.shard_ranks
    own = tuple(
        TimePart(name, low / share, high / share)
        if name == OPTIMIZER_STEP
        else TimePart(name, low, high)
        for name, low, high in parts
    )
    behind = total(part.low_seconds for part in own)
    return (*own, exchange._replace(low_seconds=larger(0.0, exchange.low_seconds - behind)))


def one_after_another(
    parts: tuple[TimePart, ...],
    model: Model,
    setup: TrainingSetup,
    link: float,
) -> tuple[TimePart, ...]:
    """The parts of a step over a device map: those of one GPU, and copies between GPUs, which nothing overlaps.

    The optimizer's kernels are launched on every GPU before the first finishes, so at best all GPUs update in parallel.
    """
    own = tuple(
        TimePart(name, low / setup.mesh.num_gpus if name == OPTIMIZER_STEP else low, high)
        for name, low, high in parts
    )
    seconds = crossing_bytes(model, setup) / link
    return (*own, TimePart("copies between GPUs", seconds, seconds))


def crossing_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes copied between GPUs in an optimizer step over a device map.

        accumulation · T · (2 · (n - 1) · h + V) · p     n: GPUs, T: tokens of a micro-batch

    Hidden states forward and their gradients backward between neighbouring GPUs; all logits to the first GPU. A tied
    head is on the first GPU already, so the hidden states are copied there instead.

    Leaves out: masks and rotary tables; GPUs that hold no layer.
    Source: accelerate 1.15, hooks.py, ``AlignDevicesHook``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> crossing_bytes(TINY_LLAMA, TrainingSetup(num_gpus=2)) == 1024 * (2 * 8 + 10) * 2
    True
    """
    hops = setup.mesh.num_gpus - 1
    if model.is_tied:
        wide = 2 * (hops + 1) * model.hidden_size
    else:
        wide = 2 * hops * model.hidden_size + model.vocab_size
    return (
        setup.batch.gradient_accumulation_steps
        * setup.batch.tokens
        * wide
        * compute_dtype(setup.precision).bytes
    )
