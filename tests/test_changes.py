"""Changes to a user's own files: minimal, and read back with the intended meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimator import estimate
from estimator.contract.setups import parse, plain_keys
from estimator.search.remedies import cheapest_change
from estimator.tools.imported import read_files
from estimator.tools.writing.changes import changed_files

YAML = """\
# what we train
model_name_or_path: meta-llama/Llama-3.1-8B   # 8B
use_peft: true
lora_target_modules:
  - q_proj   # attention
  - v_proj

per_device_train_batch_size: 8  # tried 16
max_length: 4096
learning_rate: 2.0e-4
"""
SCRIPT = '''\
"""Ünser Lauf."""
from trl import SFTConfig, SFTTrainer

BATCH = 8  # tried 16

args = SFTConfig(
    output_dir="out",
    per_device_train_batch_size=BATCH,
    max_length=4096,  # é
    gradient_checkpointing_kwargs={"use_reentrant": False},
)
trainer = SFTTrainer(model="meta-llama/Llama-3.1-8B", args=args, train_dataset=None)
'''
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_config_file: ds.json
num_processes: 4
"""
DEEPSPEED = """\
{
  "bf16": {"enabled": "auto"},
  "zero_optimization": {
    "stage": 2
  }
}
"""


def lines(diff: str) -> list[str]:
    """Removed and added lines, without their positions."""
    return [
        line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]


def read_as(files: dict[str, str], changes: dict[str, Any]) -> Any:
    after = changed_files(files, changes)
    now = read_files({**files, **after.files}).setup
    for key, value in changes.items():
        assert now[key] == value, key
    return after


def test_yaml_keeps_comments_order_and_every_other_character():
    after = read_as({"sft.yaml": YAML}, {"per_device_train_batch_size": 2})
    assert lines(after.diff) == [
        "-per_device_train_batch_size: 8  # tried 16",
        "+per_device_train_batch_size: 2  # tried 16",
    ]


def test_missing_key_is_appended():
    after = read_as({"sft.yaml": YAML}, {"gradient_accumulation_steps": 4})
    assert lines(after.diff) == ["+gradient_accumulation_steps: 4"]
    assert after.files["sft.yaml"] == f"{YAML}gradient_accumulation_steps: 4\n"


def test_file_without_a_final_newline_gains_only_the_key():
    after = read_as({"sft.yaml": YAML.rstrip("\n")}, {"gradient_accumulation_steps": 4})
    assert after.files["sft.yaml"] == f"{YAML}gradient_accumulation_steps: 4"


def test_multiline_list_becomes_one_line():
    after = read_as({"sft.yaml": YAML}, {"lora_target_modules": ["o_proj", "k_proj"]})
    assert "lora_target_modules:\n  [o_proj, k_proj]\n\nper_device" in after.files["sft.yaml"]


def test_method_adds_only_the_keys_it_needs():
    after = read_as({"sft.yaml": YAML}, {"method": "qlora", "dtype": "bfloat16"})
    assert lines(after.diff) == ["+load_in_4bit: true", "+dtype: bfloat16"]


def test_a_base_that_axolotl_casts_to_float32_is_mended_by_the_key_that_casts_it():
    """axolotl 0.19.0, loaders/model.py:1142: ``load_in_4bit`` prepares the base for 4 bits, packed or not."""
    config = "base_model: Qwen/Qwen2.5-7B\nadapter: lora\nload_in_4bit: true\nbf16: true\n"
    after = read_as({"axolotl.yaml": config}, {"dtype": "bfloat16"})
    assert lines(after.diff) == ["-load_in_4bit: true", "+load_in_4bit: false"]


def test_script_is_changed_at_its_constant():
    after = read_as({"train.py": SCRIPT}, {"per_device_train_batch_size": 2, "max_length": 1024})
    assert lines(after.diff) == [
        "-BATCH = 8  # tried 16",
        "+BATCH = 2  # tried 16",
        "-    max_length=4096,  # é",
        "+    max_length=1024,  # é",
    ]


def test_script_gains_an_argument_and_an_option():
    files = {"train.py": SCRIPT}
    after = read_as(files, {"gradient_accumulation_steps": 4, "use_reentrant": True})
    assert lines(after.diff) == [
        '-    gradient_checkpointing_kwargs={"use_reentrant": False},',
        '+    gradient_checkpointing_kwargs={"use_reentrant": True},',
        "+    gradient_accumulation_steps=4,",
    ]


def test_command_is_changed_in_place():
    command = (
        "trl sft --model_name_or_path openai-community/gpt2 \\\n  --max_length=512 --bf16 true\n"
    )
    after = read_as({"run.sh": command}, {"max_length": 256, "gradient_accumulation_steps": 2})
    assert after.files["run.sh"] == command.replace("512", "256").replace(
        "true", "true --gradient_accumulation_steps 2"
    )


def test_deepspeed_json_is_changed_together_with_its_script():
    files = {"train.py": SCRIPT, "accelerate.yaml": ACCELERATE, "ds.json": DEEPSPEED}
    after = read_as(files, {"strategy": "zero3", "offload_optimizer": "cpu"})
    assert set(after.files) == {"ds.json"}
    assert '"stage": 3' in after.files["ds.json"]
    assert lines(after.diff)[0] == '-    "stage": 2'


def test_a_change_that_cannot_be_applied_to_a_script_is_left_to_the_user():
    with pytest.raises(ValueError, match=r"train\.py has no call that takes use_peft; write it by"):
        changed_files({"train.py": SCRIPT}, {"method": "qlora"})


@pytest.mark.parametrize("files", [{"sft.yaml": YAML}, {"train.py": SCRIPT}], ids=["yaml", "py"])
def test_remedy_is_written_to_the_file(files):
    """ "These lines make it fit": writes the remedy to the file, reads the file again and estimates it."""
    keys = {**read_files(files).setup, "gpu": "A100-SXM4-40GB"}
    before = estimate(*parse(keys))
    assert before.verdict == "does_not_fit"
    remedy = cheapest_change(before)
    if "method" in (remedy.keys if remedy else {}) and "train.py" in files:
        return  # no adapters are added to a script without them
    after = changed_files(files, plain_keys(remedy.keys))
    mended = read_files({**files, **after.files}).setup
    assert estimate(*parse({**mended, "gpu": "A100-SXM4-40GB"})).verdict == "fits"


def test_no_change_gives_no_diff():
    after = changed_files({"sft.yaml": YAML}, {"per_device_train_batch_size": 8})
    assert after.diff == ""
    assert after.files == {}


FIXTURES = Path(__file__).resolve().parent / "tools" / "fixtures"


@pytest.mark.parametrize("tool", ["axolotl", "llamafactory", "ms_swift", "torchtune"])
def test_real_configs_change_by_at_most_two_lines(tool):
    """Every third example of the tools: toggling checkpointing adds and removes at most two lines."""
    taken = refused = 0
    for path in sorted((FIXTURES / tool).iterdir())[::3]:
        text = path.read_text(encoding="utf-8")
        turned = not read_files({path.name: text}).setup.get("gradient_checkpointing", False)
        try:
            after = changed_files({path.name: text}, {"gradient_checkpointing": turned})
        except ValueError:
            refused += 1
            continue
        now = read_files({path.name: after.files[path.name]}).setup
        assert now["gradient_checkpointing"] is turned
        assert 1 <= len(lines(after.diff)) <= 4, after.diff
        taken += 1
    assert taken >= 9 * refused
    assert taken >= 8


def test_a_recipe_is_told_another_rank():
    path = FIXTURES / "torchtune" / "gemma2_27b_lora_single_device.yaml"
    after = changed_files({path.name: path.read_text(encoding="utf-8")}, {"lora_r": 4})
    assert lines(after.diff) == ["-  lora_rank: 8", "+  lora_rank: 4"]
