"""The parsers of TRL, transformers and accelerate read our files as intended, and a written script trains.

The trained model is tiny and random, on the CPU.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from estimator.tools.defaults import tool_named
from estimator.tools.writing.files import files_of
from estimator.tools.writing.registry import WRITABLE
from estimator.tools.writing.texts import nested
from estimator.tools.writing.theirs import theirs_of
from estimator.values.objective import OBJECTIVES
from tests.test_writing import LLAMA, SHARING, drawn

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.filterwarnings("ignore")]  # the libraries' own
ROOT = Path(__file__).resolve().parents[2]
SIZES = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


@cache
def some(tool: str, count: int) -> list[tuple[dict[str, Any], dict[str, Any], Any]]:
    """Random setups that a tool can express: our keys, the tool's keys, and the files."""
    random_, found = random.Random(23), []
    while len(found) < count:
        keys = drawn(random_, tool)
        objective = OBJECTIVES[keys.get("objective", "sft")]
        if tool == "trl" and not (objective.trl and objective.trl.has_script):
            continue  # and so no YAML
        if objective.generates and keys.get("per_device_train_batch_size", 8) % keys.get(
            "num_generations", 8
        ):
            continue  # the parser runs alone, and refuses parts of a group
        try:
            named = tool_named(tool, keys.get("objective"))
            theirs = theirs_of(named, keys, LLAMA, WRITABLE[tool])
        except ValueError:
            continue
        found.append((keys, theirs, files_of(tool, keys, LLAMA)))
    return found


@pytest.mark.parametrize("number", range(24))
def test_trl_parser_reads_the_yaml_as_intended(number, tmp_path):
    trl = pytest.importorskip("trl")
    keys, theirs, away = some("trl", 24)[number]
    objective = keys.get("objective", "sft")
    text = away.files[f"{objective}.yaml"].replace("output_dir: output", f"output_dir: {tmp_path}")
    (tmp_path / "own.yaml").write_text(f"{text}use_cpu: true\n", encoding="utf-8")
    config = getattr(trl, f"{OBJECTIVES[objective].trl.name}Config")
    scripts = importlib.import_module(f"trl.scripts.{objective}")
    own = {"grpo": "GRPOScriptArguments", "rloo": "RLOOScriptArguments"}.get(objective)
    arguments = getattr(scripts, own) if own else trl.ScriptArguments
    parser = trl.TrlParser((arguments, config, trl.ModelConfig))
    parsed = parser.parse_args_and_config(args=["--config", str(tmp_path / "own.yaml")])
    _agrees(nested(theirs, "args"), [vars(one) for one in parsed])


@pytest.mark.parametrize("number", range(12))
def test_transformers_parser_reads_the_arguments_as_intended(number, tmp_path):
    _, theirs, _ = some("trainer", 12)[number]
    arguments = {**nested(theirs, "args"), "output_dir": str(tmp_path), "use_cpu": True}
    arguments.pop("fp16", None)  # always refused on a CPU
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (parsed,) = parser.parse_dict(arguments)
    _agrees(arguments, [vars(parsed)])


def _agrees(written: dict[str, Any], parsed: list[dict[str, Any]]) -> None:
    """Each written key is a field of one of the classes, with the written value."""
    for key, value in written.items():
        (holder,) = [one for one in parsed if key in one]
        found = holder[key]
        assert getattr(found, "value", found) in (value, [value]), key


@pytest.mark.parametrize("sharing", SHARING[1:], ids=lambda one: one["strategy"])
def test_accelerate_reads_its_file_as_intended(sharing, tmp_path):
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    launch = pytest.importorskip("accelerate.commands.launch")
    away = files_of("trainer", {"model": LLAMA.hub_id, **sharing}, LLAMA)
    for name, text in away.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    path = str(tmp_path / "accelerate.yaml")
    config = config_args.load_config_from_file(path)
    assert config.num_processes == sharing["num_gpus"]
    kinds = {"ddp": "MULTI_GPU", "hsdp": "FSDP"}
    kind = kinds.get(
        sharing["strategy"], sharing["strategy"][:4].upper().replace("ZERO", "DEEPSPEED")
    )
    assert str(config.distributed_type.value) == kind
    arguments = launch.launch_command_parser().parse_args(["--config_file", path, "train.py"])
    arguments, *_ = launch._validate_launch_command(arguments)
    assert bool(arguments.use_fsdp) == (kind == "FSDP")
    assert bool(arguments.use_deepspeed) == (kind == "DEEPSPEED")
    assert arguments.num_processes == sharing["num_gpus"]
    if kind == "FSDP":
        assert int(arguments.fsdp_version) == sharing.get("fsdp_version", 2)


# --- and it trains --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with its tokenizer, and rows of text."""
    tokenizers = pytest.importorskip("tokenizers")
    home = tmp_path_factory.mktemp("tiny")
    words = {"<eos>": 0, "<pad>": 1, **{f"w{n}": n for n in range(2, 32)}}
    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<eos>"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole, eos_token="<eos>", pad_token="<pad>"
    )
    tokenizer.save_pretrained(home / "model")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(home / "model")
    for name, rows in ROWS.items():
        (home / name).mkdir()
        lines = "".join(f"{json.dumps(rows(n))}\n" for n in range(16))
        (home / name / "train.jsonl").write_text(lines, encoding="utf-8")
    return home


def words_of(n: int, step: int, count: int = 10) -> str:
    return " ".join(f"w{2 + (n * k + step) % 30}" for k in range(count))


def _pair(n: int) -> dict[str, Any]:
    return {"prompt": words_of(n, 0, 5), "chosen": words_of(n, 1), "rejected": words_of(n, 2)}


ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "sft": lambda n: {"text": words_of(n, 0, 20)},
    "dpo": _pair,
    "orpo": _pair,
    "reward": lambda n: {"chosen": words_of(n, 1), "rejected": words_of(n, 2)},
    "kto": lambda n: {
        "prompt": words_of(n, 0, 5),
        "completion": words_of(n, 1),
        "label": n % 2 > 0,
    },
    "grpo": lambda n: {"prompt": words_of(n, 0, 5), "solution": "w2"},
    "sequence_classification": lambda n: {"text": words_of(n, 0, 20), "label": n % 3},
}
"""A data set of each objective, as the script says that it must be."""
LENGTHS = "lambda completions, **_: [float(len(it)) for it in completions]"
"""A reward that needs no package beside TRL."""


@pytest.mark.parametrize(
    ("tool", "keys"),
    [
        (
            "trl",
            {
                "method": "lora",
                "lora_r": 4,
                "gradient_checkpointing": True,
                "eval_strategy": "epoch",
            },
        ),
        ("trl", {"method": "full", "dtype": "float32", "mixed_precision": "no"}),
        (
            "trainer",
            {"method": "lora", "modules_to_save": ["lm_head"], "autocast_adapter_dtype": False},
        ),
        (
            "trainer",
            {
                "method": "full",
                "dtype": "float32",
                "gradient_checkpointing": True,
                "eval_strategy": "epoch",
            },
        ),
        ("trainer", {"method": "lora", "objective": "sequence_classification", "num_labels": 3}),
        ("trl", {"method": "lora", "objective": "dpo", "loss_type": "ipo"}),
        (
            "trl",
            {"method": "full", "objective": "kto", "per_device_train_batch_size": 2, "beta": 0.2},
        ),
        ("trl", {"method": "lora", "objective": "orpo"}),
        ("trl", {"method": "full", "objective": "reward", "gradient_checkpointing": True}),
        (
            "trl",
            {
                "method": "lora",
                "objective": "grpo",
                "per_device_train_batch_size": 2,
                "num_generations": 2,
                "max_completion_length": 4,
            },
        ),
    ],
)
def test_written_script_trains_two_steps(tool, keys, folder, tmp_path):
    """The script as written, except for the CPU's settings and a limit of two steps."""
    pytest.importorskip("peft")
    pytest.importorskip("datasets")
    if tool == "trl":
        pytest.importorskip("trl")
        whole = {"orpo", "reward"}
        keys = keys | ({} if keys.get("objective") in whole else {"loss": "chunked_trl"})
    objective = keys.get("objective", "sft")
    asked = {"model": str(folder / "model"), "max_length": 16, "save_strategy": "no", **keys}
    away = files_of(tool, asked, dataset=str(folder / objective))
    of_cpu = 'output_dir="output", use_cpu=True, max_steps=2, report_to="none", logging_steps=1'
    script = away.files["train.py"].replace('output_dir="output"', of_cpu)
    script = script.replace("reward_funcs=accuracy_reward", f"reward_funcs={LENGTHS}")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train_loss" in done.stdout
    saved = {path.name for path in (tmp_path / "output").iterdir()}
    assert ("adapter_model.safetensors" in saved) == (keys["method"] == "lora")
