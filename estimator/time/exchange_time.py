"""Seconds of what GPUs send to each other in a step, and of their shares of its work; derived from the strategy."""

from __future__ import annotations

from typing import NamedTuple

from estimator.families.adapters import trainable_parameters
from estimator.parallel.computed import computed_width
from estimator.parallel.network import exchange_seconds, links, parts, replicas, shards
from estimator.parallel.zero import gathers_nothing
from estimator.passes.batch import passed_rows
from estimator.resident.model import Resident
from estimator.time.flops import replayed
from estimator.time.optimizer_time import OPTIMIZER_STEP
from estimator.time.rates import BANDWIDTH_SHARE, Rates, compute_dtype
from estimator.values.arithmetic import real, smaller
from estimator.values.facets.mesh import Mesh
from estimator.values.range import Range, by_end, summed
from estimator.values.results import TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model

EXPOSED = Range(0.1, 1.0)
"""Share of the communication that adds to the step although computation could hide it; at worst
all of it. Fast end fitted: data/throughput.csv."""
EXCHANGE = "exchange between GPUs"
"""The part of a step."""


class Exchange(NamedTuple):
    """Seconds of communication in a step."""

    behind: Range[float]
    """During forward and backward, which hide it at best."""
    alone: Range[float]
    """After the optimizer, when nothing else runs."""


def communication(
    gpu: Gpu,
    model: Model,
    setup: TrainingSetup,
    resident: Resident,
    *,
    link_gb_per_s: float | None = None,
    network_gb_per_s: float | None = None,
) -> Exchange:
    """Seconds of communication per step: overlapped with computation at best, added to it at worst.

        replicas   2 · gradients, once per step, among all
        states     2 · gradients, with zero1 once per step, with zero2 once per micro-batch; and 1 · trained weights
                   after the optimizer, both in the dtype of the computation
        weights    2 · weights + gradients, once per micro-batch, both in the compute dtype; gathered once: 1 · weights;
                   and once more for each pass without gradients;
                   hsdp: among the n GPUs of a copy, and then 2 · gradients / n, once per step, among the copies

    DeepSpeed's stages 1 and 2 reduce a whole bucket on every GPU (``use_multi_rank_bucket_allreduce``), although each
    keeps only its partition. ``exchange_seconds`` gives the time within and between machines. ``link_gb_per_s`` and
    ``network_gb_per_s``: one direction; by default the card's and those of its machines.

    Leaves out: latency.
    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``average_tensor``, ``allreduce_and_scatter``,
    ``reduce_ready_partitions_and_remove_grads`` and ``step``; Rajbhandari et al. 2019, arXiv:1910.02054, section 7;
    PyTorch, FSDP, ``ShardingStrategy``.
    """
    by = links(gpu, setup.mesh, link_gb_per_s, network_gb_per_s)
    times, strategy = setup.batch.gradient_accumulation_steps, setup.mesh.strategy
    after = 0.0
    if strategy.shards_weights:
        narrow = min(1.0, compute_dtype(setup.precision).bytes / setup.precision.dtype.bytes)
        if setup.mesh.loads_divided:  # without a policy of mixed precision
            narrow = 1.0
        gathers = (1 if strategy.keeps_gathered else 2) + setup.passes_without_grad
        exchanged = gathers * (resident.weights + resident.adapters) + resident.gradients
        size = times * narrow * exchanged
    elif strategy.shards_states:
        after = real(computed_width(setup.precision) * trainable_parameters(model, setup.adapters))
        size = 2 * after * (1 if strategy.reduces_after_backward else times)
    else:
        size = 2.0 * resident.gradients
    behind = exchange_seconds(size, shards(setup.mesh), by)
    if setup.mesh.dp_replicate_size > 1:
        shard = 2 * resident.gradients / setup.mesh.shard_ranks
        behind = behind + exchange_seconds(shard, replicas(setup.mesh), by)
    return Exchange(behind, exchange_seconds(after, shards(setup.mesh), by))


SUMS_FORWARD, SUMS_BACKWARD, SUMS_REPLAYED = 2, 5, 1
"""All-reduces of a layer under tensor parallelism: behind attention and MLP; of the gradients of the inputs of queries,
keys, values, gate and up; and in a replay, which stops before the last. parallel/tensor_parallel.py."""


def between_layers(
    gpu: Gpu,
    model: Model,
    setup: TrainingSetup,
    tokens: int,
    *,
    link_gb_per_s: float | None = None,
    network_gb_per_s: float | None = None,
) -> Range[float]:
    """Seconds of the collectives of ranks that divide every layer, per step: each is waited for at once.

        bytes per token = p · (2 · h · (sums · layers + 2) + V)    2: embedding, and the gradient of the head's input

    ``model``: a rank's part; ``tokens``: of a row.

    Leaves out: latency.
    Source: derived, from ``parallel.tensor_parallel``.
    """
    by = links(gpu, setup.mesh, link_gb_per_s, network_gb_per_s)
    sums = SUMS_FORWARD + SUMS_BACKWARD + SUMS_REPLAYED * replayed(model, setup)
    hidden = 2 * model.hidden_size * (sums * model.num_hidden_layers + 2)
    words = model.vocab_size * setup.mesh.tp_size
    rows = setup.batch.gradient_accumulation_steps * passed_rows(setup)
    size = float(rows * tokens * compute_dtype(setup.precision).bytes * (hidden + words))
    return exchange_seconds(size, parts(setup.mesh), by)


def with_exchange(
    parts: tuple[TimePart, ...], mesh: Mesh, exchange: Exchange
) -> tuple[TimePart, ...]:
    """The parts of a step on one of several GPUs, and the seconds in which they wait for communication.

        max(0, exchange - rest) + exposed · min(exchange, rest), and what nothing hides

    Source: derived; the first gathering and the last reduction overlap nothing, and the others take multiprocessors and
    bandwidth from the kernels that they run beside.
    """

    def waiting(exposed: float, sent: float, alone: float, rest: float) -> float:
        hidden = 0.0 if mesh.overlap_comm is False else (1 - exposed) * smaller(sent, rest)
        return sent - hidden + alone

    rest = summed(part.seconds for part in parts)
    seconds = by_end(waiting, EXPOSED, exchange.behind, exchange.alone, rest)
    return (*parts, TimePart(EXCHANGE, seconds))


def copies_part(
    model: Model, setup: TrainingSetup, resident: Resident, rate: Rates
) -> TimePart | None:
    """Seconds of copying gradients into and out of buckets, and gathered weights out of theirs; None without ZeRO.

        stage 1, 2   gradients · (6 + 4 / n), with zero1 once per step, with zero2 once per micro-batch: into the
                     bucket, divided, out of it, then the own partition twice, each read and written
        stage 3      per micro-batch  gathers · weights · (2 + 2 / n) + gradients · (6 + 2 / n)

    In the dtype of the computation, on n GPUs. At best the copies of a bucket's reduction run beside backward: of
    stages 1 and 2 the copy into the bucket remains, of stage 3 none.

    Source: DeepSpeed 0.19.6, runtime/zero/stage_1_and_2.py, ``reduce_independent_p_g_buckets_and_remove_grads``,
    ``average_tensor``, ``allreduce_bucket`` and ``copy_grads_in_partition``; stage3.py, ``__add_grad_to_ipg_bucket``
    and ``partition_grads``; runtime/comm/coalesced_collectives.py, ``reduce_scatter_coalesced``;
    partition_parameters.py, ``AllGatherCoalescedHandle.wait``.
    """
    mesh = setup.mesh
    if not mesh.strategy.is_zero:
        return None
    times, ranks = setup.batch.gradient_accumulation_steps, mesh.num_gpus
    reduced = computed_width(setup.precision) * trainable_parameters(model, setup.adapters)
    if mesh.strategy.shards_weights:
        narrow = min(1.0, compute_dtype(setup.precision).bytes / setup.precision.dtype.bytes)
        gathered = (2 + setup.passes_without_grad) * narrow * (resident.weights + resident.adapters)
        if gathers_nothing(mesh):
            gathered = 0.0
        least = 0.0
        whole = times * (gathered * (2 + 2 / ranks) + reduced * (6 + 2 / ranks))
    else:
        times = 1 if mesh.strategy.reduces_after_backward else times
        least, whole = times * 2.0 * reduced, times * reduced * (6 + 4 / ranks)
    moved = Range(whole if mesh.overlap_comm is False else least, whole)
    return TimePart("copies in and out of buckets", moved / (BANDWIDTH_SHARE * rate.bandwidth))


def one_after_another(
    parts: tuple[TimePart, ...],
    model: Model,
    setup: TrainingSetup,
    link: float,
) -> tuple[TimePart, ...]:
    """The parts of a step over a device map: those of one GPU, and copies between GPUs, which nothing overlaps.

    The optimizer's kernels are launched on every GPU before the first finishes, so at best all GPUs update in parallel.
    """
    at_once = Range(1, setup.mesh.num_gpus)
    own = tuple(
        TimePart(name, seconds / at_once if name == OPTIMIZER_STEP else seconds)
        for name, seconds in parts
    )
    seconds = crossing_bytes(model, setup) / link
    return (*own, TimePart("copies between GPUs", Range.of(seconds)))


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
