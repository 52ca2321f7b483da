"""Seconds of a step and hours of a run, as a range with its reasons.

A step is a list of parts: matrix products by their operations, by the bytes they read and write and by the tiles they
fill; attention by its kernel; everything between them by the bytes that the tape counts; the optimizer and
dequantisation by theirs; communication by links. Each part has a fast and a slow end, and the ends add up, because one
stream runs the parts in sequence. The host launches one operator after another beside the GPU, so the longer of the two
decides.

Nine in ten published runs lie between the sums. This folder's constants marked "fitted" come from data/throughput.csv,
where no kernel benchmark gives them; ``benchmarks/fit_throughput.py`` prints them, and how well they hold for sources
that they were not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from estimator.families.liger import loss_of
from estimator.parallel.network import links
from estimator.parallel.offload import offloads
from estimator.passes.batch import passed_rows, rows_per_example
from estimator.resident.model import Resident
from estimator.time.between import (
    COMPILED_LOSS_BYTES,
    EAGER_LOSS_BYTES,
    FUSED_LOSS_BYTES,
    PLAIN_LOSS_BYTES,
    BetweenProducts,
    between_products,
    scored_words,
)
from estimator.time.exchange_time import (
    between_layers,
    communication,
    copies_part,
    one_after_another,
    with_exchange,
)
from estimator.time.float8_time import casts_to_float8_part, float8_sizes, product_seconds
from estimator.time.flops import FORWARD, Matrices, Work, matrices, replayed, trains_whole
from estimator.time.host_time import launches_part
from estimator.time.lengths import lengths, works
from estimator.time.offload_time import offload_parts, saved_tensor_parts, steps_on_host
from estimator.time.one_gpu import Facets, is_shared, of_micro_step, of_step, setup_of
from estimator.time.optimizer_time import (
    OPTIMIZER_STEP,
    accumulation_part,
    optimizer_part,
    zero_optimizer_part,
)
from estimator.time.own_reading import paced
from estimator.time.products import (
    DORA_WEIGHT_BYTES,
    IDLE,
    MOVES,
    SKINNY,
    SPLIT_WAVE,
    casts_part,
    dequantisation_part,
    idle_operations,
    moved_bytes,
    skinny_bytes,
)
from estimator.time.rates import BANDWIDTH_SHARE, Rates, rates, width_of
from estimator.time.recurrences import delta_nets_part, scans_part
from estimator.time.spread import Cause, Cost, together
from estimator.values.arithmetic import StandIn, ceil_div, larger, smaller, total
from estimator.values.range import Range, by_end, summed
from estimator.values.results import TERA, RunTime, TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model


def run_time(
    model: Model,
    gpu: Gpu,
    setup: TrainingSetup,
    resident: Resident,
    *,
    link_gb_per_s: float | None = None,
    network_gb_per_s: float | None = None,
) -> RunTime:
    """Seconds per step and hours of the run, whole job; the caller has checked ``missing_rate``.

        steps per epoch = ⌈rows / (b · accumulation · GPUs)⌉,  steps = ⌈epochs · steps per epoch⌉

    ``resident``: memory of one GPU if nothing were sharded. ``link_gb_per_s`` and ``network_gb_per_s`` as in
    ``communication``.

    Leaves out: loading, evaluation, saving, a slow input pipeline, the first step's compilation and warm-up.
    Error: tests/test_throughput.py compares it with data/throughput.csv.
    Source: transformers 5.23, trainer.py, ``set_initial_training_values``.
    """
    rate, length = rates(gpu, setup.precision), lengths(setup)
    work = works(model, setup, length)
    accumulation = setup.batch.gradient_accumulation_steps
    model_flops = by_end(lambda end: accumulation * end.model, work)
    # a card may be measured above its datasheet's rate, which then becomes its peak, so utilisation is at most 1
    peak = max(rate.peak, rate.best)
    if setup.run.mfu is not None:
        model_flops = Range.of(model_flops.high)  # the utilisation was measured on the actual work
        seconds = model_flops / (setup.run.mfu * peak)
        parts: tuple[TimePart, ...] = (TimePart("at the given utilisation", seconds),)
    else:
        parts = _parts_on_one_gpu(model, setup, resident, rate, length.tokens, work)
        if setup.mesh.strategy.places_layers and setup.mesh.num_gpus > 1:
            link = links(gpu, setup.mesh, link_gb_per_s).gpu.high
            parts = one_after_another(parts, model, setup, link)
        elif setup.mesh.num_gpus > 1:
            given = {"link_gb_per_s": link_gb_per_s, "network_gb_per_s": network_gb_per_s}
            exchange = communication(gpu, model, setup, resident, **given)
            if setup.mesh.tp_size > 1:
                within = between_layers(gpu, model, setup, length.tokens, **given)
                exchange = exchange._replace(alone=exchange.alone + within)
            parts = with_exchange(parts, setup.mesh, exchange)
        parts = (*parts, *_parts_beside(model, gpu, setup, resident, rate, parts))
        if setup.run.pace is not None:
            parts = paced(parts, setup.run.pace, setup.run.pace_shares)
    steps = -(-length.rows_per_epoch // setup.effective_batch_size)
    return RunTime(
        parts=parts,
        model_flops_per_step=model_flops,
        hardware_flops_per_step=accumulation * work.high.hardware,
        peak_tflops=peak / TERA,
        tokens_per_step=smaller(setup.effective_batch_size, length.rows_per_epoch)
        * rows_per_example(setup.task)
        * length.text,
        steps_per_epoch=steps,
        total_steps=math.ceil(steps * setup.run.num_train_epochs),
        before=precomputation(model, gpu, setup, resident),
    )


def _parts_on_one_gpu(
    model: Model,
    setup: TrainingSetup,
    resident: Resident,
    rate: Rates,
    length: int,
    work: Range[Work],
) -> tuple[TimePart, ...]:
    ranks = setup.mesh.shard_ranks if setup.mesh.strategy.shards_states else 1
    elsewhere = steps_on_host(setup.mesh) or setup.mesh.strategy.is_zero
    own = 0.0 if elsewhere else 1 / ranks
    return step_parts(model, setup, resident, rate, length, work, optimizer_share=own)


def _parts_beside(
    model: Model,
    gpu: Gpu,
    setup: TrainingSetup,
    resident: Resident,
    rate: Rates,
    parts: tuple[TimePart, ...],
) -> tuple[TimePart, ...]:
    """What ZeRO and offload add to the parts of a step, behind which they hide some of it."""
    found: tuple[TimePart, ...] = ()
    if setup.mesh.strategy.is_zero and not steps_on_host(setup.mesh):
        found = (zero_optimizer_part(model, setup, rate),)
    if (copies := copies_part(model, setup, resident, rate)) is not None:
        found = (*found, copies)
    if offloads(setup.mesh):
        behind = total(part.seconds.low for part in (*parts, *found))
        found = (*found, *offload_parts(model, gpu, setup, behind))
    busy = (part.seconds.low for part in (*parts, *found) if part.name != OPTIMIZER_STEP)
    return (*found, *saved_tensor_parts(model, gpu, setup, total(busy)))


PRODUCTS, ADAPTERS = "matrix products", "adapters"


AGAIN, ASKED = "recomputation", "passes without gradients"
"""Parts that have costs of several causes."""


class Costs(NamedTuple):
    """What an optimizer step costs one GPU, and what the host must launch for it."""

    gpu: tuple[Cost, ...]
    operators: float
    """Operators of a micro-batch."""
    calls: float
    """Calls of modules with weights in a micro-batch."""


def step_parts(
    model: Model,
    setup: TrainingSetup,
    resident: Resident,
    rate: Rates,
    length: int,
    works: Range[Work],
    *,
    optimizer_share: float = 1.0,
) -> tuple[TimePart, ...]:
    """The parts of an optimizer step on one GPU, in seconds.

        products / rate + attention / rate + Σ traffic / bandwidth, plus any time waiting for the host

    ``length``: tokens per row. What the setup leaves open, such as padding, is at its best in the low end and at its
    worst in the high end; what differs between machines and software adds in squares (``together``).
    ``optimizer_share``: of the optimizer's work, what this GPU does.

    Leaves out: overlap (a second stream, host work during GPU work); paged states that come from the host.
    Source: derived; the roofline of Williams et al. 2009, doi:10.1145/1498765.1498785, part by part.
    """
    beside = beside_micro_steps(setup, resident, rate, optimizer_share)
    if is_shared(setup):
        busy = _busy_on_one_gpu(model, of_step(setup), rate, length, works, beside)
    else:
        busy = _busy(model, setup, rate, length, works, beside)
    again = replayed(model, setup) + setup.passes_without_grad
    waiting = launches_part(model, setup, length, busy.parts, again, busy.operators, busy.calls)
    return tuple(part for part in (*busy.parts, waiting) if _takes_time(part.seconds))


def beside_micro_steps(
    setup: TrainingSetup, resident: Resident, rate: Rates, optimizer_share: float
) -> tuple[Cost, ...]:
    """Adding up the gradients of the micro-steps, and the optimizer (seconds on one GPU).

    ``optimizer_share``: of the optimizer's work, what this GPU does.

    Source: derived, as ``step_parts``.
    """
    name, stepping = optimizer_part(setup.adapters, setup.optimisation, resident, rate)
    costs = (
        Cost(Cause.OPTIMIZER, *accumulation_part(setup.batch, setup.mesh, resident, rate)),
        Cost(Cause.OPTIMIZER, name, optimizer_share * stepping),
    )
    return tuple(_taking_time(costs))


class _Busy(NamedTuple):
    """What one GPU does in a step, with what the host must launch for a micro-batch, as ``Costs`` has it."""

    parts: tuple[TimePart, ...]
    operators: float
    calls: float


def _busy(
    model: Model,
    setup: TrainingSetup,
    rate: Rates,
    length: int,
    works: Range[Work],
    beside: tuple[Cost, ...],
) -> _Busy:
    times = setup.batch.gradient_accumulation_steps
    found = step_costs(model, setup, rate, length, works.low, beside)
    parts = together(found.gpu)
    if works.low != works.high:
        costs = step_costs(model, setup, rate, length, works.high, beside).gpu
        lows = {part.name: part.seconds.low for part in parts}
        parts = tuple(
            TimePart(name, Range(lows.get(name, 0.0), seconds.high))
            for name, seconds in together(costs)
        )
    parts = _not_faster_than(times * works.low.hardware / rate.ceiling, parts)
    return _Busy(parts, found.operators, found.calls)


@lru_cache(maxsize=2048)
def _busy_on_one_gpu(
    model: Model,
    facets: Facets,
    rate: Rates,
    length: int,
    works: Range[Work],
    beside: tuple[Cost, ...],
) -> _Busy:
    """The same of these facets, remembered for the setups of a question, which share one GPU's work in many ways."""
    return _busy(model, setup_of(facets), rate, length, works, beside)


def step_costs(
    model: Model,
    setup: TrainingSetup,
    rate: Rates,
    length: int,
    work: Work,
    beside: tuple[Cost, ...],
) -> Costs:
    """The costs of all micro-steps of a step and ``beside``, each with the ends of its own cause (seconds on one GPU).

    Source: derived, as ``step_parts``.
    """
    if is_shared(setup):
        found = _micro_step_on_one_gpu(model, of_micro_step(setup), rate, length, work)
    else:
        found = _micro_step(model, setup, rate, length, work)
    times = setup.batch.gradient_accumulation_steps
    return found._replace(
        gpu=(
            *(Cost(cause, name, times * seconds) for cause, name, seconds in found.gpu),
            *beside,
        )
    )


@lru_cache(maxsize=2048)
def _micro_step_on_one_gpu(
    model: Model, facets: Facets, rate: Rates, length: int, work: Work
) -> Costs:
    return _micro_step(model, setup_of(facets), rate, length, work)


def _micro_step(model: Model, setup: TrainingSetup, rate: Rates, length: int, work: Work) -> Costs:
    """The costs of a micro-step but for adding up its gradients."""
    of = MicroBatch.of(model, setup, rate, length, work)
    calls = of.sizes.products * (of.passes + of.again + of.asked)
    return Costs(tuple(_taking_time(_costs(of))), of.written.operators, calls)


class MicroBatch(NamedTuple):
    """What the costs of a micro-batch are made of."""

    model: Model
    setup: TrainingSetup
    rate: Rates
    length: int
    """Tokens per row."""
    tokens: int
    work: Work
    sizes: Matrices
    again: float
    """Share of the layers that backward recomputes."""
    asked: int
    """Passes without gradients."""
    moves: Range[float]
    """Seconds in which the products of a pass move their matrices."""
    shapes: Range[float]
    """The same, and what their tiles leave idle."""
    skinny: Range[float]
    """Seconds of what LoRA's thin products move in a pass."""
    dora: Range[float]
    """Seconds of DoRA's norms of weights in a pass."""
    written: BetweenProducts

    @classmethod
    def of(
        cls, model: Model, setup: TrainingSetup, rate: Rates, length: int, work: Work
    ) -> MicroBatch:
        """A micro-batch of rows of so many tokens."""
        sizes, again = matrices(model, setup.adapters), replayed(model, setup)
        tokens, asked = passed_rows(setup) * length, setup.passes_without_grad
        moves = moved_bytes(setup.precision, sizes, tokens, 1) * MOVES / rate.bandwidth
        shapes = moves + IDLE * (idle_operations(sizes, 1) / rate.best)
        skinny = dora = Range(0.0, 0.0)
        if setup.adapters.uses_adapters:
            skinny = (
                SKINNY
                * tokens
                * (skinny_bytes(setup.adapters, setup.precision, sizes) / rate.bandwidth)
            )
        if setup.adapters.use_dora:
            dora = DORA_WEIGHT_BYTES * sizes.adapted / rate.bandwidth / BANDWIDTH_SHARE
        written = between_products(model, setup, length, rate, again)
        every = (model, setup, rate, length, tokens, work, sizes, again, asked)
        return cls(*every, moves, shapes, skinny, dora, written)

    @property
    def is_trained(self) -> bool:
        """Whether the model's own weights have gradients."""
        return trains_whole(self.setup.adapters)

    @property
    def passes(self) -> int:
        """Forward, the gradients of inputs, and those of weights."""
        return 2 + self.is_trained

    @property
    def float8_share(self) -> float:
        """Share of all products that multiplies in FP8."""
        sizes = self.sizes
        return float8_sizes(self.model, self.setup.precision).weights / (
            sizes.layers + sizes.outside
        )


def _costs(of: MicroBatch) -> Iterator[Cost]:
    """The costs of a micro-batch, part by part."""
    yield from _trained(of)
    if of.setup.adapters.uses_adapters:
        yield Cost(Cause.PRODUCTS, ADAPTERS, of.work.adapters / of.rate.products)
        yield Cost(Cause.TRAFFIC, ADAPTERS, 3 * of.skinny + of.dora)
    yield from _recomputed(of)
    if of.asked:
        yield from _without_gradients(of)
    yield Cost(Cause.LOOPS, *delta_nets_part(of.model, of.setup, of.length, of.again, of.rate))
    yield Cost(Cause.LOOPS, *scans_part(of.model, of.setup, of.length, of.again, of.rate))
    yield from _made_weights(of)
    yield Cost(Cause.LOSS, "logits and loss", _loss_seconds(of))


def _trained(of: MicroBatch) -> Iterator[Cost]:
    """The forward and the backward pass, without recomputation."""
    with_gradients = 3 / of.passes  # torchao makes the gradient of a frozen weight too
    products = product_seconds(of.work.products, of.float8_share, of.rate, with_gradients)
    shapes = 2 * of.shapes
    if of.is_trained:
        split = FORWARD * SPLIT_WAVE * of.sizes.products / of.rate.best
        shapes = shapes + of.moves + IDLE * split * of.tokens
    between = of.written.forward + of.written.backward
    yield Cost(Cause.PRODUCTS, PRODUCTS, products)
    yield Cost(Cause.SHAPES, PRODUCTS, shapes)
    yield Cost(Cause.ATTENTION, "attention", of.work.attention / of.rate.attention)
    yield Cost(Cause.TRAFFIC, "norms, activations, residuals", between)


def _recomputed(of: MicroBatch) -> Iterator[Cost]:
    """What backward computes again: layers, a head in tiles, a tower's layers."""
    share = float8_sizes(of.model, of.setup.precision).weights / of.sizes.layers
    yield Cost(Cause.PRODUCTS, AGAIN, product_seconds(of.work.products_again, share, of.rate))
    if of.again:
        yield Cost(Cause.SHAPES, AGAIN, of.again * of.shapes)
    yield Cost(Cause.ATTENTION, AGAIN, of.work.attention_again / of.rate.attention)
    if of.again:
        between = of.written.forward
        if of.setup.adapters.uses_adapters:
            between = between + of.skinny + of.dora
        yield Cost(Cause.TRAFFIC, AGAIN, of.again * between)


def _without_gradients(of: MicroBatch) -> Iterator[Cost]:
    """Forward passes of the model or its reference from which nothing is learned."""
    yield Cost(Cause.PRODUCTS, ASKED, of.work.products_asked / of.rate.products)
    yield Cost(Cause.SHAPES, ASKED, of.asked * of.shapes)
    yield Cost(Cause.ATTENTION, ASKED, of.work.attention_asked / of.rate.attention)
    yield Cost(Cause.TRAFFIC, ASKED, of.asked * of.written.forward)


def _made_weights(of: MicroBatch) -> Iterator[Cost]:
    """Weights as products read them: unpacked, in FP8, cast."""
    setup, rate = of.setup, of.rate
    unpackings = 2 + of.again + of.asked
    yield Cost(
        Cause.UNPACKING,
        *dequantisation_part(setup.adapters, setup.precision, of.sizes, unpackings, rate),
    )
    if setup.precision.uses_fp8:
        part = casts_to_float8_part(
            of.model, setup.precision, setup.computation, of.tokens, of.again, rate
        )
        yield Cost(Cause.TRAFFIC, *part)
    casts = (1 + of.again) * (1 - of.float8_share) + of.asked + of.is_trained
    yield Cost(Cause.OPTIMIZER, *casts_part(setup.adapters, setup.precision, of.sizes, casts, rate))


def _loss_seconds(of: MicroBatch) -> Range[float]:
    """The loss and its gradient, by the bytes per token and word of the vocabulary."""
    words = scored_words(of.model, of.setup) * width_of(of.setup.precision) / of.rate.bandwidth
    is_whole = loss_of(of.model, of.setup).takes_whole_logits
    least = PLAIN_LOSS_BYTES if is_whole else FUSED_LOSS_BYTES
    is_compiled = is_whole and of.setup.computation.torch_compile
    most = COMPILED_LOSS_BYTES if is_compiled else EAGER_LOSS_BYTES
    return of.tokens * words * (Range(least, most) / BANDWIDTH_SHARE)


def _not_faster_than(least: float, parts: tuple[TimePart, ...]) -> tuple[TimePart, ...]:
    """The parts, whose low ends add up to no less: no GPU multiplies faster than its datasheet or best measurement."""
    slower = larger(1.0, least / total(part.seconds.low for part in parts))
    return tuple(
        TimePart(name, Range(slower * seconds.low, seconds.high)) for name, seconds in parts
    )


def _taking_time(costs: Iterable[Cost]) -> Iterator[Cost]:
    return (cost for cost in costs if _takes_time(cost.seconds))


def _takes_time(seconds: Range[float]) -> bool:
    """Whether a part is listed; a record lists it in any case, since no seconds add nothing."""
    both = seconds.low + seconds.high
    return isinstance(both, StandIn) or both > 0


def precomputation(
    model: Model, gpu: Gpu, setup: TrainingSetup, resident: Resident
) -> TimePart | None:
    """Seconds of running the reference model on every example before training; None without precomputation.

        rows of the training set / (b · GPUs) · seconds of the reference's pass

    This equals the extra time of steps that run the reference model themselves, once per example.

    Source: trl 1.16, trainer/dpo_trainer.py, ``_precompute_ref_logps`` (``precompute_ref_batch_size`` is b).
    """
    if not (setup.task.precompute_ref_log_probs and setup.task.objective.has_reference):
        return None
    rate, length = rates(gpu, setup.precision), lengths(setup)
    before, after = (
        summed(
            part.seconds
            for part in step_parts(
                model, one, resident, rate, length.tokens, works(model, one, length)
            )
        )
        for one in (
            setup.replace(precompute_ref_log_probs=is_before, gradient_accumulation_steps=1)
            for is_before in (True, False)
        )
    )
    calls = ceil_div(
        length.rows_per_epoch, setup.batch.per_device_train_batch_size * setup.mesh.replicas
    )
    seconds = by_end(lambda without, with_it: calls * (with_it - without), before, after)
    return TimePart("reference precomputed", seconds)
