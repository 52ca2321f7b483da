"""Of a script's branches, what all agree on is known; what they do not agree on is asked for, not taken from one."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Imported, read_files

SHORT = {
    "LOAD": 'AutoModelForCausalLM.from_pretrained("gpt2")',
    "LOAD_WITH": 'AutoModelForCausalLM.from_pretrained("gpt2", quantization_config=bnb)',
    "PACKS": "BitsAndBytesConfig(load_in_4bit=True)",
}


def read(script: str) -> Imported:
    """A script of one line, in which / begins the next line, and > each step further in."""
    lines = (it.strip() for it in script.split("/"))
    text = "\n".join(
        "    " * (len(it) - len(it.lstrip(">"))) + it.lstrip(">").strip() for it in lines
    )
    for word in sorted(SHORT, key=len, reverse=True):
        text = text.replace(word, SHORT[word])
    return read_files({"train.py": text})


SGD = {"optim": "sgd"}


@pytest.mark.parametrize(
    ("script", "asked", "known"),
    [
        # a quantisation config under an if, however it reaches the model
        ("bnb = None / if a(): / > bnb = PACKS / model = LOAD_WITH", {"method"}, {}),
        ("kw = {} / if a(): / > kw['q'] = PACKS / model = LOAD", {"method"}, {}),
        (
            "bnb = PACKS / if a(): / > model = LOAD_WITH / else: / > model = LOAD",
            {"method"},
            {},
        ),
        ("a = True / if a: / > bnb = PACKS / model = LOAD_WITH", set(), {"method": "qlora"}),
        ("a = 0 / if a: / > bnb = PACKS / model = LOAD", set(), {"method": "full"}),
        # names, objects and lists of two branches
        (
            "model = LOAD / o = 'sgd' / if a(): / > n = 64 / else: / > n = 512 / SFTConfig(max_length=n, optim=o)",
            {"max_length"},
            SGD,
        ),
        (
            "model = LOAD / if a(): / > SFTConfig(max_length=64, optim='sgd') / else: / "
            "> SFTConfig(max_length=512, optim='sgd')",
            {"max_length"},
            SGD,
        ),
        (
            "model = LOAD / if a(): / > SFTConfig(max_length=64) / else: / > raise ValueError",
            set(),
            {"max_length": 64},
        ),
        (
            "model = LOAD / def run(): / > if a(): / >> return SFTConfig(max_length=64, optim='sgd') / "
            "> return SFTConfig(max_length=512, optim='sgd')",
            {"max_length"},
            SGD,
        ),
        (
            "model = LOAD / def run(): / > if a(): / >> return evaluate() / > SFTConfig(max_length=64)",
            set(),
            {"max_length": 64},
        ),
        (
            "t = ['q_proj'] / if a(): / > t.append('k_proj') / model = LOAD / LoraConfig(target_modules=t)",
            {"lora_target_modules"},
            {},
        ),
        (
            "match a(): / > case 1: n = 64 / > case _: n = 512 / model = LOAD / SFTConfig(max_length=n)",
            {"max_length"},
            {},
        ),
        (
            "model = LOAD / if a(): / > DPOTrainer(model) / else: / > SFTTrainer(model)",
            {"objective"},
            {},
        ),
        # what is installed is not known; an except is for what should not happen
        (
            "try: / > import it / > n = 64 / except ImportError: / > n = 512 / model = LOAD / SFTConfig(max_length=n)",
            {"max_length"},
            {},
        ),
        (
            "model = LOAD / try: / > SFTConfig(max_length=64) / except OSError: / > SFTConfig(max_length=512)",
            set(),
            {"max_length": 64},
        ),
        # it runs as a program, and on a GPU
        (
            "model = LOAD / if __name__ == '__main__': / > SFTConfig(max_length=64)",
            set(),
            {"max_length": 64},
        ),
        (
            "model = LOAD / n = 64 if torch.cuda.is_available() else 512 / SFTConfig(max_length=n)",
            set(),
            {"max_length": 64},
        ),
    ],
)
def test_only_what_branches_agree_on_is_known(
    script: str, asked: set[str], known: dict[str, Any]
) -> None:
    """By hand: Python runs one of the branches, and nothing in the script says which."""
    found = read(script)
    assert set(found.asked) == asked
    assert known.items() <= found.setup.items()


def test_what_is_taken_of_the_card_is_said() -> None:
    found = read(
        "model = LOAD / n = 64 if torch.cuda.get_device_capability()[0] >= 8 else 512 / SFTConfig(max_length=n)"
    )
    assert found.setup["max_length"] == 64
    assert found.guesses == ("The card is taken as Ampere or newer (get_device_capability).",)
