"""A step measured on the user's machine: reading it from a log, and applying it to other setups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import Method, TrainingSetup, catalog, estimate, own_step
from estimator.__main__ import main
from estimator.contract.setups import parse
from estimator.time.own_reading import (
    PACE_SPREAD,
    UNKNOWN_SPREAD,
    pace_of,
    paced,
    seconds_of,
    shares_text,
)
from estimator.values.range import Range, summed
from estimator.values.results import TimePart

MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
A100 = catalog.gpu("A100-SXM4-80GB")
SETUP = TrainingSetup(method=Method.LORA, max_length=2048, per_device_train_batch_size=4)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("3.2", 3.2),
        (" 3.2 s ", 3.2),
        ("850 ms", 0.85),
        ("2 seconds per step", 2.0),
        # tqdm's bar as Trainer prints it
        (" 12%|█▏        | 60/500 [01:15<09:11,  1.25s/it]", 1.25),
        ("100%|██████████| 500/500 [03:20<00:00,  2.50it/s]", 0.4),
        # transformers 5.23, trainer_utils.py, speed_metrics: 16 examples per step, 32 examples per second
        (
            "{'train_runtime': 250.0, 'train_samples_per_second': 32.0, 'train_steps_per_second': 2.0, 'epoch': 1.0}",
            0.5,
        ),
        ('{"train_runtime": "250.0", "train_samples_per_second": "32.0"}', 0.5),
        ("train_steps_per_second = 0.25", 4.0),
    ],
)
def test_step_seconds_are_read_from_a_number_or_a_log_line(said, seconds):
    assert seconds_of(said, 16) == pytest.approx(seconds)


@pytest.mark.parametrize("said", ["", "fast", "0", "-1", "0it/s", "1e999", "nan", "1.2 hours"])
def test_text_without_a_speed_is_refused_in_a_sentence(said):
    with pytest.raises(ValueError, match=r"a number above 0 such as 1\.25"):
        seconds_of(said, 16)


@pytest.mark.parametrize("pace", [-0.5, 0.0, 0.3, 1.0, 2.5])
def test_a_pace_reproduces_the_seconds_it_came_from(pace):
    time = estimate(MISTRAL, A100, SETUP).time
    narrow = paced(time.parts, pace, shares_text(time.parts, pace))
    low, high = summed(part.seconds for part in narrow)
    assert high / low == pytest.approx(PACE_SPREAD**2)
    assert pace_of(time, low * PACE_SPREAD) == pytest.approx(pace)
    assert paced((TimePart("all", Range(1.0, 3.0)),), -0.5)[0].seconds.high == 0.5 * UNKNOWN_SPREAD


def test_a_measured_step_narrows_every_setups_bracket():
    answer = estimate(MISTRAL, A100, SETUP)
    keys = own_step(answer, "3.0 s")
    assert keys["pace_from"] == (
        "3 s, mistralai/Mistral-7B-v0.1, lora, 4 × 2,048 tokens, A100-SXM4-80GB"
    )
    widths = []
    for setup in (SETUP, replace(SETUP, method=Method.FULL), replace(SETUP, max_length=65_536)):
        time = estimate(MISTRAL, A100, replace(setup, **keys)).time
        widths.append(time.step_seconds.high / time.step_seconds.low)
    # the same setup within 1.3; the less of its seconds a setup spends on the same things, the wider
    assert widths[0] == pytest.approx(PACE_SPREAD**2)
    assert widths[0] < widths[1] < widths[2] < (1.14 + 0.75) ** 2
    time = estimate(MISTRAL, A100, replace(SETUP, **keys)).time
    assert time.step_seconds.low * PACE_SPREAD == pytest.approx(3.0, rel=1e-4)


def test_a_step_of_other_things_is_wider_by_their_share():
    """By hand: all seconds on attention, half on attention and half on the loss, which is memory traffic."""
    attention, loss = (TimePart(word, Range.of(1.0)) for word in ("attention", "logits and loss"))
    assert shares_text((attention,), 0.5) == "0/100/0/0/0"
    (same,) = paced((attention,), 0.5, "0/100/0/0/0")
    assert same.seconds.high == pytest.approx(1.14)
    for part in paced((attention, loss), 0.5, "0/100/0/0/0"):
        assert part.seconds.high == pytest.approx(1.14 + 0.75 / 2)


@pytest.mark.parametrize("shares", ["60/40", "a/b/c/d/e", "60/10/10/0/0", 5])
def test_shares_of_a_measured_step_are_five_percentages(shares):
    given = {"model": MISTRAL.hub_id, "gpu": A100.name, "pace": 0.25, "pace_shares": shares}
    with pytest.raises(ValueError, match="pace_shares must"):
        parse(given)


def test_a_second_measured_step_is_compared_with_the_estimate_not_the_first():
    answer = estimate(MISTRAL, A100, SETUP)
    first = estimate(MISTRAL, A100, replace(SETUP, **own_step(answer, "5")))
    assert own_step(first, "3.0") == own_step(answer, "3.0")


def test_a_measured_step_needs_an_estimated_one():
    with pytest.raises(ValueError, match="choose a GPU whose speed is known"):
        own_step(estimate(MISTRAL, None, SETUP), "3.0")


def test_a_step_that_generates_has_no_pace():
    setup = TrainingSetup(objective="grpo", per_device_train_batch_size=8)
    with pytest.raises(ValueError, match="mostly generation"):
        own_step(estimate(MISTRAL, A100, setup), "30")


def test_assumptions_say_what_the_brackets_width_rests_on():
    known = estimate(MISTRAL, A100, SETUP)
    assert any(
        "published runs on Ampere cards lie inside" in assumption
        for assumption in known.assumptions
    )
    new = estimate(MISTRAL, catalog.gpu("B300-270GB"), SETUP)
    assert any(
        assumption.startswith("Few speeds are published for Blackwell Ultra")
        for assumption in new.assumptions
    )
    own = estimate(MISTRAL, A100, replace(SETUP, **own_step(known, "3.0")))
    (said,) = (assumption for assumption in own.assumptions if "your own step" in assumption)
    assert "3 s, mistralai/Mistral-7B-v0.1" in said


def test_a_pace_is_a_key_of_the_contract():
    given = {
        "model": MISTRAL.hub_id,
        "gpu": A100.name,
        "pace": 0.25,
        "pace_from": "1.25 s, a run of mine",
    }
    _, _, setup = parse(given)
    assert (setup.run.pace, setup.run.pace_from) == (0.25, "1.25 s, a run of mine")
    with pytest.raises(
        ValueError, match="pace must be a number above -1 and up to 1000, or null, not -1"
    ):
        parse({**given, "pace": -1})


def test_the_command_line_takes_a_measured_step(capsys):
    flags = [str(MISTRAL.hub_id), "--gpu", A100.name, "--method", "lora"]
    assert main([*flags, "--measured", "0.5"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Other setups on this machine: --pace=")
    assert main([*flags, "--measured", "soon"]) == 2
    assert "a number above 0" in capsys.readouterr().err
