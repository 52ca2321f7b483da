"""A key that another tool has, or that people write, is answered with the key that is meant."""

from __future__ import annotations

import pytest

from estimator.contract.setups import read_link, read_setup
from estimator.plan.reading import question_of
from estimator.tools.meant import by_table, meant_keys
from estimator.values.keys import BY_NAME, SYNONYMS
from estimator.values.refusals import InputError

WRITTEN = {
    "seq_len": "max_length",
    "cutoff_len": "max_length",
    "sequence_len": "max_length",
    "zero_stage": "strategy",
    "deepspeed": "strategy",
    "bf16": "mixed_precision",
    "torch_dtype": "dtype",
    "micro_batch_size": "per_device_train_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "load_in_4bit": "method",
    "quantization_bit": "method",
    "finetuning_type": "method",
    "lora_rank": "lora_r",
    "lora_target": "lora_target_modules",
    "flash_attn": "attn_implementation",
    "optimizer": "optim",
    "num_epochs": "num_train_epochs",
    "gpus": "num_gpus",
    "base_model": "model",
    "vram": "",
    "learning_rate": "",
}
"""By hand: what each means in the tool that has it."""


@pytest.mark.parametrize(("word", "ours"), WRITTEN.items())
def test_a_word_of_a_tool_is_answered_with_the_key_that_is_meant(word, ours):
    hint = f"did you mean {ours}?" if ours else "leave it out."
    said = f"{word} is not a key of a setup; {hint}"
    assert said in read_setup({word: 1}).problems
    assert said in read_link({word: "1"}).problems


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("seq_len", "did you mean context?"),
        ("zero_stage", "say strategy in keys."),
        ("bf16", "say mixed_precision in keys."),
        ("num_gpus", "did you mean cards?"),
        ("learning_rate", "it has model, cards,"),
    ],
)
def test_a_question_says_where_it_has_what_is_meant(word, hint):
    with pytest.raises(InputError, match=f"is not a key of a question; {hint}".replace("?", r"\?")):
        question_of({"model": "Qwen/Qwen3-8B", "cards": ["L4"], word: 1})


def test_no_synonym_says_what_a_table_says():
    """One place knows each word: a synonym is of words that are in no table, or mean another key there."""
    known = (*BY_NAME, "model", "gpu")
    assert set(SYNONYMS.values()) <= set(known)
    assert not SYNONYMS.keys() & set(known)
    assert [value for value, ours in SYNONYMS.items() if by_table(value) == ours] == []
    assert (by_table("stage"), meant_keys("stage", known)) == ("strategy", ["objective"])
