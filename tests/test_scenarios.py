"""Named setups in links and files: valid parts are read, invalid ones get one sentence, and old links open."""

from __future__ import annotations

import json
import random
from pathlib import Path
from urllib.parse import parse_qs, urlencode

import pytest

from estimator import catalog
from estimator.contract.scenarios import (
    LONGEST_NAME,
    MOST_SCENARIOS,
    Scenario,
    free_name,
    read,
    read_file,
    read_texts,
    scenario_of,
    sound_name,
    write_file,
    write_text,
)

LINKS = Path(__file__).parent / "reference" / "links.jsonl"
OLD = [json.loads(line) for line in LINKS.read_text("utf-8").splitlines()]
MISTRAL = "mistralai/Mistral-7B-v0.1"
EIGHT = [
    Scenario(
        name,
        {
            "model": model,
            "gpu": gpu,
            "method": method,
            "optim": "adamw_bnb_8bit",
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 8,
            "max_length": 4096,
            "gradient_checkpointing": True,
            "attn_implementation": "flash_attention_2",
            "lora_r": 64,
            "num_train_examples": 52002,
            "num_train_epochs": 3.0,
        },
    )
    for name, model, gpu, method in (
        ("Full, today's cluster", "meta-llama/Llama-3.1-8B", "A100-SXM4-80GB", "full"),
        ("LoRA, today's cluster", "meta-llama/Llama-3.1-8B", "A100-SXM4-80GB", "lora"),
        ("QLoRA, today's cluster", "meta-llama/Llama-3.1-8B", "A100-SXM4-80GB", "qlora"),
        ("QLoRA on the workstation", "meta-llama/Llama-3.1-8B", "GeForce RTX 4090", "qlora"),
        ("Full, rented for a week", "meta-llama/Llama-3.1-8B", "H200-SXM-141GB", "full"),
        ("The smaller Mistral", "mistralai/Mistral-7B-v0.1", "H100-SXM5-80GB", "lora"),
        ("Qwen, LoRA", "Qwen/Qwen2.5-7B", "H100-SXM5-80GB", "lora"),
        ("Qwen, QLoRA on an L4", "Qwen/Qwen2.5-7B", "L4", "qlora"),
    )
]
"""Eight realistic scenarios: three models, six cards, all methods, nine other keys each."""


def sound(scenario: Scenario) -> Scenario:
    """Without keys that equal the contract's defaults."""
    reading = read(scenario)
    assert reading.model is not None
    assert reading.problems == ()
    return scenario_of(scenario.name, reading.model, reading.gpu, reading.setup)


def one_sentence(text: str) -> bool:
    return bool(text) and "\n" not in text and "Traceback" not in text and len(text) < 600


def test_a_scenario_survives_a_link_and_a_file():
    kept = tuple(sound(one) for one in EIGHT)
    query = urlencode({"s": [write_text(one) for one in kept], "v": 1}, doseq=True)
    opened = read_texts(parse_qs(query)["s"], version=["1"])
    assert opened.scenarios == kept
    assert opened.problems == ()
    loaded = read_file(write_file(kept, kept[2].setup))
    assert loaded.scenarios == kept
    assert loaded.setup == kept[2].setup
    assert loaded.problems == ()


def test_eight_scenarios_and_a_setup_fit_2000_characters():
    """Spelled as Streamlit does (``urllib.parse.urlencode``), with the estimate page's own setup added."""
    kept = [sound(one) for one in EIGHT]
    query = {**kept[0].setup, "s": [write_text(one) for one in kept], "v": 1, "within": 60}
    address = "https://headroom.example.com/compare?" + urlencode(query, doseq=True)
    assert len(address) <= 2000


@pytest.mark.parametrize("old", OLD, ids=lambda old: old["scenarios"][0]["name"])
def test_a_link_of_an_earlier_release_opens(old):
    """Lines of tests/reference/links.jsonl are never changed; each release adds its own."""
    params = parse_qs(old["query"], strict_parsing=True)
    found = read_texts(params["s"], version=params["v"])
    assert found.problems == ()
    assert [
        {"name": scenario.name, "setup": dict(scenario.setup)} for scenario in found.scenarios
    ] == old["scenarios"]


def test_a_file_of_an_earlier_release_opens():
    """tests/reference/scenarios_0_1.json holds the scenarios of release 0.1's links and is never changed."""
    found = read_file((LINKS.parent / "scenarios_0_1.json").read_bytes())
    assert found.problems == ()
    assert [scenario.name for scenario in found.scenarios] == [
        scenario["name"] for old in OLD if old["release"] == "0.1" for scenario in old["scenarios"]
    ]
    assert found.setup == found.scenarios[1].setup


def test_a_damaged_link_says_what_was_dropped_and_opens_the_rest():
    found = read_texts(
        [
            f"Good~m.{MISTRAL}~g.L4~me.qlora",
            "No model~g.L4",
            f"Bad field~m.{MISTRAL}~nonsense~r.many",
            f"{'x' * 61}~m.{MISTRAL}",
            "",
        ],
        version=["2"],
    )
    assert [scenario.name for scenario in found.scenarios] == ["Good", "Bad field", "Scenario 4"]
    assert found.scenarios[0].setup == {"model": MISTRAL, "gpu": "L4", "method": "qlora"}
    assert found.scenarios[1].setup == {"model": MISTRAL}
    said = "\n".join(found.problems)
    assert "v must be 1" in said
    assert "Scenario 2 was dropped: model is missing" in said
    assert "“Bad field”: 'nonsense' was dropped" in said
    assert "“Bad field”: lora_r must be a whole number" in said
    assert f"Scenario 4: A scenario's name must be 1 to {LONGEST_NAME} characters" in said
    assert "Scenario 5 was dropped" in said
    assert all(one_sentence(problem) for problem in found.problems)


def test_a_ninth_scenario_is_dropped_with_a_sentence():
    found = read_texts([f"{n}~m.{MISTRAL}" for n in range(MOST_SCENARIOS + 3)])
    assert len(found.scenarios) == MOST_SCENARIOS
    assert found.problems == ("A comparison holds 8 scenarios; the last 3 of 11 were dropped.",)


def test_a_model_only_on_the_hub_is_kept_by_name():
    found = read_texts(["Hub~m.someone/something~me.lora~r.8"])
    assert found.problems == ()
    assert found.scenarios[0].setup == {"model": "someone/something", "method": "lora", "lora_r": 8}
    assert read(found.scenarios[0]).model is None


@pytest.mark.parametrize("name", ["", "a~b", "a\nb", "x" * 61, "\u202egpj.exe", "a\tb"])
def test_a_name_that_would_break_a_link_or_table_is_refused(name):
    with pytest.raises(ValueError, match="A scenario's name must be"):
        sound_name(name)


def test_a_free_name_stays_within_the_length_limit():
    name = "x" * LONGEST_NAME
    assert len(free_name(name, [Scenario(name, {})])) <= LONGEST_NAME


def test_a_single_contract_object_is_read_as_one_scenario():
    found = read_file(json.dumps({"v": 1, "model": MISTRAL, "method": "lora"}))
    assert found.scenarios == (Scenario("Mistral-7B-v0.1", {"model": MISTRAL, "method": "lora"}),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The file is empty"),
        ("[]", "The file must be one JSON object"),
        ('{"scenarios": 3}', "The file's scenarios must be a list"),
        ('{"scenarios": ' + "[" * 100 + "]" * 100 + "}", "The file is nested too deeply"),
        (" " * 1_000_001, "The file is longer than 1000000 bytes"),
        (b"\xff\xfe", "The file is not UTF-8"),
    ],
)
def test_an_invalid_file_is_refused_in_one_sentence(text, said):
    with pytest.raises(ValueError, match=said):
        read_file(text)


# --- hostile input ------------------------------------------------------------------------------

TRICKS = [
    "~", "~~", ".", "=", "&", "%", "+", "\0", "\n", "\t", "'", '"', "<script>alert(1)</script>", "{", "}", "[", "null",
    "-1", "1e999", "9" * 400, "NaN", "true", "\u202e", "😀", "=cmd|' /C calc'!A0", "@SUM(A1)", "m.", "m.{", "g.{}",
    "~b.0", "~l.999999999999", "../../etc/passwd", "${7*7}", "\ud800", "~m." + MISTRAL, "~g.nothing", '{"like":1}',
]  # fmt: skip


def mutated(text: str, dice: random.Random) -> str:
    for _ in range(dice.randint(1, 4)):
        at, to = sorted(dice.randint(0, len(text)) for _ in range(2))
        match dice.randrange(6):
            case 0:
                text = text[:at] + text[min(to, at + 12) :]
            case 1:
                text = text[:at] + dice.choice(TRICKS) + text[at:]
            case 2:
                text = text[:at] + dice.choice(TRICKS) + text[min(to, at + 12) :]
            case 3:
                text = text[:at] + text[at : at + 30] * dice.randint(1, 20) + text[at:]
            case 4:
                text = text[:at] + chr(dice.randrange(0x20, 0x2FFF)) + text[at + 1 :]
            case 5:
                text = text[:at]
    return text


def opens(found) -> None:
    """Every scenario that was read can be read again and written; its file can be read."""
    assert len(found.scenarios) <= MOST_SCENARIOS
    assert all(one_sentence(problem) for problem in found.problems), found.problems
    for scenario in found.scenarios:
        assert sound_name(scenario.name) == scenario.name
        reading = read(scenario)
        if reading.model is not None:
            assert reading.problems == ()
        again = read_texts([write_text(scenario)])
        assert again.scenarios == (scenario,) or len(write_text(scenario)) > 4000
    read_file(write_file(found.scenarios, found.setup))


@pytest.fixture
def quick(monkeypatch):
    """Skips the search for similar names, 0.1 s per wrong name; other tests cover it."""
    monkeypatch.setattr(catalog, "_near", lambda *_: [])


def test_600_mutated_links_open_or_give_sentences(quick):
    dice = random.Random(6)
    texts = [write_text(sound(one)) for one in EIGHT] + [
        text for old in OLD for text in parse_qs(old["query"])["s"]
    ]
    whole = 0
    for _ in range(600):
        link = [mutated(text, dice) for text in dice.sample(texts, dice.randint(1, 4))]
        found = read_texts(link * dice.choice((1, 1, 1, 9)), version=[mutated("1", dice)])
        opens(found)
        whole += bool(found.scenarios)
    assert 60 < whole < 600, "neither everything nor nothing may be refused"


def misplaced(value: object, dice: random.Random) -> object:
    """A copy with one nested value replaced by something invalid."""
    inner = value if isinstance(value, dict | list) and value and dice.random() < 0.9 else None
    if isinstance(inner, dict):
        key = dice.choice(list(inner))
        spelled = dice.choice((key, key, key, dice.choice(TRICKS)))
        return {**inner, spelled: misplaced(inner[key], dice)}
    if isinstance(inner, list):
        at = dice.randrange(len(inner))
        return [*inner[:at], misplaced(inner[at], dice), *inner[at + 1 :]]
    return dice.choice(
        [*TRICKS, None, True, -1, 0, 1.5, 10**40, [], {}, [[]], {"like": {}}, float("nan")]
    )


def test_600_mutated_files_open_or_give_sentences(quick):
    """Half are damaged text, half valid JSON with an invalid value."""
    dice = random.Random(66)
    text = write_file([sound(one) for one in EIGHT[:4]], sound(EIGHT[5]).setup)
    given, whole, refusals = json.loads(text), 0, []
    for number in range(600):
        damaged = mutated(text, dice) if number % 2 else json.dumps(misplaced(given, dice))
        try:
            opens(read_file(damaged))
            whole += 1
        except ValueError as sentence:
            refusals.append(str(sentence))
    assert whole > 150
    assert len(refusals) > 150
    assert all(one_sentence(refusal) for refusal in refusals)
