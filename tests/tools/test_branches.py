"""Of a script's branches, what all agree on is known; what they do not agree on is asked for, not taken from one."""

from __future__ import annotations

import pytest

from estimator import Imported, read_files

SHORT = {
    "LOAD": 'AutoModelForCausalLM.from_pretrained("openai-community/gpt2")',
    "LOAD_WITH": 'AutoModelForCausalLM.from_pretrained("openai-community/gpt2", quantization_config=bnb)',
    "PACKS": "BitsAndBytesConfig(load_in_4bit=True)",
}


def read(script: str) -> Imported:
    """A script of one line, in which / begins the next line, and > each step further in."""
    lines = (word.strip() for word in script.split("/"))
    text = "\n".join(
        "    " * (len(line) - len(line.lstrip(">"))) + line.lstrip(">").strip() for line in lines
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
        # a function's argument is what its calls give, else its default
        (
            "model = LOAD / def f(n=64): / > SFTConfig(max_length=n) / f(512)",
            set(),
            {"max_length": 512},
        ),
        (
            "model = LOAD / def f(n=64): / > SFTConfig(max_length=n) / f(cfg.n)",
            {"max_length"},
            {},
        ),
        (
            "model = LOAD / def f(n=64): / > SFTConfig(max_length=n) / f() / f(n=512)",
            {"max_length"},
            {},
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
def test_only_what_branches_agree_on_is_known(script, asked, known):
    """By hand: Python runs one of the branches, and nothing in the script says which."""
    found = read(script)
    assert set(found.asked) == asked
    assert known.items() <= found.setup.items()


def test_keys_that_only_the_run_knows_are_said():
    (said,) = read("model = LOAD / SFTConfig(max_length=64, **cfg)").guesses
    assert said == "**cfg of SFTConfig, which only the run knows, is taken as empty."


def test_what_is_taken_of_the_card_is_said():
    found = read(
        "model = LOAD / n = 64 if torch.cuda.get_device_capability()[0] >= 8 else 512 / SFTConfig(max_length=n)"
    )
    assert found.setup["max_length"] == 64
    assert found.guesses == ("The card is taken as Ampere or newer (get_device_capability).",)


TRAIN = "trl sft --model_name_or_path openai-community/gpt2 --max_length $N"


@pytest.mark.parametrize(
    ("script", "asked", "length"),
    [
        (f"N=64\nif [ $A ]; then\n  N=512\nfi\n{TRAIN}", {"max_length"}, 1024),
        (f"if [ $A ]; then\n  N=512\nelse\n  N=512\nfi\n{TRAIN}", set(), 512),
        (f"if [ $A ]; then N=64; else N=512; fi\n{TRAIN}", {"max_length"}, 1024),
        (f"N=64\n[ $A ] && N=512\n{TRAIN}", {"max_length"}, 1024),
        (f"N=64\nif [ $A ]; then N=512; fi\nN=128\n{TRAIN}", set(), 128),
        (f"N=64\nif [ $1 ]; then N=$1; fi\n{TRAIN}", set(), 64),
        (f"N=64\nX=(--bf16)\nif [ $A ]; then\n X+=(--load_in_4bit)\nfi\n{TRAIN} ${{X[@]}}", {"method"}, 64),
    ],
)  # fmt: skip
def test_of_a_shell_s_branches_too(script, asked, length):
    """By hand: bash runs one of the branches, or none; an argument of the script is not there without being given."""
    found = read_files({"run.sh": script})
    assert (set(found.asked), found.setup["max_length"]) == (asked, length)


def test_words_of_a_command_that_only_the_run_knows_are_said():
    found = read_files(
        {"run.sh": "trl sft --model_name_or_path openai-community/gpt2 --max_length 64 $MORE"}
    )
    assert found.setup["max_length"] == 64
    assert "$MORE in the command is taken as empty." in found.guesses
