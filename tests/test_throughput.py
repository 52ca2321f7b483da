"""Seconds and hours: by hand, as properties, and against published runs."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import (
    AttnImplementation,
    Dtype,
    Gpu,
    Method,
    MixedPrecision,
    Optimizer,
    RunTime,
    TrainingSetup,
    catalog,
    estimate,
)
from estimator.parallel.strategies import resident_memory
from estimator.proof.accuracy import published_runs
from estimator.step.timeline import structure
from estimator.time.exchange_time import communication
from estimator.time.lengths import expected_longest, lengths, works
from estimator.time.optimizer_time import OPTIMIZER_STEP
from estimator.time.rates import SHARE_ELSEWHERE, missing_rate, rates
from estimator.time.spread import Cause, Cost, together
from estimator.time.throughput import beside_micro_steps, run_time, step_costs
from estimator.values.range import Range, summed
from estimator.values.strategies import Strategy

MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
A100 = catalog.gpu("A100-SXM4-80GB")
CARD = Gpu(
    name="card", memory_bytes=2**36, bf16_dense_tflops=100.0, memory_bandwidth_gb_per_s=1000.0
)
"""A made-up card with round figures: 10¹⁴ operations, 10¹² bytes a second."""
LONG = TrainingSetup(max_length=4096, attn_implementation=AttnImplementation.FLASH_ATTENTION_2)


def timed(setup: TrainingSetup, model: object = MISTRAL, gpu: Gpu = A100) -> RunTime:
    """The estimated time; fails if there is none."""
    assert isinstance(model, type(MISTRAL))
    time = estimate(model, gpu, setup).time
    assert time is not None
    return time


def part(time: RunTime, name: str) -> tuple[float, float]:
    """Low and high seconds of one part; zeros if the step lacks it."""
    ends = [(low, high) for found, (low, high) in time.parts if found == name]
    return ends[0] if ends else (0.0, 0.0)


def own(name: str, setup: TrainingSetup, gpu: Gpu = CARD) -> tuple[float, float]:
    """Low and high seconds of one part of Mistral's step if its own costs are fast or slow."""
    rate, length = rates(gpu, setup.precision), lengths(setup)
    beside = beside_micro_steps(setup, resident_memory(MISTRAL, structure(setup)), rate, 1.0)
    fast, slow = (
        summed(
            cost.seconds
            for cost in step_costs(MISTRAL, setup, rate, length.tokens, work, beside).gpu
            if cost.name == name
        )
        for work in works(MISTRAL, setup, length)
    )
    return fast.low, slow.high


# --- published runs -----------------------------------------------------------------------------

ONE_GPU = pytest.param(lambda run: run.setup.mesh.num_gpus == 1, id="one GPU")
SEVERAL = pytest.param(lambda run: run.setup.mesh.num_gpus > 1, id="several GPUs")
KINDS = [
    ONE_GPU,
    SEVERAL,
    *(
        pytest.param(
            lambda run, method=method: (
                run.setup.mesh.num_gpus == 1 and run.setup.adapters.method is method
            ),
            id=f"one GPU, {method.value}",
        )
        for method in Method
    ),
]


@pytest.mark.parametrize("chosen", [ONE_GPU, SEVERAL])
def test_nine_of_ten_published_runs_are_inside_the_bracket(chosen):
    runs = [run for run in published_runs() if chosen(run)]
    outside = [f"{run.id}: {run.step_seconds:.2f} s" for run in runs if not run.inside]
    assert len(runs) > 100
    assert len(outside) <= len(runs) / 10, outside


@pytest.mark.parametrize("chosen", KINDS)
def test_half_of_the_brackets_are_narrower_than_a_factor_of_1_9(chosen):
    assert statistics.median(run.width for run in published_runs() if chosen(run)) <= 1.9


def test_half_of_all_brackets_are_narrower_than_a_factor_of_1_66():
    assert statistics.median(run.width for run in published_runs()) <= 1.66


def test_half_of_the_brackets_over_the_catalogue_are_narrower_than_a_factor_of_1_85():
    """At 1 × 2,048 tokens: each seventh model on each third card; no bracket is wider than a factor of 5."""
    models = [entry.model for entry in list(catalog.models().values())[::7]]
    models = [entry for entry in models if entry.quantization is None]
    setups = [TrainingSetup(max_length=2048, method=method, lora_dropout=0) for method in Method]
    widths = [
        time.step_seconds.high / time.step_seconds.low
        for gpu in TIMED[::3]
        for number, model in enumerate(models)
        if (time := estimate(model, gpu, setups[number % len(setups)]).time) is not None
    ]
    assert len(widths) > 500
    assert statistics.median(widths) <= 1.85
    assert max(widths) < 5


def test_few_published_runs_are_faster_than_the_fast_end():
    """Brackets are fitted to hold 92 %; at most one in 20 runs may be faster than the fast end."""
    runs = published_runs()
    faster = [run.id for run in runs if run.step_seconds < run.estimated.step_seconds.low]
    assert len(faster) <= len(runs) / 20, faster


# --- by hand ------------------------------------------------------------------------------------


def test_fast_end_of_matrix_products_is_operations_over_the_rate():
    setup = TrainingSetup(max_length=4096, per_device_train_batch_size=64)
    elements = 7_241_732_096 - 32_000 * 4096  # without the embedding
    seconds = 6 * 64 * 4096 * elements / (1e14 * SHARE_ELSEWHERE.high)
    low, _ = own("matrix products", setup)
    assert seconds < low < 1.1 * seconds  # slightly more, for reads and writes


def test_accumulation_repeats_all_but_the_optimizer_step_and_adds_the_gradients_up():
    names = (
        "matrix products",
        "attention",
        "logits and loss",
        "gradients added up",
        "optimizer step",
    )
    four = replace(LONG, gradient_accumulation_steps=4)
    once, times = ({part: own(part, setup, A100)[1] for part in names} for setup in (LONG, four))
    for name in names[:3]:
        assert times[name] == pytest.approx(4 * once[name])
    assert times["optimizer step"] == once["optimizer step"]
    # three of the four micro-batches read two and write one of 16-bit gradients, at 0.8 of 2,039 GB/s
    assert times["gradients added up"] == pytest.approx(
        3 * 3 * 2 * 7_241_732_096 / (0.8 * 2.039e12)
    )
    assert once["gradients added up"] == 0


def test_a_small_step_waits_for_the_host():
    """Qwen's table, Qwen-7B LoRA, 256 tokens: 0.15 s for 32 layers; LitGPT takes as long for 120 tokens."""
    small = timed(TrainingSetup(method=Method.LORA, max_length=128))
    assert part(small, "waiting for the host")[1] > 0
    assert 0.142 < small.step_seconds.high < 0.3
    assert part(timed(LONG), "waiting for the host") == (0, 0)


def test_float32_matmuls_run_at_the_vector_rate():
    setup = TrainingSetup(dtype=Dtype.FLOAT32, mixed_precision=MixedPrecision.NO)
    assert rates(A100, setup.precision).peak == 19.5e12
    assert timed(setup).step_seconds.low > 9 * timed(TrainingSetup()).step_seconds.low


def test_a_cards_measured_rate_bounds_its_matmuls():
    assert rates(A100, TrainingSetup().precision).best == 271e12
    assert rates(CARD, TrainingSetup().precision).best == 100e12


def test_shards_gather_weights_twice_and_scatter_gradients_once():
    setup = TrainingSetup(num_gpus=4, gradient_accumulation_steps=2, strategy=Strategy.FSDP)
    resident = resident_memory(MISTRAL, structure(replace(setup, strategy=Strategy.NONE)))
    part = communication(A100, MISTRAL, setup, resident, link_gb_per_s=100)
    slow = 2 * 3 / 4 * 6 * 7_241_732_096 / (0.78 * 1e11)
    assert (part.behind + part.alone).high == pytest.approx(slow, rel=0.001)


def test_zero_2_reduces_every_micro_batch_and_zero_1_every_step():
    # stage_1_and_2.py, reduce_ready_partitions_and_remove_grads: stage 2 always, stage 1 at the boundary; step gathers
    sent = {}
    for strategy in (Strategy.ZERO1, Strategy.ZERO2):
        setup = TrainingSetup(num_gpus=4, gradient_accumulation_steps=3, strategy=strategy)
        resident = resident_memory(MISTRAL, structure(replace(setup, strategy=Strategy.NONE)))
        part = communication(A100, MISTRAL, setup, resident, link_gb_per_s=100)
        sent[strategy] = part.behind.low, part.alone.low
    once = 3 / 4 * 2 * 7_241_732_096 / 1e11
    assert sent[Strategy.ZERO1] == pytest.approx((2 * once, once))
    assert sent[Strategy.ZERO2] == pytest.approx((3 * 2 * once, once))


def test_zero_1_gathers_its_weights_after_the_step_when_nothing_hides_them():
    # nine tenths of the reduction, twice as long, hide behind backward; 3/4 of 2 bytes a weight over 300 GB/s remain
    time = _on_four(Strategy.ZERO1, max_length=8192)
    assert part(time, "exchange between GPUs")[0] == pytest.approx(
        (1 + 0.1 * 2) * 3 / 4 * 2 * 7_241_732_096 / 300e9, rel=1e-3
    )
    shown = _on_four(Strategy.ZERO1, max_length=8192, overlap_comm=False)
    assert part(shown, "exchange between GPUs")[0] == pytest.approx(
        3 * 3 / 4 * 2 * 7_241_732_096 / 300e9, rel=1e-3
    )


@pytest.mark.parametrize(
    ("strategy", "times", "low", "high"),
    [
        # a bucket is filled (2 + 2), divided (2 + 2) and flattened (2 + 2), the own quarter copied twice; the first
        # of these runs on the compute stream
        (Strategy.ZERO1, 1, 2, 6 + 4 / 4),
        (Strategy.ZERO2, 3, 2, 6 + 4 / 4),
        # the same, its quarter once; and two gathers, each out of one buffer, its own quarter into it
        (Strategy.ZERO3, 3, 0, 6 + 2 / 4 + 2 * (2 + 2 / 4)),
    ],
)
def test_deepspeed_copies_gradients_into_buckets_and_out_of_them(strategy, times, low, high):
    time = _on_four(strategy, gradient_accumulation_steps=3)
    size, bandwidth = times * 2 * 7_241_732_096, A100.memory_bandwidth_gb_per_s * 1e9
    found = part(time, "copies in and out of buckets")
    assert found == pytest.approx(
        (size * low / bandwidth, size * high / (0.8 * bandwidth)), rel=1e-3
    )
    assert part(_on_four(Strategy.DDP), "copies in and out of buckets") == (0.0, 0.0)


def test_independent_deviations_add_in_squares():
    """By hand: 1 to 4 seconds are typically 2, and deviate by 1.5; twice, by 1.5 · √2 or by 3."""
    other, same = (
        together([Cost(one, "products", Range(1, 4)) for one in (Cause.PRODUCTS, cause)])
        for cause in (Cause.ATTENTION, Cause.PRODUCTS)
    )
    ends = [tuple(summed(cost.seconds for cost in parts)) for parts in (other, same)]
    assert ends[0] == pytest.approx(
        (math.sqrt(20.5) - 1.5 * 2**0.5, math.sqrt(20.5) + 1.5 * 2**0.5)
    )
    assert ends[1] == pytest.approx((2, 8))


def test_no_step_is_faster_than_the_datasheet():
    """A made-up card that always reaches its datasheet's rate: nothing else takes as long as its products."""
    card = replace(CARD, architecture="Blackwell", memory_bandwidth_gb_per_s=1e6)
    setup = TrainingSetup(max_length=4096, per_device_train_batch_size=64)
    assert timed(setup, MISTRAL, card).mfu.high == pytest.approx(1)


# --- expected orders of magnitude ---------------------------------------------------------------


@pytest.mark.parametrize("method", list(Method))
def test_checkpointing_costs_a_fifth_to_a_half(method):
    """One more forward pass: a third of full fine-tuning's operations (2 of 6), half with a frozen base (2 of 4)."""
    setup = replace(LONG, method=method)
    plain, again = timed(setup), timed(replace(setup, gradient_checkpointing=True))
    most = 1.34 if method is Method.FULL else 1.51
    assert 1.2 < again.step_seconds.low / plain.step_seconds.low < most
    assert 1.2 < again.step_seconds.high / plain.step_seconds.high < most
    assert part(again, "recomputation")[0] > 0
    assert part(plain, "recomputation") == (0, 0)


def test_a_quantised_base_is_slower_than_a_plain_one():
    lora, qlora = (timed(replace(LONG, method=method)) for method in (Method.LORA, Method.QLORA))
    assert qlora.step_seconds.low > lora.step_seconds.low
    # not at the slow end: PEFT casts more beside a 16-bit base (4.9 and 4.6 s in fms-acceleration's table)


def test_packed_steps_follow_from_examples_times_mean_length():
    packed = TrainingSetup(num_train_examples=8000, mean_tokens_per_example=256)
    assert timed(packed).total_steps == 2000
    assert timed(replace(packed, mean_tokens_per_example=None)).total_steps == 8000


def test_rows_are_padded_to_the_longest_of_their_micro_batch():
    # a row alone is not padded; of a pair with even lengths up to a limit the longer has 2/3 of it on average
    padded = replace(LONG, padded=True, mean_tokens_per_example=2048)
    time, alone = timed(padded), timed(replace(LONG, max_length=2048, padded=True))
    assert time.total_steps == 10_000
    assert time.step_seconds.high == alone.step_seconds.high
    assert time.step_seconds.low == pytest.approx(alone.step_seconds.low, rel=1e-3)
    pair = replace(padded, per_device_train_batch_size=2)
    longer = timed(replace(pair, max_length=round(4096 * 2 / 3), mean_tokens_per_example=None))
    assert timed(pair).step_seconds.high == pytest.approx(longer.step_seconds.high, rel=2e-3)
    # two rows of a preference pair, though one example a micro-batch
    assert lengths(replace(padded, objective="dpo")).tokens == pytest.approx(4096 * 2 / 3, rel=2e-3)


def test_the_longest_of_some_rows_is_that_of_random_draws():
    # Jaynes: of all spreads up to a limit with a given mean, the exponential cut there; 20,000 draws of eight each
    draw = np.random.default_rng(5).random((20_000, 8))
    for decay, limit in ((1.0, 3000), (6.0, 3000)):
        tokens = -np.log1p(draw * np.expm1(-decay)) / decay * limit
        mean = limit * (1 / decay - 1 / np.expm1(decay))
        assert expected_longest(8, round(mean), limit) == pytest.approx(
            tokens.max(axis=1).mean(), rel=6e-3
        )
        mirrored = limit - tokens
        seen = mirrored.max(axis=1).mean()
        assert expected_longest(8, round(limit - mean), limit) == pytest.approx(seen, rel=6e-3)
    assert [expected_longest(rows, 300, 300) for rows in (1, 9)] == [300, 300]


def test_steps_of_an_epoch_round_up_as_trainer_does():
    setup = TrainingSetup(
        num_train_examples=100, gradient_accumulation_steps=8, num_train_epochs=2.5
    )
    time = timed(setup)
    assert (time.steps_per_epoch, time.total_steps) == (13, 33)


def test_hours_and_tokens_follow_from_the_step():
    time = timed(replace(LONG, num_train_epochs=3))
    assert time.total_hours.high == pytest.approx(30_000 * time.step_seconds.high / 3600)
    assert time.epoch_hours.low == pytest.approx(time.total_hours.low / 3)
    assert time.epoch_hours.high == pytest.approx(time.total_hours.high / 3)
    assert time.tokens_per_second.high == pytest.approx(4096 / time.step_seconds.low)


def test_a_given_mfu_closes_the_bracket():
    time = timed(replace(LONG, mfu=0.5))
    assert time.step_seconds.low == time.step_seconds.high
    assert time.mfu.low == time.mfu.high == pytest.approx(0.5)
    bracket = timed(LONG)
    assert bracket.mfu.low < 0.5 < bracket.mfu.high
    assert bracket.step_seconds.low < time.step_seconds.low < bracket.step_seconds.high


TIMED = [gpu for gpu in catalog.gpus().values() if missing_rate(gpu, TrainingSetup()) is None]


@given(
    gpu=st.sampled_from(TIMED),
    model=st.sampled_from([MISTRAL, catalog.model("Qwen/Qwen3-0.6B")]),
    method=st.sampled_from(Method),
    padded=st.booleans(),
    mean=st.sampled_from([None, 50, 700, 5000]),
    batch=st.sampled_from([1, 16, 64]),
    length=st.sampled_from([128, 1024, 16384]),
    kernel=st.sampled_from(AttnImplementation),
    utilisation=st.sampled_from([None, None, 0.4]),
)
@settings(max_examples=60)
def test_mfu_never_exceeds_one(
    gpu, model, method, padded, mean, batch, length, kernel, utilisation
):
    """Each end uses its own operations and its own time: padded rows have more of both."""
    setup = TrainingSetup(
        method=method,
        padded=padded,
        mean_tokens_per_example=mean,
        per_device_train_batch_size=batch,
        max_length=length,
        attn_implementation=kernel,
        mfu=utilisation,
    )
    time = timed(setup, model, gpu)
    assert 0 < time.mfu.low <= time.mfu.high <= 1
    if utilisation:
        assert time.mfu.low == pytest.approx(utilisation)
        assert time.mfu.high == pytest.approx(utilisation)


def test_mfu_counts_the_work_of_padding_and_not_the_limit():
    """Rows of 50 tokens, at most 1,024, on a card of 10¹⁴ operations per second: the work of 50, in its time."""
    short = replace(LONG, max_length=50)
    padded = replace(LONG, max_length=1024, mean_tokens_per_example=50, padded=True)
    work, time = timed(short, gpu=CARD).model_flops_per_step, timed(padded, gpu=CARD)
    assert time.model_flops_per_step == work == Range.of(work.low)
    eight = timed(replace(padded, per_device_train_batch_size=8), gpu=CARD)
    assert (
        2.5 * 8 * work.low < eight.model_flops_per_step.low < 2.8 * 8 * work.low
    )  # 50 · (1 + 1/2 + … + 1/8)
    assert tuple(time.mfu) == pytest.approx(tuple(work / time.step_seconds / 1e14))


# --- missing data -------------------------------------------------------------------------------


def test_a_card_without_bfloat16_gets_a_sentence_instead_of_a_time():
    answer = estimate(MISTRAL, catalog.gpu("T4"), TrainingSetup(method=Method.QLORA))
    assert answer.time is answer.cost is answer.energy_kwh is None
    assert (
        "No time is given: T4 has no bfloat16 units; set mixed_precision to fp16."
        in answer.assumptions
    )
    assert timed(
        TrainingSetup(method=Method.QLORA, mixed_precision=MixedPrecision.FP16),
        MISTRAL,
        catalog.gpu("T4"),
    )


@pytest.mark.parametrize("name", ["Apple M4 Max (128 GB)", "P100-PCIe-16GB"])
def test_a_card_of_unknown_rate_gets_no_time(name):
    answer = estimate(MISTRAL, catalog.gpu(name), TrainingSetup())
    assert answer.time is None
    assert any(sentence.startswith("No time is given") for sentence in answer.assumptions)


def test_a_custom_card_needs_its_rate_and_bandwidth():
    bare = Gpu(name="card", memory_bytes=2**34)
    assert "bf16_dense_tflops" in str(missing_rate(bare, TrainingSetup()))
    half = replace(bare, bf16_dense_tflops=100.0)
    assert "memory_bandwidth_gb_per_s" in str(missing_rate(half, TrainingSetup()))
    assert missing_rate(CARD, TrainingSetup()) is None


def test_without_a_gpu_there_is_no_time():
    answer = estimate(MISTRAL, None, TrainingSetup())
    assert answer.time is None
    assert not any("time" in sentence for sentence in answer.assumptions)


# --- properties ---------------------------------------------------------------------------------

TIMED = [gpu for gpu in catalog.gpus().values() if missing_rate(gpu, TrainingSetup()) is None]
SETUPS = st.builds(
    TrainingSetup,
    method=st.sampled_from(Method),
    optim=st.sampled_from(Optimizer),
    per_device_train_batch_size=st.integers(1, 4096),
    gradient_accumulation_steps=st.integers(1, 65_536),
    max_length=st.integers(1, 2**24),
    padded=st.booleans(),
    gradient_checkpointing=st.booleans(),
    attn_implementation=st.sampled_from(AttnImplementation),
    lora_r=st.integers(1, 8192),
    max_grad_norm=st.sampled_from([0.0, 1.0]),
    num_train_examples=st.integers(1, 10**12),
    num_train_epochs=st.floats(1e-6, 1e6),
    mean_tokens_per_example=st.none() | st.integers(1, 2**24),
    num_gpus=st.sampled_from([1, 2, 4096]),
)
ROUNDING = 1 + 1e-9
"""Sums of floats in another order may differ in their last digit."""
LYING = {
    method: resident_memory(MISTRAL, structure(TrainingSetup(method=method))) for method in Method
}


def run(setup: TrainingSetup, gpu: Gpu = A100) -> RunTime:
    """Only the time: no step is played, so any batch and length work."""
    return run_time(MISTRAL, gpu, setup, LYING[setup.adapters.method])


@settings(max_examples=200)
@given(SETUPS, st.sampled_from(TIMED))
def test_the_fast_end_never_exceeds_the_slow_end_and_all_times_are_finite(setup, gpu):
    time = run(setup, gpu)
    assert 0 < time.step_seconds.low <= time.step_seconds.high * ROUNDING
    figures = (time.total_hours.high, time.tokens_per_second.low, time.mfu.low, time.mfu.high)
    assert all(math.isfinite(figure) and figure > 0 for figure in figures)
    assert all(end >= 0 for _, seconds in time.parts for end in seconds)


@settings(max_examples=200)
@given(
    SETUPS,
    st.sampled_from(
        [
            "num_train_examples",
            "num_train_epochs",
            "mean_tokens_per_example",
        ]
    ),
    st.integers(2, 5),
)
def test_more_text_never_takes_fewer_hours(setup, name, times):
    start = setup.value(name) or 64
    more = {
        "num_train_examples": min(10**12, start * times),
        "num_train_epochs": min(10**6, start * times),
        "mean_tokens_per_example": min(2**24, start * times),
    }
    less = replace(setup, **{name: start})
    longer = replace(setup, **{name: more[name]})
    assert run(less).total_hours.low <= run(longer).total_hours.low * ROUNDING
    assert run(less).total_hours.high <= run(longer).total_hours.high * ROUNDING


@settings(max_examples=200)
@given(
    SETUPS,
    st.sampled_from(["per_device_train_batch_size", "gradient_accumulation_steps"]),
)
def test_a_larger_step_never_takes_fewer_seconds(setup, name):
    less = replace(setup, **{name: 7})
    more = replace(setup, **{name: 8})
    assert run(less).step_seconds.low <= run(more).step_seconds.low * ROUNDING
    assert run(less).step_seconds.high <= run(more).step_seconds.high * ROUNDING


@settings(max_examples=100)
@given(SETUPS, st.sampled_from(TIMED))
def test_checkpointing_never_takes_fewer_seconds(setup, gpu):
    plain = run(replace(setup, gradient_checkpointing=False), gpu)
    again = run(replace(setup, gradient_checkpointing=True), gpu)
    assert plain.step_seconds.low <= again.step_seconds.low * ROUNDING
    assert plain.step_seconds.high <= again.step_seconds.high * ROUNDING


# --- several GPUs, by their strategy ------------------------------------------------------------


def _on_four(strategy: Strategy, **keys: object) -> RunTime:
    setup = TrainingSetup(num_gpus=4, strategy=strategy, **keys)
    time = estimate(catalog.model("mistralai/Mistral-7B-v0.1"), A100, setup).time
    assert time is not None
    return time


def _seconds(time: RunTime, name: str) -> float:
    return next(part.seconds.high for part in time.parts if part.name == name)


def test_exchanged_bytes_follow_from_the_whole_model_and_the_strategy():
    """By hand: 2-byte weights and gradients of 7,241,732,096 parameters over 0.78 of half of 600 GB/s, 3/4 of it."""
    link, whole = 0.78 * A100.interconnect_gb_per_s / 2 * 1e9, 2 * 7_241_732_096
    exchanged = {
        Strategy.DDP: 2 * whole,
        # every bucket is all-reduced whole, then the weights are gathered
        Strategy.ZERO2: 3 * whole,
        Strategy.FSDP: 3 * whole,
        Strategy.ZERO3: 3 * whole,
        Strategy.FSDP_GRAD_OP: 2 * whole,
    }
    for strategy, size in exchanged.items():
        seconds = _seconds(_on_four(strategy), "exchange between GPUs")
        assert seconds == pytest.approx(size * 3 / 4 / link, rel=1e-3), strategy


def test_hsdp_exchanges_inside_groups_and_then_between_them():
    """By hand: 3 · whole · 1/2 inside groups of two, and 2 · 1/2 · whole / 2 between the two groups."""
    link, whole = 0.78 * A100.interconnect_gb_per_s / 2 * 1e9, 2 * 7_241_732_096
    seconds = _seconds(_on_four(Strategy.HSDP, dp_replicate_size=2), "exchange between GPUs")
    assert seconds == pytest.approx((3 * whole / 2 + whole / 2) / link, rel=1e-3)


def test_sharding_optimizer_states_divides_the_optimizer_step():
    alone = _seconds(_on_four(Strategy.DDP), OPTIMIZER_STEP)
    # nearly: each is also drawn to the typical seconds of its step
    assert _seconds(_on_four(Strategy.FSDP), OPTIMIZER_STEP) == pytest.approx(alone / 4, rel=0.05)


@pytest.mark.parametrize(
    ("strategy", "bytes_a_parameter"),
    [
        (Strategy.DDP, 2 + 4),  # bfloat16 weights and AdamW's two bfloat16 states
        (Strategy.FSDP, 4 + 4 + 8),  # float32: for inference, for resuming, and two states
        (
            Strategy.ZERO2,
            2 + 2 + 12,
        ),  # for inference, for resuming, and float32 weights with two states
    ],
)
def test_a_checkpoint_contains_the_whole_model_on_any_number_of_gpus(strategy, bytes_a_parameter):
    model = catalog.model("mistralai/Mistral-7B-v0.1")
    for num_gpus in (2, 4, 8):
        setup = TrainingSetup(num_gpus=num_gpus, strategy=strategy)
        whole = bytes_a_parameter * 7_241_732_096
        assert estimate(model, None, setup).disk_bytes == pytest.approx(whole, rel=1e-4)
