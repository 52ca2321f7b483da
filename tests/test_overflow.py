"""Where a run runs out of memory: by hand for named setups, replayed moment by moment for random ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dashboard.estimate import through_the_run
from dashboard.how_it_works import content
from dashboard.words import terms, units, verdicts
from estimator import (
    Component,
    Dtype,
    Estimate,
    Method,
    MixedPrecision,
    Optimizer,
    Phase,
    TrainingSetup,
    Verdict,
    catalog,
    estimate,
)
from estimator.answer.overflow import (
    Instant,
    first_overflow,
    instants,
    room_bytes,
    runs_out,
    where,
)
from estimator.contract.estimates import write_estimate
from estimator.contract.setups import parse
from estimator.contract.text import describe
from estimator.contract.units import amount
from estimator.step.blocks import MIB
from estimator.step.reserved import refused
from estimator.values.facets.optimisation import Optimisation
from estimator.values.results import Moment
from estimator.values.strategies import Strategy
from tests.test_limits import GPUS, MODELS, SETUPS, SEVERAL, can_be_trained

MISTRAL, A100 = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB")
EXAMPLE = TrainingSetup(mixed_precision=MixedPrecision.NO, optim_state_dtype=Dtype.FLOAT32)
LLAMA, RTX4090 = "meta-llama/Llama-3.1-8B", "GeForce RTX 4090"


def said(**given: object) -> dict[str, object]:
    """``first_overflow`` of the JSON answer."""
    answer = write_estimate(estimate(*parse(given)))
    return answer["first_overflow"]


# --- by hand ------------------------------------------------------------------------------------


def test_the_example_runs_out_at_its_first_optimizer_step():
    # 7,241,732,096 parameters: 13.5 GiB of weights + 13.5 of gradients + 54.0 of float32 states = 81.0, of 79.1
    # available; its first backward needs only weights, gradients and activations
    answer = estimate(MISTRAL, A100, EXAMPLE)
    over = first_overflow(answer)
    assert (over.at.step, over.at.moment.phase) == (1, Phase.OPTIMIZER_STEP)
    parts = over.at.moment.resident
    expected = [2 * 7_241_732_096, 2 * 7_241_732_096, 8 * 7_241_732_096]
    for part, size in zip(
        (Component.WEIGHTS, Component.GRADIENTS, Component.OPTIMIZER_STATES), expected, strict=True
    ):
        assert parts[part] == pytest.approx(size, rel=1e-4)
    for text in (
        verdicts.verdict(answer).stops,
        describe(answer),
        through_the_run.run_alt(answer),
        "\n".join(chapter.text for chapter in content.chapters(answer)),
    ):
        assert (
            "It runs out at the first optimizer step, which creates the optimizer states, where"
            in text
        )


@pytest.mark.parametrize(
    ("given", "phase", "step", "words"),
    [
        # 16.1 GB of weights fit into 40; the gradients and states of its first step do not
        (
            {"model": LLAMA, "gpu": "A100-SXM4-40GB"},
            "optimizer_step",
            1,
            "at the first optimizer step",
        ),
        # 141 GB of weights
        (
            {"model": "meta-llama/Llama-3.1-70B", "gpu": RTX4090},
            "load",
            0,
            "while the model loads",
        ),
        # DeepSpeed makes its float32 part at initialisation: 2 · 8.03e9 + 4/4 · 8.03e9 = 24 GB
        (
            {"model": LLAMA, "gpu": RTX4090, "strategy": "zero2", "num_gpus": 4},
            "load",
            0,
            "before the first step, when the float32 weights are created",
        ),
        # Adagrad makes its states in its constructor: 2 · 7.24e9 of weights, then as much again
        (
            {
                "model": "mistralai/Mistral-7B-v0.1",
                "gpu": "P100-PCIe-16GB",
                "optim": "adagrad",
                "mixed_precision": "no",
                "max_length": 16,
            },
            "load",
            0,
            "before the first step, when the optimizer states are created",
        ),
        # 10,000 examples are 10,000 steps: the epoch's evaluation comes after the last
        (
            {
                "model": LLAMA,
                "gpu": RTX4090,
                "method": "lora",
                "gradient_checkpointing": True,
                "eval_strategy": "epoch",
                "per_device_eval_batch_size": 64,
            },
            "evaluation",
            10_000,
            "in the evaluation after step 10,000",
        ),
        # the same by steps: Trainer's default of 500
        (
            {
                "model": LLAMA,
                "gpu": RTX4090,
                "method": "lora",
                "gradient_checkpointing": True,
                "eval_strategy": "steps",
                "per_device_eval_batch_size": 64,
            },
            "evaluation",
            500,
            "in the evaluation after step 500",
        ),
        # the second micro-step starts with 0.46 GiB of gradients (124,439,808 × 4 bytes), the first with none
        (
            {
                "model": "openai-community/gpt2",
                "gpu": {"memory_bytes": 4 * 2**30},
                "dtype": "float32",
                "mixed_precision": "no",
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 4,
            },
            "loss",
            1,
            "in the second micro-step of the first step, loss",
        ),
    ],
)
def test_a_run_stops_at_the_first_moment_that_does_not_fit(given, phase, step, words):
    over = said(**given)
    assert (over["phase"], over["step"]) == (phase, step)
    answer = estimate(*parse(given))
    assert words in runs_out(answer, amount)
    assert runs_out(answer, amount) in describe(answer)
    assert runs_out(answer, amount) == verdicts.verdict(answer).stops


PLAYED = {row.id: row for row in catalog.played()}


@pytest.mark.parametrize(
    ("row", "share", "expected"),
    [
        # 2,048 tokens of 128,256 scores in float32: 1,002 MiB
        ("llama-2048x4 full 1x2048 gradient_checkpointing=True", 0.97, ("backward", 2, 1002)),
        ("llama-2048x4 full 1x2048 gradient_checkpointing=True", 0.8, ("loss", 2, 1002)),
        # states of an MLP's weight in bfloat16: 5,632 · 2,048 · 2 bytes
        (
            "llama-2048x6 full 1x512 optim=adamw_torch_fused mixed_precision=no",
            0.85,
            ("optimizer_step", 1, 22),
        ),
        # the input of down_proj's adapter, through dropout again: 4,096 · 14,336 · 4 bytes
        (
            "mistral-4096x3 lora 1x4096 lora_r=256 gradient_checkpointing=True",
            0.85,
            ("backward", 1, 224),
        ),
    ],
)
def test_a_replayed_run_stops_where_pytorchs_allocator_refuses(row, share, expected):
    # each was played on so much less than its least: the traceback's phase, and "Tried to allocate 1002.00 MiB"
    model, gpu, setup = parse(json.loads(PLAYED[row].setup))
    found = refused(model, gpu, setup, int(share * PLAYED[row].least_bytes))
    assert (found.phase, found.step, found.bytes / MIB) == expected


def test_the_step_after_an_evaluation_is_named_by_its_number():
    at = Instant(501, 0, Moment(Phase.BACKWARD, "layer 1 of 2: linear", {}))
    assert where(at, Optimisation()) == "in step 501's backward (layer 1 of 2: linear)"


def test_runs_that_fit_are_tight_or_have_no_card_never_overflow():
    bare = estimate(MISTRAL, A100, EXAMPLE)
    for size in (bare.need_high_bytes, bare.need_low_bytes):
        answer = estimate(MISTRAL, replace(A100, memory_bytes=size), EXAMPLE)
        assert answer.verdict in {Verdict.FITS, Verdict.TIGHT}
        assert first_overflow(answer) is None
        assert write_estimate(answer)["first_overflow"] is None
        assert runs_out(answer, amount) == ""
    assert first_overflow(estimate(MISTRAL, None, EXAMPLE)) is None


def test_with_one_step_per_epoch_evaluation_and_save_precede_the_second_step():
    setup = replace(
        TrainingSetup(method=Method.LORA),
        num_train_examples=1,
        eval_strategy="epoch",
        num_train_epochs=3,
    )
    order = [
        (instant.step, instant.moment.phase) for instant in instants(estimate(MISTRAL, A100, setup))
    ]
    assert order.index((1, Phase.EVALUATION)) < order.index((1, Phase.SAVE))
    assert order.index((1, Phase.SAVE)) < order.index((2, Phase.FORWARD))


def test_a_device_map_names_the_gpu_that_overflows_first():
    # four equal parts; GPU 0 also holds the embedding and receives the logits
    model = catalog.model(LLAMA)
    setup = TrainingSetup(strategy=Strategy.DEVICE_MAP, num_gpus=4, max_length=4096)
    roomy = estimate(model, catalog.gpu(RTX4090), setup)
    small = replace(
        catalog.gpu(RTX4090), memory_bytes=min(device.need.low for device in roomy.devices) - 1
    )
    stops = first_overflow(estimate(model, small, setup))
    assert stops.at.device is not None
    assert f"on GPU {stops.at.device}." in runs_out(estimate(model, small, setup), amount)


# --- replayed -----------------------------------------------------------------------------------


def replayed(of: Estimate) -> Iterator[tuple[int, Phase, int]]:
    """Step, phase and bytes of every moment: those of a later step, less what each earlier step does not hold yet."""
    setup = of.setup
    accumulates = setup.batch.gradient_accumulation_steps > 1
    alone = estimate(of.model, of.gpu, replace(setup, gradient_accumulation_steps=1))
    early = setup.mesh.strategy in {Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3}
    early = early or setup.optimisation.optim is Optimizer.ADAGRAD
    yield 0, Phase.LOAD, of.phases[Phase.LOAD].bytes
    *training, optimizer = of.moments
    beside = {Component.GRADIENTS, Component.TEMPORARIES}
    if early:
        yield 0, Phase.LOAD, sum(n for c, n in optimizer.resident.items() if c not in beside)
    steps = -(-setup.run.num_train_examples // setup.effective_batch_size)
    when = {"no": None, "epoch": steps, "steps": min(500, steps)}
    for step in (1, 2):
        absent = 0 if early or step == 2 else optimizer.resident.get(Component.OPTIMIZER_STATES, 0)
        for moment in alone.moments[:-1] if accumulates else ():
            yield step, moment.phase, moment.bytes - absent
        for moment in training:
            yield step, moment.phase, moment.bytes - absent
        yield step, Phase.OPTIMIZER_STEP, optimizer.bytes
        for strategy, phase in (
            (setup.run.eval_strategy, Phase.EVALUATION),
            (setup.run.save_strategy, Phase.SAVE),
        ):
            at = when[strategy]
            if at is not None and (at == 1) is (step == 1):
                yield at, phase, of.phases[phase].bytes


@settings(max_examples=20)
@given(
    model=MODELS,
    gpu=GPUS,
    setup=st.one_of(SETUPS, SEVERAL),
    evaluates=st.sampled_from(["no", "epoch", "steps"]),
    saves=st.sampled_from(["no", "epoch"]),
    examples=st.sampled_from([1, 100, 10_000]),
)
def test_a_replayed_run_stops_where_first_overflow_says(
    model, gpu, setup, evaluates, saves, examples
):
    setup = replace(
        setup, eval_strategy=evaluates, save_strategy=saves, num_train_examples=examples
    )
    assume(can_be_trained(model, setup))
    answer = estimate(model, gpu, setup)
    found, room = first_overflow(answer), room_bytes(answer)
    assert (found is not None) is (answer.verdict is Verdict.DOES_NOT_FIT)
    if found is None:
        return
    over, run = found.at, list(replayed(answer))
    assert runs_out(answer, str).startswith(f"It runs out {where(over, setup.optimisation)}")
    if found.requested_bytes is not None:  # blocks are no smaller than tensors
        order = [*instants(answer)]
        assert all(moment.moment.bytes <= room for moment in order[: order.index(found.among)])
        return
    if (
        answer.devices
    ):  # each GPU overflows at its own moment; the fullest does so no earlier than the first
        of_fullest = next(one for one in run if one[2] > room)
        assert over.step <= of_fullest[0]
    else:
        stops = next(one for one in run if one[2] > room)
        assert (over.step, over.moment.phase, over.moment.bytes) == stops
    # a card with exactly enough for this moment and for memory outside the tensors gets past it
    larger = replace(gpu, memory_bytes=gpu.memory_bytes + over.moment.bytes - room)
    again = estimate(model, larger, setup)
    later = None if (last := first_overflow(again)) is None else last.at
    if later is not None and not answer.devices and room_bytes(again) == over.moment.bytes:
        order = [(instant.step, instant.moment) for instant in instants(again)]
        assert order.index((later.step, later.moment)) > order.index((over.step, over.moment))
        assert later.moment.bytes > over.moment.bytes


@settings(max_examples=12)
@given(model=MODELS, gpu=GPUS, setup=SETUPS)
def test_the_silhouette_crosses_the_capacity_where_the_run_stops(model, gpu, setup):
    assume(can_be_trained(model, setup))
    answer = estimate(model, gpu, setup)
    over = first_overflow(answer)
    assume(over is not None)
    figure = through_the_run.silhouette(answer)
    stacked = [sum(sizes) for sizes in zip(*(t["y"] for t in figure["data"]), strict=True)]
    (line,) = [shape for shape in figure["layout"]["shapes"] if shape.get("name") == "stop"]
    at = int(line["x0"])
    capacity = units.in_gib(gpu.memory_bytes)
    if over.requested_bytes is None:
        assert stacked[at] > capacity - 0.01
    assert all(height <= capacity + 0.01 for height in stacked[:at])
    assert figure["data"][0]["text"][at] == terms.moment(over.among.moment)
    assert runs_out(answer, amount) in through_the_run.run_alt(answer)


def test_a_replayed_run_is_marked_among_the_moments_of_the_layer_where_it_stops():
    """The mark of the figure stands where the sentence says; the layer's own highest moment has its column."""
    llama, card = catalog.model("meta-llama/Llama-3.1-8B"), catalog.gpu("RTX 4090")
    over = first_overflow(estimate(llama, card, TrainingSetup(method="lora", max_length=4096)))
    layer, _ = over.at.moment.name.split(": ")
    assert layer == "layer 8 of 32"
    assert over.among.moment.name.startswith(f"{layer}: ")
