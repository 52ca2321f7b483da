"""Any line gets one consistent answer, never a traceback.

Lines are made from every key, objective, method, strategy and family, so that a new one is tried with the others.
The seed is fixed; ``FUZZ_LINES=20000`` tries that many.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from estimator import Verdict, catalog, estimate, need
from estimator import __main__ as command
from estimator.__main__ import answer_lines
from estimator.contract.setups import parse, read_setup
from estimator.values.keys import KEYS, LARGEST
from estimator.values.kinds import Choice, Flag, Number, WholeNumber
from tests.counted import A_SECOND, counted
from tests.test_every_key import BESIDE, another

LINES = int(os.environ.get("FUZZ_LINES", "1000"))
AT_ONCE = 250
SOUND = 0.05
"""Share of the lines that begin as a sound setup of a small model; the others are damaged beyond that."""
SMALL = {
    model.family: model.hub_id
    for model in sorted(catalog.models().values(), key=lambda one: -one.parameters)
    if not model.model.quantization
}
"""The smallest model of each family."""
CARDS = [card.name for card in catalog.gpus().values() if card.vendor == "NVIDIA"]
HOSTILE = (
    *(None, True, False, 0, -1, 1, 2**31, 10**29, 10**40, 0.5, -0.0, 1e308, "", " ", "null", "NaN"),
    *([], {}, [[]], [None] * 70, {"a": {"b": {}}}, "\x00", "\u202e", "💥" * 50, "../../etc/passwd"),
    *("<script>alert(1)</script>", "$(id)", "'; drop table models; --", "a" * 5000, "%s%n", "{0}"),
)
RAW = (
    *(b"", b" ", b"[]", b"null", b"{", b'{"model":}', b"\xff\xfe", b'{"model":1}{}', b"[" * 500),
    b'{"model":"openai-community/gpt2","model":"openai-community/gpt2"}',
    b'{"model":' * 100 + b"1" + b"}" * 100,
    b'{"max_length":' + b"9" * 5000 + b"}",
)


FITS = {Verdict.FITS: True, Verdict.TIGHT: None, Verdict.DOES_NOT_FIT: False}


def value_of(key: Any, chance: random.Random) -> object:
    """A value at a bound of the key or between its bounds."""
    match key.kind:
        case WholeNumber(low=low, high=high):
            return chance.choice([low, high, chance.randint(low, min(high, low + 64))])
        case Number(low=low, high=high):
            return chance.uniform(low, min(high, 10.0))
        case Choice(words=words):
            return chance.choice([*words])
        case Flag():
            return chance.random() < 0.5
        case _:
            return another(key)


def sound(chance: random.Random) -> dict[str, object]:
    """A model, a card, and a few keys with the keys that they require."""
    given: dict[str, object] = {
        "model": SMALL[chance.choice(sorted(SMALL))],
        "gpu": chance.choice(CARDS),
    }
    for key in chance.sample(KEYS, chance.randint(0, 3)):
        beside = {
            name: value for name, value in BESIDE.get(key.name, {}).items() if name != "model"
        }
        given |= beside | {key.name: value_of(key, chance)}
    return given


def line(chance: random.Random) -> bytes:
    if chance.random() < 0.05:
        return chance.choice(RAW)
    given = sound(chance)
    if chance.random() > SOUND:
        for _ in range(chance.randint(1, 3)):
            name = chance.choice([*given, "model", "gpu", chance.choice(KEYS).name, "lora_rnak"])
            given[name] = chance.choice(HOSTILE)
        given["max_length"] = chance.choice(HOSTILE)
    return json.dumps(given, allow_nan=True).encode()


PEAK = {"phase": "phase", "name": "moment", "bytes": "bytes"}


def agrees(answer: dict[str, Any]) -> None:
    """Checks that an answer is consistent."""
    assert sum(answer["components"].values()) == answer["peak_bytes"]
    assert answer["phases"][answer["peak_phase"]] == answer["peak_bytes"]
    peak = {part: answer[f"peak_{name}"] for part, name in PEAK.items()}
    assert peak in answer["moments"]
    assert 0 < answer["need_low_bytes"] <= answer["need_high_bytes"]
    assert answer["peak_bytes"] <= answer["need_low_bytes"]
    capacity = answer["capacity_bytes"]
    if capacity is not None:
        verdict = Verdict.FITS if answer["need_high_bytes"] <= capacity else Verdict.TIGHT
        if answer["need_low_bytes"] > capacity:
            verdict = Verdict.DOES_NOT_FIT
        assert answer["verdict"] == verdict
        assert answer["fits"] is FITS[verdict]
    for end in ("low", "high"):
        mfu = answer[f"mfu_{end}"]
        assert mfu is None or 0 < mfu <= 1
    if answer["step_seconds_low"] is not None:
        assert 0 < answer["step_seconds_low"] <= answer["step_seconds_high"]


@pytest.mark.parametrize("seed", range(LINES // AT_ONCE))
def test_every_line_gets_a_consistent_answer_or_one_sentence(seed, monkeypatch):
    chance = random.Random(seed)
    lines = [line(chance) for _ in range(AT_ONCE)]
    said = io.StringIO()
    with counted() as work:
        done = [0]
        answer = command._answer

        def one_by_one(*of: Any, **asked: Any) -> dict[str, object]:
            found = answer(*of, **asked)
            done.append(work.units)
            return found

        monkeypatch.setattr(command, "_answer", one_by_one)
        answer_lines(io.BytesIO(b"\n".join(lines) + b"\n"), said)
    assert max(after - before for before, after in pairwise(done)) < A_SECOND
    answers = said.getvalue().splitlines()
    assert len(answers) == len(lines)
    sentences = 0
    for asked, text in zip(lines, answers, strict=True):
        answer = json.loads(text)
        if "error" in answer:
            sentence = answer["error"]
            sentences += 1
            assert "please report it" not in sentence, asked
            assert "Traceback" not in sentence, asked
            assert sentence.endswith((".", "?", ")", '"')), (asked, sentence)
            assert len(sentence) < 4000, asked
            assert "\n" not in sentence, asked
        else:
            agrees(answer)
    assert 0 < sentences < len(lines)


GROWING: dict[str, Callable[[int], int]] = {
    "per_device_train_batch_size": lambda one: 2 * one,
    "max_length": lambda one: one + 64,
    "lora_r": lambda one: one + 8,
}
"""Numbers of which more never need less."""


@pytest.mark.parametrize("name", GROWING)
def test_a_larger_value_never_needs_less(name):
    tried = 0
    for seed in range(40):
        chance = random.Random(seed)
        given = sound(chance) | {"method": chance.choice(["lora", "qlora"])}
        reading = read_setup(given)
        if reading.problems or reading.model is None or reading.gpu is None:
            continue
        setup = reading.setup
        larger = GROWING[name](setup.value(name))
        if larger > LARGEST.get(name, larger):
            continue
        try:
            before = need(reading.model, reading.gpu, setup)
            after = need(reading.model, reading.gpu, replace(setup, **{name: larger}))
        except ValueError:  # a refused setup
            continue
        tried += 1
        assert after.low >= before.low, given
        assert after.high >= before.high, given
    assert tried >= 10


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_packed_rows_beyond_the_longest_row_are_one_long_row(strategy):
    # 1,024 rows of a million tokens are joined into as long a row as 64 of sixteen million
    given = {"model": "Qwen/Qwen3-8B", "packing": True, "num_gpus": 8, "strategy": strategy}
    many = parse({**given, "per_device_train_batch_size": 1024, "max_length": 1_000_000})
    few = parse({**given, "per_device_train_batch_size": 64, "max_length": 16_000_000})
    assert need(*many) == need(*few)


def test_a_hostile_name_gets_a_short_sentence_without_control_characters():
    for name in HOSTILE:
        if not isinstance(name, str):
            continue
        for key in ("model", "gpu", "optim"):
            given = {"model": "openai-community/gpt2", key: name}
            with pytest.raises(ValueError, match=key) as refused:
                estimate(*parse(given))
            assert len(str(refused.value)) < 700
            assert "\x00" not in str(refused.value)
            assert "\u202e" not in str(refused.value)
