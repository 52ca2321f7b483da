"""What trains nothing gets no verdict on training: inference, evaluation and merging, in each tool's words."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from estimator import read_files
from estimator.check.command import run as check
from estimator.values.refusals import InputError

EXAMPLES = sorted((Path(__file__).parent / "no_run").iterdir())
"""The tools' own examples of prediction, generation and evaluation."""
NAMED = "model_name_or_path: Qwen/Qwen3-8B\n"
LOADED = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((example.name, example.read_text()) for example in EXAMPLES),
        ("infer.yaml", f"{NAMED}adapter_name_or_path: a\ntemplate: qwen3\ninfer_backend: vllm\n"),
        ("merge.yaml", f"{NAMED}template: qwen3\nfinetuning_type: lora\nexport_dir: out\n"),
        ("eval.yaml", f"{NAMED}template: fewshot\nfinetuning_type: lora\ntask: mmlu\nbatch_size: 4\n"),
        ("predict.yaml", f"{NAMED}stage: sft\ndo_predict: true\ncutoff_len: 2048\ndataset: a\n"),
        ("merge.yaml", "base_model: Qwen/Qwen3-8B\nlora_model_dir: out\nmerge_lora: true\n"),
        ("mergekit.yaml", "base_model: Qwen/Qwen3-8B\nmerge_method: ties\nmodels: [{model: a}]\n"),
        ("generate.yaml", f"{NAMED}max_new_tokens: 256\ntemperature: 0.7\ntorch_dtype: bfloat16\n"),
        ("chat.py", f"{LOADED}print(model.generate(ids, max_new_tokens=64))\n"),
        ("merge.py", f"{LOADED}PeftModel.from_pretrained(model, 'a').merge_and_unload().save_pretrained('b')\n"),
    ],
)  # fmt: skip
def test_what_trains_nothing_gets_no_verdict(name, text, tmp_path):
    with pytest.raises(InputError, match="trains nothing"):
        read_files({name: text})
    (tmp_path / name).write_text(text)
    assert check([str(tmp_path / name)], {"gpu": "L4"}, StringIO()) == 2


@pytest.mark.parametrize(
    "command",
    [
        "llamafactory-cli export merge.yaml",
        "axolotl merge-lora config.yaml",
        "swift infer --model Qwen/Qwen3-8B",
        "trl vllm-serve --model Qwen/Qwen3-8B",
        "tune run eleuther_eval --config eleuther_evaluation",
    ],
)
def test_commands_that_do_not_train_are_left_out(command):
    """What trains beside them is read alone."""
    with pytest.raises(InputError, match="no command that trains"):
        read_files({"run.sh": command})
    both = f"trl sft --model_name_or_path Qwen/Qwen3-8B --max_length 512\n{command}\n"
    assert read_files({"run.sh": both}).setup["max_length"] == 512


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.yaml", f"{NAMED}learning_rate: 1e-5\nmax_new_tokens: 64\n"),
        ("train.yaml", f"{NAMED}stage: sft\ndo_train: true\ndo_predict: true\nlora_rank: 8\n"),
        ("train.py", f"{LOADED}model.generate(x)\nloss.backward()\n"),
        ("train.py", f"{LOADED}model.generate(x)\nTrainer(model).train()\n"),
    ],
)
def test_what_trains_and_generates_is_a_run(name, text):
    assert read_files({name: text}).setup["model"] == "Qwen/Qwen3-8B"
