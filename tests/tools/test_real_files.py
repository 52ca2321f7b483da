"""Realistic configs, with the keys and values of the tools' own examples, are read as the runs that they describe.

The files in ``fixtures`` have the keys and values of examples of axolotl 067b021, LLaMA-Factory ff6d4d1, TRL f2cd577,
ms-swift 3602360, torchtune bd2a0fc, accelerate 16cb6eb and verl 1dda039, in our own layout and without their comments.
Expected values were read by hand from each file and the tools' sources.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from estimator import Fate, Imported, read_files
from estimator.contract.setups import read_setup
from tests.rows import for_each

FIXTURES = Path(__file__).parent / "fixtures"
FILES = sorted(file for file in FIXTURES.glob("*/*") if file.is_file())
TOOLS = sorted({file.parent.name for file in FILES})


def read(*paths: str) -> Imported:
    files = [FIXTURES / path for path in paths]
    return read_files({file.name.removesuffix(".txt"): file.read_bytes() for file in files})


def test_there_are_many_fixtures():
    assert len(FILES) >= 150


@pytest.mark.parametrize("tool", TOOLS)
def test_ninety_five_percent_of_keys_are_known(tool):
    fates: Counter[Fate] = Counter()
    unknown = []
    for path in FILES:
        if path.parent.name == tool:
            run = read(f"{tool}/{path.name}")
            assert run.keys, path
            fates.update(key.fate for key in run.keys)
            unknown += [f"{path.name}: {row.says}" for row in run.of(Fate.UNKNOWN)]
    assert fates[Fate.UNKNOWN] <= 0.05 * fates.total(), "\n".join(unknown)


@for_each("path", FILES)
def test_each_key_is_reported_once_with_its_line(path):
    run = read(f"{path.parent.name}/{path.name}")
    for key in run.keys:
        assert (key.says != "") is (key.fate in {Fate.NOT_MODELLED, Fate.UNKNOWN}), key
        assert key.line > 0
        assert key.says.count("\n") == 0
    assert {default.key for default in run.set_by_tool}.isdisjoint(
        key for row in run.of(Fate.TAKEN) for key in row.ours
    )


EXPECTED = [
    json.loads(line)
    for line in Path(__file__).with_name("expected.jsonl").read_text("utf-8").splitlines()
]
"""Part of what a file says, by hand.

axolotl: packed rows are joined into one of micro_batch_size · sequence_len; reentrant if no options are given.
LLaMA-Factory: trained weights are float32 unless pure_bf16; alpha is twice the rank; checkpoints are reentrant.
torchtune: everything in dtype, no autocast, no clipping; the recipe's builder names model and method.
ms-swift: accumulation defaults to 16 examples in all. accelerate: FSDP is version 1 if its file does not say.
"""


@for_each("row", EXPECTED)
def test_a_config_is_read_as_the_run_of_its_tool(row):
    run = read(row["file"])
    refused = {  # a key that is not modelled yet is reported and absent from the setup
        key for key in row["setup"] if key not in run.setup and run.of(Fate.NOT_MODELLED)
    }
    expected = {key: value for key, value in row["setup"].items() if key not in refused}
    assert {key: run.setup.get(key) for key in expected} == expected
    assert len(refused) <= 2


def test_tokenizer_file_is_not_requested():
    run = read("torchtune/qwen3_1_7b_full.yaml")
    assert not any("vocab.json" in note for note in run.notes)


def test_a_script_its_accelerate_file_and_its_deepspeed_file_are_one_run():
    run = read("trl/notebooks_sft_tool_calling.py.txt", "accelerate/trl_deepspeed_zero3.yaml")
    assert run.setup["num_gpus"] == 8
    assert run.setup["strategy"] == "zero3"
    assert run.setup["use_reentrant"] is True, (
        "trl 1.16.0, sft_trainer.py:880: adapters under ZeRO-3"
    )


WRONG = (
    "[1, 2]",
    "{a: 1}",
    "null",
    "-5",
    "1.5",
    "true",
    '"x"',
    "99999999999999999999",
    ".nan",
    "${a}",
    "[[1]]",
)


def damaged(text: str, chance: Random) -> str:
    """The text, truncated or with one value of another type."""
    if chance.random() < 0.3:
        return text[: chance.randrange(len(text))]
    lines = text.split("\n")
    at = chance.randrange(len(lines))
    head, colon, _ = lines[at].partition(": ")
    if colon:
        lines[at] = f"{head}: {chance.choice(WRONG)}"
    elif "--" in lines[at]:
        lines[at] = f"{lines[at].split()[0]} {chance.choice(WRONG)} \\"
    return "\n".join(lines)


@for_each("seed", range(200))
def test_a_damaged_file_is_read_or_gets_one_sentence(seed):
    chance = Random(seed)
    path = chance.choice(FILES)
    text = damaged(path.read_text(encoding="utf-8"), chance)
    for said in sentences(path.name.removesuffix(".txt"), text):
        assert said.endswith((".", "?"))
        assert "\n" not in said


def sentences(name: str, text: str) -> Sequence[str]:
    """Why a file cannot be read, or the contract's problems with its setup."""
    try:
        setup = read_files({name: text}).setup
    except ValueError as said:
        return [str(said)]
    return read_setup({**setup, "model": "openai-community/gpt2"}).problems
