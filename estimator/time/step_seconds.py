"""Seconds of an optimizer step on one GPU: its parts, each with a fast and a slow end; derived part by part."""

from __future__ import annotations

from dataclasses import replace

from estimator.families.liger import loss_of
from estimator.objectives.batch import passed_rows, passes_without_grad
from estimator.resident.model import Resident
from estimator.time.between import (
    COMPILED_LOSS_BYTES,
    EAGER_LOSS_BYTES,
    FUSED_LOSS_BYTES,
    PLAIN_LOSS_BYTES,
    between_products,
    scored_words,
)
from estimator.time.float8_time import casts_to_float8_part, float8_sizes, product_seconds
from estimator.time.flops import FORWARD, Work, matrices, replayed, trains_whole
from estimator.time.host_time import launches_part
from estimator.time.lengths import Lengths, lengths, works
from estimator.time.optimizer_time import accumulation_part, optimizer_part
from estimator.time.products import (
    DORA_WEIGHT_BYTES,
    FAST_MOVES,
    FAST_SKINNY,
    HALF_WAVE,
    SLOW_MOVES,
    SLOW_SKINNY,
    casts_part,
    dequantisation_part,
    idle_operations,
    moved_bytes,
    skinny_bytes,
)
from estimator.time.rates import SLOW_BANDWIDTH_SHARE, Rates, rates, width_of
from estimator.time.recurrences import delta_nets_part, scans_part
from estimator.values.arithmetic import StandIn, ceil_div, total
from estimator.values.results import TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Loss, Model

ASKED = "passes without gradients"


def step_parts(
    model: Model,
    setup: TrainingSetup,
    resident: Resident,
    rate: Rates,
    length: Lengths,
    fast: Work,
    slow: Work,
) -> tuple[TimePart, ...]:
    """The parts of an optimizer step on one GPU: seconds of each, low and high.

        products / rate + attention / rate + Σ traffic / bandwidth, plus any time waiting for the host

    Leaves out: overlap (a second stream, host work during GPU work); paged states that come from the host.
    Source: derived; the roofline of Williams et al. 2009, doi:10.1145/1498765.1498785, part by part.
    """
    sizes, times = matrices(model, setup.adapters), setup.batch.gradient_accumulation_steps
    again, asked = replayed(model, setup), passes_without_grad(setup)
    micro, is_trained = passed_rows(setup), trains_whole(setup)
    tokens_fast, tokens_slow = micro * length.fast, micro * length.slow
    once_fast = moved_bytes(setup, sizes, tokens_fast, 1) * FAST_MOVES / rate.bandwidth
    once_slow = moved_bytes(setup, sizes, tokens_slow, 1) * SLOW_MOVES / rate.bandwidth
    tiles = idle_operations(sizes, 1) / rate.best
    passes = 3 if is_trained else 2
    weight_gradients = FORWARD * HALF_WAVE * sizes.products * tokens_slow / rate.best
    written = between_products(model, setup, length, rate, again)
    skinny = skinny_bytes(setup, sizes) / rate.bandwidth
    dora = DORA_WEIGHT_BYTES * sizes.adapted if setup.adapters.use_dora else 0
    words = scored_words(model, setup) * width_of(setup.precision)
    is_whole = loss_of(model, setup) is Loss.STANDARD
    is_compiled = is_whole and setup.computation.torch_compile
    slow_loss = COMPILED_LOSS_BYTES if is_compiled else EAGER_LOSS_BYTES
    in_float8 = float8_sizes(model, setup)
    share = in_float8.weights / (sizes.layers + sizes.outside)
    replayed_share = in_float8.weights / sizes.layers
    with_gradients = 3 / passes  # torchao makes the gradient of a frozen weight too

    once = [
        TimePart(
            "matrix products",
            product_seconds(fast.products, share, rate.fast, rate.fp8_fast, with_gradients)
            + passes * once_fast,
            product_seconds(slow.products, share, rate.slow, rate.fp8_slow, with_gradients)
            + passes * once_slow
            + 2 * tiles
            + is_trained * weight_gradients,
        ),
        TimePart("attention", fast.attention / rate.flash_fast, slow.attention / rate.flash_slow),
        TimePart(
            "norms, activations, residuals",
            written.forward[0] + written.backward[0],
            written.forward[1] + written.backward[1],
        ),
        TimePart(
            "adapters",
            fast.adapters / rate.fast
            + 3 * FAST_SKINNY * tokens_fast * skinny
            + dora / rate.bandwidth,
            slow.adapters / rate.slow
            + 3 * SLOW_SKINNY * tokens_slow * skinny
            + dora / (SLOW_BANDWIDTH_SHARE * rate.bandwidth),
        ),
        TimePart(
            "recomputation",
            product_seconds(fast.products_again, replayed_share, rate.fast, rate.fp8_fast)
            + fast.attention_again / rate.flash_fast
            + again * (once_fast + written.forward[0] + FAST_SKINNY * tokens_fast * skinny)
            + again * dora / rate.bandwidth,
            product_seconds(slow.products_again, replayed_share, rate.slow, rate.fp8_slow)
            + slow.attention_again / rate.flash_slow
            + again * (once_slow + tiles + written.forward[1] + SLOW_SKINNY * tokens_slow * skinny)
            + again * dora / (SLOW_BANDWIDTH_SHARE * rate.bandwidth),
        ),
        TimePart(
            ASKED,
            fast.products_asked / rate.fast
            + fast.attention_asked / rate.flash_fast
            + asked * (once_fast + written.forward[0]),
            slow.products_asked / rate.slow
            + slow.attention_asked / rate.flash_slow
            + asked * (once_slow + tiles + written.forward[1]),
        ),
        delta_nets_part(model, setup, length, again, rate),
        scans_part(model, setup, length, again, rate),
        dequantisation_part(setup, sizes, 2 + again + asked, rate),
        casts_to_float8_part(model, setup, (tokens_fast, tokens_slow), again, rate),
        casts_part(setup, sizes, (1 + again) * (1 - share) + asked + is_trained, rate),
        TimePart(
            "logits and loss",
            tokens_fast
            * words
            * (PLAIN_LOSS_BYTES if is_whole else FUSED_LOSS_BYTES)
            / rate.bandwidth,
            tokens_slow * words * slow_loss / (SLOW_BANDWIDTH_SHARE * rate.bandwidth),
        ),
    ]
    parts = [
        TimePart(part.name, times * part.low_seconds, times * part.high_seconds)
        for part in once
        if _takes_time(part)
    ]
    parts += [accumulation_part(setup, resident, rate), optimizer_part(setup, resident, rate)]
    calls = sizes.products * (passes + again + asked)
    parts.append(
        launches_part(model, setup, length, parts, again + asked, written.operators, calls)
    )
    return tuple(part for part in parts if _takes_time(part))


def _takes_time(part: TimePart) -> bool:
    """Whether a part is listed; a record lists it in any case, since no seconds add nothing."""
    seconds = part.low_seconds + part.high_seconds
    return isinstance(seconds, StandIn) or seconds > 0


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
    low, high = [0.0, 0.0], [0.0, 0.0]
    for index, is_before in enumerate((True, False)):
        one = replace(setup, precompute_ref_log_probs=is_before, gradient_accumulation_steps=1)
        parts = step_parts(model, one, resident, rate, length, *works(model, one, length))
        low[index] = total(part.low_seconds for part in parts)
        high[index] = total(part.high_seconds for part in parts)
    calls = ceil_div(
        length.rows_per_epoch, setup.batch.per_device_train_batch_size * setup.mesh.replicas
    )
    return TimePart("reference precomputed", calls * (low[1] - low[0]), calls * (high[1] - high[0]))
