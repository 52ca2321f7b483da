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

from estimator.objectives.batch import rows_per_example
from estimator.parallel.network import links
from estimator.parallel.offload import offloads
from estimator.resident.model import Resident
from estimator.time.exchange_time import (
    between_layers,
    communication,
    copies_part,
    one_after_another,
    with_exchange,
)
from estimator.time.flops import Work
from estimator.time.lengths import lengths, works
from estimator.time.offload_time import offload_parts, saved_tensor_parts, steps_on_host
from estimator.time.optimizer_time import OPTIMIZER_STEP, zero_optimizer_part
from estimator.time.own_reading import paced
from estimator.time.rates import Rates, rates
from estimator.time.step_seconds import precomputation, step_parts
from estimator.values.arithmetic import smaller, total
from estimator.values.range import Range, by_end
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
            if setup.mesh.tp_size > 1:
                exchange = between_layers(gpu, model, setup, length.tokens, **given)
            else:
                exchange = communication(gpu, model, setup, resident, **given)
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
