"""The classes of axolotl, LLaMA-Factory and DeepSpeed accept our files and read them as intended.

Each runs in its own process (``real_parser.py``), with packages from ``.venv-parsers`` (requirements-parsers.txt).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from estimator.tools.defaults import TOOLS
from estimator.tools.writing.axolotl import STOPS
from estimator.tools.writing.files import TakeAway, files_of
from estimator.tools.writing.theirs import said
from tests.test_writing import LLAMA, SHARING, TASKS, drawn

ROOT = Path(__file__).resolve().parents[2]
PARSERS = ROOT / ".venv-parsers"
NAMED = {"axolotl": "args.base_model", "llamafactory": "args.model_name_or_path"}
COUNT = 60

pytestmark = pytest.mark.skipif(not PARSERS.is_dir(), reason="make verify installs the parsers")


def answers(tool: str, configs: Sequence[Mapping[str, Any]], where: Path) -> list[Any]:
    """The tool's reading of each config: its fields, or the message of its refusal."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "verify" / "real_parser.py"), tool],
        input=json.dumps(configs),
        cwd=where,
        env={
            **os.environ,
            "PYTHONPATH": str(PARSERS),
            "DISABLE_VERSION_CHECK": "1",  # LLaMA-Factory's, from the older transformers that it pins
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    read: list[Any] = json.loads(done.stdout)
    assert len(read) == len(configs)
    return read


def setups(tool: str) -> list[TakeAway]:
    """The files of random setups that a tool can express; every third has an objective other than SFT."""
    random_, found = random.Random(31), []
    base = said(TOOLS[tool], {NAMED[tool]: LLAMA.hub_id}, LLAMA)
    for number in range(100 * COUNT):
        others = {
            key: value for key, value in drawn(random_, tool).items() if random_.random() < 0.5
        }
        keys = base | others | random_.choice(SHARING) | {"model": LLAMA.hub_id}
        if number % 3 == 0:
            keys |= {"packing": False, "loss_type": None, **random_.choice(TASKS[:6])}
            keys["loss"] = "standard" if keys["objective"] in ("dpo", "kto") else None
        try:
            away = files_of(tool, keys, LLAMA)
        except ValueError:
            continue
        found.append(away)
        if len(found) == COUNT:
            break
    return found


@pytest.mark.parametrize("tool", NAMED)
def test_tool_classes_read_our_yaml_as_intended(tool, tmp_path):
    made = setups(tool)
    json_file = next(run.files["deepspeed.json"] for run in made if "deepspeed.json" in run.files)
    (tmp_path / "deepspeed.json").write_text(json_file, encoding="utf-8")
    yaml = pytest.importorskip("yaml")  # as the tools read it
    configs = [yaml.safe_load(away.files[away.main]) for away in made]
    if tool == "llamafactory":
        configs = [
            {**config, "use_cpu": True, "fp16": False} for config in configs
        ]  # as the parser asks
    for config, read in zip(configs, answers(tool, configs, tmp_path), strict=True):
        assert isinstance(read, dict), read
        for key, value in config.items():
            if key != "datasets":  # a list of objects, to which the class adds its defaults
                _agrees(read[key], value, key)


def _agrees(found: Any, written: Any, key: str) -> None:
    if isinstance(written, dict) and isinstance(found, dict):
        for inner, value in written.items():
            _agrees(found.get(inner), value, f"{key}.{inner}")
    elif isinstance(found, list) and isinstance(written, str):
        assert found == written.split(","), key  # LLaMA-Factory divides a text into names
    else:
        assert found == written, key


def test_axolotl_fails_where_we_refuse(tmp_path):
    """Each of our refusals of a writable config is also axolotl's; the others need a GPU to check."""
    sharded = {
        "fsdp_config": {"offload_params": True, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    }
    packed = {"adapter": "qlora", "load_in_4bit": True, "lora_r": 8, "lora_target_linear": True}
    more: list[dict[str, Any]] = [
        {**sharded, "fsdp_version": 2, "optimizer": "adamw_bnb_8bit"},
        {**sharded, "fsdp_version": 1, "optimizer": "adamw_bnb_8bit"},
        {**sharded, **packed, "fsdp_version": 2, "rl": "dpo"},
    ]
    plain = {
        "base_model": LLAMA.hub_id,
        "datasets": [{"path": "x", "type": "alpaca"}],
        "micro_batch_size": 1,
        "learning_rate": 1e-4,
    }
    accepted, *stopped = answers("axolotl", [plain, *({**plain, **one} for one in more)], tmp_path)
    assert isinstance(accepted, dict)
    assert all(isinstance(one, str) for one in stopped), stopped
    assert len(STOPS) == len(more) + 1


def test_deepspeed_reads_our_json_as_intended(tmp_path):
    shared = [one for one in SHARING if "zero" in one.get("strategy", "")]
    configs = []
    for one in shared:
        text = files_of("trainer", {"model": LLAMA.hub_id, **one}, LLAMA).files["deepspeed.json"]
        whole = json.loads(text)
        filled = {"bf16": {"enabled": True}, "fp16": {"enabled": False}, "train_batch_size": 8}
        filled |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}
        assert {key for key, value in whole.items() if value == "auto"} <= {
            *filled,
            "gradient_clipping",
        }
        zero = {key: at for key, at in whole["zero_optimization"].items() if at != "auto"}
        configs.append({**filled, "zero_optimization": zero})
    for one, read in zip(shared, answers("deepspeed", configs, tmp_path), strict=True):
        assert read == {
            "stage": int(one["strategy"][-1]),
            "gathers": one.get("zero3_save_16bit_model", False),
            "optimizer": one.get("offload_optimizer", "none"),
            "param": one.get("offload_param", "none"),
        }
