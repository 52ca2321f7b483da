"""Seconds of an optimizer step on one GPU: its parts, each with a fast and a slow end; derived part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

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
from estimator.time.optimizer_time import OPTIMIZER_STEP, accumulation_part, optimizer_part
from estimator.time.products import (
    DORA_WEIGHT_BYTES,
    FAST_IDLE,
    FAST_MOVES,
    FAST_SKINNY,
    SLOW_IDLE,
    SLOW_MOVES,
    SLOW_SKINNY,
    SPLIT_WAVE,
    casts_part,
    dequantisation_part,
    idle_operations,
    moved_bytes,
    skinny_bytes,
)
from estimator.time.rates import SLOW_BANDWIDTH_SHARE, Rates, rates, width_of
from estimator.time.recurrences import delta_nets_part, scans_part
from estimator.time.spread import Cause, Cost, together
from estimator.values.arithmetic import StandIn, ceil_div, larger, total
from estimator.values.results import TimePart
from estimator.values.setup import FACETS, TrainingSetup
from estimator.values.specs import Gpu, Model

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
    length: Lengths,
    fast: Work,
    slow: Work,
    *,
    optimizer_share: float = 1.0,
) -> tuple[TimePart, ...]:
    """The parts of an optimizer step on one GPU: seconds of each, low and high.

        products / rate + attention / rate + Σ traffic / bandwidth, plus any time waiting for the host

    What the setup leaves open, such as padding, is at its best in the low end and at its worst in the high end; what
    differs between machines and software adds in squares (``together``). ``optimizer_share``: of the optimizer's work,
    what this GPU does.

    Leaves out: overlap (a second stream, host work during GPU work); paged states that come from the host.
    Source: derived; the roofline of Williams et al. 2009, doi:10.1145/1498765.1498785, part by part.
    """
    times = setup.batch.gradient_accumulation_steps
    best = length._replace(slow=length.fast)
    found = step_costs(model, setup, resident, rate, best, fast, fast, optimizer_share)
    parts = together(found.gpu)
    if length.fast != length.slow or fast != slow:
        worst = length._replace(fast=length.slow)
        costs = step_costs(model, setup, resident, rate, worst, slow, slow, optimizer_share).gpu
        lows = {part.name: part.low_seconds for part in parts}
        parts = tuple(
            part._replace(low_seconds=lows.get(part.name, 0.0)) for part in together(costs)
        )
    ceiling = max(rate.peak, rate.best) * rate.fp8_fast / rate.fast
    parts = _not_faster_than(times * fast.hardware / ceiling, parts)
    again = replayed(model, setup) + passes_without_grad(setup)
    waiting = launches_part(model, setup, length, list(parts), again, found.operators, found.calls)
    return tuple(part for part in (*parts, waiting) if _takes_time(part))


def step_costs(
    model: Model,
    setup: TrainingSetup,
    resident: Resident,
    rate: Rates,
    length: Lengths,
    fast: Work,
    slow: Work,
    optimizer_share: float = 1.0,
) -> Costs:
    """The costs of an optimizer step, each with the ends of its own cause (seconds on one GPU).

    Source: derived, as ``step_parts``.
    """
    if isinstance(slow.model, StandIn) or setup.task.objective.generates:
        found = _micro_step(
            model, setup, rate, length, fast, slow
        )  # is recorded, or has rows by the number of GPUs
    else:
        facets = tuple(getattr(setup, name) for name in _OF_ONE_GPU)
        found = _on_one_gpu(model, facets, rate, length, fast, slow)
    added = accumulation_part(setup, resident, rate)
    _, low, high = optimizer_part(setup, resident, rate)
    costs = (
        Cost(Cause.OPTIMIZER, *added),
        Cost(Cause.OPTIMIZER, OPTIMIZER_STEP, optimizer_share * low, optimizer_share * high),
    )
    return found._replace(gpu=(*found.gpu, *_taking_time(costs)))


_OF_ONE_GPU = tuple(name for name in FACETS if name != "mesh")
"""Facets that the micro-step of one GPU depends on: not how GPUs share the work."""


@lru_cache(maxsize=2048)
def _on_one_gpu(
    model: Model,
    facets: tuple[object, ...],
    rate: Rates,
    length: Lengths,
    fast: Work,
    slow: Work,
) -> Costs:
    """The same of these facets, remembered for the setups of a question, which share one GPU's work in many ways."""
    given: dict[str, Any] = dict(zip(_OF_ONE_GPU, facets, strict=True))
    return _micro_step(model, TrainingSetup(**given), rate, length, fast, slow)


def _micro_step(
    model: Model, setup: TrainingSetup, rate: Rates, length: Lengths, fast: Work, slow: Work
) -> Costs:
    """The costs of all micro-steps of a step but for adding up their gradients."""
    sizes, times = matrices(model, setup.adapters), setup.batch.gradient_accumulation_steps
    again, asked = replayed(model, setup), passes_without_grad(setup)
    micro, is_trained = passed_rows(setup), trains_whole(setup)
    tokens_fast, tokens_slow = micro * length.fast, micro * length.slow
    moves_fast = moved_bytes(setup, sizes, tokens_fast, 1) * FAST_MOVES / rate.bandwidth
    moves_slow = moved_bytes(setup, sizes, tokens_slow, 1) * SLOW_MOVES / rate.bandwidth
    idle = idle_operations(sizes, 1) / rate.best
    shapes_fast, shapes_slow = moves_fast + FAST_IDLE * idle, moves_slow + SLOW_IDLE * idle
    passes = 3 if is_trained else 2
    split = is_trained * FORWARD * SPLIT_WAVE * sizes.products / rate.best
    written = between_products(model, setup, length, rate, again)
    skinny = skinny_bytes(setup, sizes) / rate.bandwidth
    skinny_fast = FAST_SKINNY * tokens_fast * skinny
    skinny_slow = SLOW_SKINNY * tokens_slow * skinny
    dora_fast = setup.adapters.use_dora * DORA_WEIGHT_BYTES * sizes.adapted / rate.bandwidth
    dora_slow = dora_fast / SLOW_BANDWIDTH_SHARE
    words = scored_words(model, setup) * width_of(setup.precision) / rate.bandwidth
    is_whole = loss_of(model, setup).takes_whole_logits
    least_loss = PLAIN_LOSS_BYTES if is_whole else FUSED_LOSS_BYTES
    is_compiled = is_whole and setup.computation.torch_compile
    slow_loss = COMPILED_LOSS_BYTES if is_compiled else EAGER_LOSS_BYTES
    most_loss = slow_loss / SLOW_BANDWIDTH_SHARE
    in_float8 = float8_sizes(model, setup)
    share = in_float8.weights / (sizes.layers + sizes.outside)
    share_again = in_float8.weights / sizes.layers
    with_gradients = 3 / passes  # torchao makes the gradient of a frozen weight too
    float8_casts = casts_to_float8_part(model, setup, (tokens_fast, tokens_slow), again, rate)
    delta_nets = delta_nets_part(model, setup, length, again, rate)
    scans = scans_part(model, setup, length, again, rate)
    unpacking = dequantisation_part(setup, sizes, 2 + again + asked, rate)
    casts = casts_part(setup, sizes, (1 + again) * (1 - share) + asked + is_trained, rate)

    once = [
        Cost(
            Cause.PRODUCTS,
            PRODUCTS,
            product_seconds(fast.products, share, rate.fast, rate.fp8_fast, with_gradients),
            product_seconds(slow.products, share, rate.slow, rate.fp8_slow, with_gradients),
        ),
        Cost(
            Cause.SHAPES,
            PRODUCTS,
            2 * shapes_fast + (passes - 2) * moves_fast + FAST_IDLE * split * tokens_fast,
            2 * shapes_slow + (passes - 2) * moves_slow + SLOW_IDLE * split * tokens_slow,
        ),
        Cost(
            Cause.ATTENTION,
            "attention",
            fast.attention / rate.flash_fast,
            slow.attention / rate.flash_slow,
        ),
        Cost(
            Cause.TRAFFIC,
            "norms, activations, residuals",
            written.forward[0] + written.backward[0],
            written.forward[1] + written.backward[1],
        ),
        Cost(Cause.PRODUCTS, ADAPTERS, fast.adapters / rate.fast, slow.adapters / rate.slow),
        Cost(Cause.TRAFFIC, ADAPTERS, 3 * skinny_fast + dora_fast, 3 * skinny_slow + dora_slow),
        Cost(
            Cause.PRODUCTS,
            AGAIN,
            product_seconds(fast.products_again, share_again, rate.fast, rate.fp8_fast),
            product_seconds(slow.products_again, share_again, rate.slow, rate.fp8_slow),
        ),
        Cost(Cause.SHAPES, AGAIN, again * shapes_fast, again * shapes_slow),
        Cost(
            Cause.ATTENTION,
            AGAIN,
            fast.attention_again / rate.flash_fast,
            slow.attention_again / rate.flash_slow,
        ),
        Cost(
            Cause.TRAFFIC,
            AGAIN,
            again * (written.forward[0] + skinny_fast + dora_fast),
            again * (written.forward[1] + skinny_slow + dora_slow),
        ),
        Cost(
            Cause.PRODUCTS,
            ASKED,
            fast.products_asked / rate.fast,
            slow.products_asked / rate.slow,
        ),
        Cost(Cause.SHAPES, ASKED, asked * shapes_fast, asked * shapes_slow),
        Cost(
            Cause.ATTENTION,
            ASKED,
            fast.attention_asked / rate.flash_fast,
            slow.attention_asked / rate.flash_slow,
        ),
        Cost(Cause.TRAFFIC, ASKED, asked * written.forward[0], asked * written.forward[1]),
        Cost(Cause.LOOPS, *delta_nets),
        Cost(Cause.LOOPS, *scans),
        Cost(Cause.UNPACKING, *unpacking),
        Cost(Cause.TRAFFIC, *float8_casts),
        Cost(Cause.OPTIMIZER, *casts),
        Cost(
            Cause.LOSS,
            "logits and loss",
            tokens_fast * words * least_loss,
            tokens_slow * words * most_loss,
        ),
    ]
    costs = (it._replace(low=times * it.low, high=times * it.high) for it in once)
    return Costs(
        tuple(_taking_time(costs)), written.operators, sizes.products * (passes + again + asked)
    )


def _not_faster_than(seconds: float, parts: tuple[TimePart, ...]) -> tuple[TimePart, ...]:
    """The parts, whose low ends add up to no less: no GPU multiplies faster than its datasheet or best measurement."""
    slower = larger(1.0, seconds / total(part.low_seconds for part in parts))
    return tuple(part._replace(low_seconds=slower * part.low_seconds) for part in parts)


def _taking_time(costs: Iterable[Cost]) -> Iterator[Cost]:
    return (it for it in costs if _takes_time(TimePart(it.name, it.low, it.high)))


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
        one = setup.replace(precompute_ref_log_probs=is_before, gradient_accumulation_steps=1)
        parts = step_parts(model, one, resident, rate, length, *works(model, one, length))
        low[index] = total(part.low_seconds for part in parts)
        high[index] = total(part.high_seconds for part in parts)
    calls = ceil_div(
        length.rows_per_epoch, setup.batch.per_device_train_batch_size * setup.mesh.replicas
    )
    return TimePart("reference precomputed", calls * (low[1] - low[0]), calls * (high[1] - high[0]))
