"""A pasted message: the config, the command and the script in it are read, what people write around them is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator import files_in, read_files
from estimator.tools import message
from estimator.tools.reading.detect import read_text

PASTED = "the pasted text"
FIXTURES = [
    path for path in (Path(__file__).parent / "fixtures").rglob("*.*") if path.suffix != ".md"
]
ISSUE = """### System Info

- `llamafactory` version: 0.9.2
- GPU type: NVIDIA H100 80GB HBM3
- Python version: 3.12.7

I don't understand the settings. I run ```CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train config.yaml``` where \
config.yaml looks like:

```
### model
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: lora
deepspeed: examples/deepspeed/ds_z3_config.json # from the repository

cutoff_len: 4096
per_device_train_batch_size: 3
```

and ds_z3_config.json is

```json
{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}
```

Loss goes down {'loss': 1.2, 'epoch': 0.1} and then:

```
Traceback (most recent call last):
  File "/opt/train.py", line 20, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB.
```
"""
"""In the shape of issues of LLaMA-Factory."""
SCRIPT = """from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2")
trainer = SFTTrainer(model, args=SFTConfig(max_length=512))"""


def without_fences(text: str) -> str:
    """As a browser copies a rendered page."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("```"))


@pytest.mark.parametrize("text", [ISSUE, without_fences(ISSUE)], ids=["Markdown", "rendered"])
def test_an_issue_s_config_and_command_are_read_and_its_prose_is_not(text):
    """By hand, from the keys of the issue."""
    files = files_in(text, PASTED)
    assert [*files] == ["config.yaml", "ds_z3_config.json", PASTED]
    found = read_files(files)
    assert found.tool == "llamafactory"
    told = {"num_gpus": 2, "strategy": "zero3", "max_length": 4096, "method": "lora"}
    assert told.items() <= found.setup.items()
    assert found.setup["per_device_train_batch_size"] == 3
    assert not found.notes  # both files that are named are there
    assert {key.file for key in found.keys} == {*files}


@pytest.mark.parametrize("fence", ["```python\n{}\n```", "{}"])
def test_a_script_ends_where_people_write_on(fence):
    files = files_in(
        f"Hi,\n\nit does not fit:\n\n{fence.format(SCRIPT)}\n\nWhat should I change?", PASTED
    )
    assert files == {PASTED: SCRIPT}
    assert read_files(files).setup["max_length"] == 512


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_a_file_of_its_own_is_not_taken_apart(path):
    text = path.read_text()
    assert files_in(text, PASTED) == {PASTED: text}


def test_a_script_is_started_by_the_first_command_of_its_docstring():
    """As TRL's scripts show theirs: full training first, then LoRA."""
    shown = "\n".join(
        f"# {what}\n```\npython examples/dpo.py \\\n    --max_length {length}\n```\n"
        for what, length in (("Full", 256), ("LoRA", 128))
    )
    parsed = "from trl import DPOConfig, TrlParser\n(args,) = TrlParser((DPOConfig,)).parse_args_and_config()"
    files = files_in(f'"""\n{shown}"""\n{parsed}\n', PASTED)
    assert [*files] == ["examples/dpo.py", PASTED]
    assert read_files(files).setup["max_length"] == 256


@pytest.mark.parametrize(
    "text", ["Hello, does a 7B model fit on my card?", "Note: it dies\nwhy: no idea"]
)
def test_prose_alone_is_answered_in_one_sentence(text):
    with pytest.raises(ValueError, match=r"^the pasted text[^\n]*\.$"):
        read_files(files_in(text, PASTED))


@pytest.mark.parametrize(
    "line",
    [
        "loss{}: 0.5\n",
        "output_dir: [\nstep{}: 1\n\n",
        "A=1\n",
        '{{"loss": {}}}\n',
        "from {} import\n",
    ],
)
def test_a_long_log_is_not_read_again_and_again(line, monkeypatch):
    """Each line may begin a file; read from each to the end, such a log would be millions of lines."""
    read: list[int] = []

    def counted(text, name):
        if name != PASTED:  # the whole is read once
            read.append(1 + text.count("\n"))
        return read_text(text, name)

    monkeypatch.setattr(message, "read_text", counted)
    log = "it's a log\n" + "".join(line.format(number) for number in range(8000))
    assert files_in(log[: message.LONGEST_MESSAGE], PASTED)
    assert sum(read) <= message.MOST_READ


def test_a_config_that_names_deepspeed_s_file_is_no_command():
    text = "stage: sft\nfinetuning_type: full\ndeepspeed: examples/deepspeed/ds_z2_config.json\n"
    assert read_files({PASTED: text}).setup["strategy"] == "zero2"


def test_llamafactory_s_older_script_is_recognised():
    command = "deepspeed --num_gpus 2 src/train_bash.py --stage sft --finetuning_type full --cutoff_len 512"
    found = read_files({PASTED: command})
    assert (found.tool, found.setup["max_length"]) == ("llamafactory", 512)


@pytest.mark.parametrize(
    "folder",
    ["/data/models/Qwen2.5-7B-Instruct/", "Qwen2.5-7B-instruct", r"D:\Qwen2.5-7B-Instruct"],
)
def test_a_folder_is_taken_for_the_model_that_it_is_named_after(folder):
    found = read_files(
        {"a.yaml": f"stage: sft\nfinetuning_type: full\nmodel_name_or_path: {folder}\n"}
    )
    assert found.setup["model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert f"{folder} is taken for Qwen/Qwen2.5-7B-Instruct, whose name it has." in found.guesses


def test_a_folder_with_a_name_of_its_own_asks_for_the_model():
    found = read_files(
        {"a.yaml": "stage: sft\nfinetuning_type: full\nmodel_name_or_path: ./merged\n"}
    )
    assert found.asked["model"].startswith("./merged is no id of the Hub")


@pytest.mark.parametrize(("name", "text"), [("a.json", "{}"), ("a.yaml", "{}"), (PASTED, " { } ")])
def test_an_empty_config_is_refused(name, text):
    with pytest.raises(
        ValueError, match=r"is an empty (object|mapping); give a config with keys\.$"
    ):
        read_files({name: text})
