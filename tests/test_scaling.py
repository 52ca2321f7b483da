"""One setup on growing numbers of GPUs: what stays, what falls, and where it first fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import Gpu, Price, TrainingSetup, catalog, estimate
from estimator.parallel.combinations import sharing
from estimator.search.scaling import COUNTS, STRATEGIES, Curve, curves, rented_in, shared_by
from estimator.values.methods import Method
from estimator.values.specs import MixedPrecision, Offload, Verdict
from estimator.values.strategies import Strategy

MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
LLAMA_70B = catalog.model("meta-llama/Llama-2-70b-hf")
A100 = catalog.gpu("A100-SXM4-80GB")
CHECKPOINTED = TrainingSetup(gradient_checkpointing=True)


def by_strategy(setup: TrainingSetup, gpu: Gpu | None = A100) -> dict[Strategy, Curve]:
    return {curve.strategy: curve for curve in curves(MISTRAL, gpu, setup)}


@pytest.fixture(scope="module")
def mistral() -> dict[Strategy, Curve]:
    return by_strategy(CHECKPOINTED)


def test_each_point_of_a_curve_is_the_estimate_of_its_setup(mistral):
    point = mistral[Strategy.ZERO3].points[3]
    alone = replace(CHECKPOINTED, num_gpus=8, strategy=Strategy.ZERO3)
    assert point.num_gpus == 8
    assert point.estimate == estimate(MISTRAL, A100, alone)


def test_every_strategy_has_a_curve_that_starts_at_the_same_single_gpu(mistral):
    assert tuple(mistral) == STRATEGIES
    assert len({id(curve.points[0].estimate) for curve in mistral.values()}) == 1
    assert all([p.num_gpus for p in curve.points] == list(COUNTS) for curve in mistral.values())


def test_more_machines_do_not_change_hsdp_memory(mistral):
    there = {p.num_gpus: p.estimate for p in mistral[Strategy.HSDP].points if p.estimate}
    assert sorted(there) == [1, 16, 32, 64]
    peaks = {there[number].peak.bytes for number in (16, 32, 64)}
    eight = mistral[Strategy.FSDP].points[3].estimate
    assert len(peaks) == 1
    assert min(peaks) >= eight.peak.bytes


def test_hsdp_replicas_keep_the_setups_size():
    own = TrainingSetup(num_gpus=8, dp_replicate_size=4, strategy=Strategy.HSDP)
    assert shared_by(own, Strategy.HSDP, 8) == own
    assert shared_by(own, Strategy.HSDP, 16).mesh.dp_replicate_size == 8
    with pytest.raises(
        ValueError, match="two or more groups of 2 GPUs here; 2 GPUs do not form such groups"
    ):
        shared_by(own, Strategy.HSDP, 2)


def test_the_first_count_that_fits_is_the_smallest():
    """Llama 2 70B in full: 16 bytes and more a parameter, 1.1 TB, cannot fit 8 × 79 GiB and can fit 32."""
    found = {c.strategy: c for c in curves(LLAMA_70B, A100, CHECKPOINTED)}
    assert found[Strategy.DDP].first_that_fits is None
    first = found[Strategy.FSDP].first_that_fits
    assert first.num_gpus in (16, 32)
    for point in found[Strategy.FSDP].points:
        assert point.fits == (point.num_gpus >= first.num_gpus)


def test_without_a_gpu_there_is_no_verdict():
    for curve in by_strategy(CHECKPOINTED, None).values():
        assert curve.first_that_fits is None
        assert all(p.estimate is None or p.estimate.verdict is None for p in curve.points)


def test_the_micro_batch_stays_and_an_epoch_has_fewer_steps(mistral):
    """10,000 examples, one per GPU and step: 10,000 steps on one GPU, 157 on 64."""
    ends = [mistral[Strategy.DDP].points[place].estimate for place in (0, -1)]
    batches = {end.setup.batch.per_device_train_batch_size for end in ends if end}
    assert batches == {1}
    assert [end.time.steps_per_epoch for end in ends if end and end.time] == [10_000, 157]


def test_more_gpus_are_never_slower_inside_a_machine(mistral):
    for curve in mistral.values():
        hours = [
            p.estimate.time.total_hours.low
            for p in curve.points
            if p.estimate and p.estimate.time and p.num_gpus <= 8
        ]
        assert hours == sorted(hours, reverse=True), curve.strategy


def test_a_refused_curve_says_why_and_the_others_stay():
    found = by_strategy(TrainingSetup(method=Method.QLORA))
    refused = [p.refusal for p in found[Strategy.ZERO3].points[1:]]
    assert all("bnb_4bit_quant_storage" in sentence for sentence in refused)
    assert all(p.estimate for p in found[Strategy.DDP].points)


def test_offload_without_sharding_is_refused_on_one_gpu_not_silently_dropped():
    offloads = {"offload_param": Offload.CPU, "offload_optimizer": Offload.CPU}
    (curve,) = curves(MISTRAL, A100, TrainingSetup(**offloads), [1], [Strategy.ZERO3])
    assert curve.points[0].estimate is None
    assert "offload" in curve.points[0].refusal


@pytest.mark.parametrize(
    "own",
    [
        {"fsdp_version": 1, "checkpoint_around_fsdp": True, "strategy": Strategy.FSDP},
        {"strategy": Strategy.HSDP, "dp_replicate_size": 2},
        {
            "strategy": Strategy.ZERO3,
            "offload_optimizer": Offload.CPU,
            "offload_param": Offload.CPU,
        },
        {"strategy": Strategy.ZERO2, "offload_optimizer": Offload.CPU},
    ],
)
def test_a_points_keys_reproduce_its_setup(own):
    setup = replace(CHECKPOINTED, mixed_precision=MixedPrecision.BF16, num_gpus=8, **own)
    drawn = [point for curve in curves(MISTRAL, A100, setup) for point in curve.points]
    answers = [point.estimate.setup for point in drawn if point.estimate]
    assert len(answers) > len(COUNTS)
    for there in answers:
        keys = sharing(
            setup.mesh, there.mesh.strategy, there.mesh.num_gpus, there.mesh.dp_replicate_size
        )
        assert replace(setup, **keys) == there


def test_a_given_mfu_is_dropped_and_a_given_price_kept():
    own = replace(CHECKPOINTED, mfu=0.3, usd_per_gpu_hour=9.0)
    (curve,) = curves(MISTRAL, A100, own, [8], [Strategy.DDP])
    answer = curve.points[0].estimate
    assert (answer.setup.run.mfu, answer.cost.usd_per_gpu_hour) == (None, 9.0)


def test_cards_rented_by_the_machine_say_how_many_it_has():
    by_eight = Price(provider="by the node", usd_per_gpu_hour=1.0, date="2026-11-21", min_gpus=8)
    card = replace(A100, prices=(by_eight,))
    assert [rented_in(card, number) for number in (1, 4, 8, 16)] == [8, 8, None, None]
    assert rented_in(None, 1) is None
    assert rented_in(replace(A100, prices=()), 1) is None


def test_custom_counts_are_sorted_and_deduplicated():
    (curve,) = curves(MISTRAL, A100, CHECKPOINTED, [12, 3, 3], [Strategy.FSDP])
    assert [point.num_gpus for point in curve.points] == [3, 12]
    assert all(p.estimate and p.estimate.verdict is Verdict.FITS for p in curve.points)
