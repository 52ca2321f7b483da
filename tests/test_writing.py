"""A setup written as a tool's files reads back unchanged, or a sentence says what the tool cannot express."""

from __future__ import annotations

import ast
import json
import random
import re
import time
from collections.abc import Mapping
from typing import Any

import pytest

from estimator import catalog
from estimator.tools.defaults import TOOLS, with_defaults_of
from estimator.tools.imported import Fate, read_files
from estimator.tools.sayable import sayable
from estimator.tools.writing.files import files_of
from estimator.tools.writing.theirs import said, theirs_of
from estimator.values.keys import DEFAULT
from tests.rows import for_each

LLAMA = catalog.model("meta-llama/Llama-3.1-8B")
TRL = {"model": LLAMA.hub_id, "loss": "chunked_trl", "gradient_checkpointing": True}

CHOICES: dict[str, tuple[Any, ...]] = {
    "method": ("full", "lora", "qlora"),
    "dtype": ("bfloat16", "float32", "float16"),
    "mixed_precision": ("bf16", "fp16", "no"),
    "optim": ("adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "adafactor", "sgd_momentum"),
    "per_device_train_batch_size": (1, 2, 7, 16),
    "gradient_accumulation_steps": (1, 4, 13),
    "max_length": (512, 1000, 4096),
    "gradient_checkpointing": (False, True),
    "use_reentrant": (False, True),
    "checkpoint_every_n_layers": (1, 2),
    "attn_implementation": ("sdpa", "eager", "flash_attention_2"),
    "use_liger_kernel": (False, True),
    "torch_compile": (False, True),
    "lora_r": (8, 16, 64),
    "lora_alpha": (16, 32),
    "lora_dropout": (0.0, 0.05, 1e-5),
    "lora_target_modules": ("all-linear", ["q_proj", "v_proj"]),
    "modules_to_save": (None, ["lm_head"]),
    "use_dora": (False, True),
    "autocast_adapter_dtype": (False, True),
    "load_in_8bit": (False, True),
    "bnb_4bit_quant_type": ("nf4", "fp4"),
    "bnb_4bit_use_double_quant": (False, True),
    "bnb_4bit_quant_storage": ("uint8", "bfloat16"),
    "prepare_model_for_kbit_training": (False, True),
    "max_grad_norm": (1.0, 0.3),
    "eval_strategy": ("no", "steps", "epoch"),
    "per_device_eval_batch_size": (1, 8),
    "save_strategy": ("no", "steps", "epoch"),
    "save_total_limit": (None, 2),
    "save_only_model": (False, True),
    "num_train_epochs": (1.0, 3.0, 0.5),
}
SHARING: tuple[dict[str, Any], ...] = (
    {},
    {"strategy": "ddp", "num_gpus": 2},
    {"strategy": "ddp", "num_gpus": 16, "gpus_per_node": 8},
    *({"strategy": f"zero{stage}", "num_gpus": 8} for stage in (1, 2, 3)),
    {"strategy": "zero2", "num_gpus": 4, "offload_optimizer": "cpu"},
    {"strategy": "zero3", "num_gpus": 4, "offload_optimizer": "nvme", "offload_param": "cpu"},
    {"strategy": "zero3", "num_gpus": 8, "zero3_save_16bit_model": True},
    {"strategy": "fsdp", "num_gpus": 8, "fsdp_state_dict_type": "SHARDED_STATE_DICT"},
    {"strategy": "fsdp", "num_gpus": 8, "fsdp_version": 1},
    {"strategy": "fsdp", "num_gpus": 8, "offload_optimizer": "cpu", "offload_param": "cpu"},
    {"strategy": "fsdp_grad_op", "num_gpus": 4},
    {"strategy": "hsdp", "num_gpus": 16, "gpus_per_node": 8, "dp_replicate_size": 2},
)


TASKS: tuple[dict[str, Any], ...] = (
    {"objective": "dpo", "precompute_ref_log_probs": True, "loss_type": "ipo", "beta": 0.3},
    {"objective": "dpo"},
    {"objective": "kto", "loss_type": "apo_zero_unpaired", "precompute_ref_log_probs": True},
    {"objective": "kto", "beta": 0.5},
    {"objective": "orpo", "beta": 0.2},
    {"objective": "cpo", "loss_type": "simpo", "beta": 2.0},
    {"objective": "reward"},
    {"objective": "grpo", "num_generations": 4, "max_completion_length": 512, "beta": 0.04},
    {"objective": "grpo", "loss_type": "dr_grpo", "steps_per_generation": 8, "num_iterations": 2},
    {"objective": "rloo", "num_generations": 4, "beta": 0.0},
    {"objective": "sequence_classification", "num_labels": 5},
    {"objective": "sequence_classification"},
    {"objective": "embedding"},
)


def drawn(random_: random.Random, tool: str) -> dict[str, Any]:
    """A setup with about a third of its keys off the contract's defaults; half have an objective other than SFT."""
    keys = drawn_for_sft(random_, tool)
    if random_.random() < 0.5:
        keys |= random_.choice(TASKS)
        if tool == "trl" and keys["objective"] in ("orpo", "cpo", "reward"):
            keys.pop("loss")
    return keys


def drawn_for_sft(random_: random.Random, tool: str) -> dict[str, Any]:
    keys = {key: random_.choice(of) for key, of in CHOICES.items() if random_.random() < 0.35}
    keys |= random_.choice(SHARING)
    keys["model"] = LLAMA.hub_id
    if tool == "trl":
        keys["loss"] = "chunked_trl"
        packed = keys.get("method") == "qlora" or keys.get("load_in_8bit")
        keys["autocast_adapter_dtype"] = not packed and keys.get("strategy") != "zero3"
        keys.pop("prepare_model_for_kbit_training", None)
    return keys


OBJECTIVES_OF = {
    "trl": {"sft", "dpo", "kto", "orpo", "cpo", "reward", "grpo", "rloo"},
    "trainer": {"sft", "sequence_classification"},
}


def written_or_refused(tool: str, keys: dict[str, Any]) -> Mapping[str, str] | str:
    try:
        return files_of(tool, keys, LLAMA).files
    except ValueError as problem:
        return str(problem)


@pytest.mark.parametrize("tool", ["trl", "trainer"])
def test_written_files_read_back_as_the_same_setup(tool):
    """300 random setups that the tool can express, of all its objectives; refusals name a key."""
    objectives: set[str] = set()
    random_, expressed, refused = random.Random(17), 0, 0
    while expressed < 300:
        keys = drawn(random_, tool)
        files = written_or_refused(tool, keys)
        if isinstance(files, str):
            named = re.search(r"has no word for (\w+) ", files)
            assert named, files
            assert named[1] in sayable(keys)
            refused += 1
            continue
        beside = {
            value: text
            for value, text in files.items()
            if value in ("accelerate.yaml", "deepspeed.json")
        }
        yaml = f"{keys.get('objective', 'sft')}.yaml"
        if expressed % 2 and yaml in files:
            command = files[yaml].partition("\n")[0].removeprefix("# ")
            run = read_files({yaml: files[yaml], "run.sh": command, **beside})
        else:
            run = read_files({"train.py": files["train.py"], **beside})
        assert run.tool == tool
        assert sayable(run.setup) == sayable(keys)
        assert not run.of(Fate.UNKNOWN)
        assert not run.of(Fate.NOT_MODELLED)
        assert not run.contradictions
        objectives.add(run.setup.get("objective", "sft"))
        expressed += 1
    assert refused < expressed, "most setups should have words"
    assert objectives == OBJECTIVES_OF[tool]


@pytest.mark.parametrize(
    ("mesh", "sizes"),
    [
        ({"num_gpus": 2}, "tp_size=2"),
        ({"num_gpus": 8, "strategy": "fsdp"}, "tp_size=2, fsdp_size=4"),
        (
            {"num_gpus": 6, "strategy": "hsdp", "dp_replicate_size": 3},
            "tp_size=2, dp_replicate_size=3",
        ),
    ],
)
def test_divided_layers_are_written_as_the_config_that_loads_them(
    mesh: dict[str, Any], sizes: str
) -> None:
    """accelerate's file starts the processes and shards nothing."""
    keys = {"model": LLAMA.hub_id, "tp_size": 2, "save_only_model": True, **mesh}
    files = files_of("trainer", keys, LLAMA).files
    assert f"distributed_config=DistributedConfig({sizes})," in files["train.py"]
    assert "distributed_type: MULTI_GPU\n" in files["accelerate.yaml"]
    run = read_files({name: files[name] for name in ("train.py", "accelerate.yaml")})
    assert sayable(run.setup) == sayable(keys)
    assert not [*run.of(Fate.UNKNOWN), *run.of(Fate.NOT_MODELLED)]


def test_axolotl_divides_layers_over_all_gpus_alone() -> None:
    keys = said(TOOLS["axolotl"], {"args.base_model": LLAMA.hub_id}, LLAMA)
    keys |= {"tp_size": 2, "num_gpus": 2}
    away = files_of("axolotl", keys, LLAMA)
    assert "tensor_parallel_size: 2\n" in away.files["axolotl.yaml"]
    run = read_files({"axolotl.yaml": away.files["axolotl.yaml"], "run.sh": away.command})
    assert sayable(run.setup) == sayable(keys)
    with pytest.raises(ValueError, match="no word for tp_size 2"):
        files_of("axolotl", keys | {"num_gpus": 4, "strategy": "fsdp"}, LLAMA)


@pytest.mark.parametrize(
    ("tool", "named"), [("axolotl", "args.base_model"), ("llamafactory", "args.model_name_or_path")]
)
def test_a_self_launching_tools_config_reads_back_as_the_same_setup(tool, named):
    """150 random setups in a tool's own YAML, with DeepSpeed's JSON, accelerate's file and the command."""
    random_, expressed = random.Random(5), 0
    kinds: set[str] = set()
    base = said(TOOLS[tool], {named: LLAMA.hub_id}, LLAMA)
    while expressed < 150:
        others = {
            key: value for key, value in drawn(random_, tool).items() if random_.random() < 0.5
        }
        sharing = {key: base[key] for key in ("strategy", "num_gpus") if key in base}
        keys = base | others | sharing | random_.choice(SHARING) | {"model": LLAMA.hub_id}
        if expressed % 3 == 0:  # a whole task as both tools train it: all logits, as in older TRL
            keys |= {"packing": False, "loss_type": None, **random_.choice(TASKS[:6])}
            whole = "selective_trl" if tool == "axolotl" else "standard"
            keys["loss"] = whole if keys["objective"] in ("dpo", "kto") else None
        try:
            away = files_of(tool, keys, LLAMA)
        except ValueError as problem:
            refused = str(problem)
        else:
            refused = ""
        if refused:
            assert re.search(r"has no word for \w+ |^axolotl stops at ", refused)
            continue
        files = {name: text for name, text in away.files.items() if name != "requirements.txt"}
        run = read_files({**files, "run.sh": away.command})
        assert run.tool == tool
        assert sayable(run.setup) == sayable(keys)
        assert not run.of(Fate.UNKNOWN)
        kinds |= {keys["strategy"], keys["objective"]}
        expressed += 1
    assert kinds >= {"fsdp", "hsdp", "zero3", "ddp", "none", "sft", "dpo", "kto", "orpo", "reward"}


def test_a_script_for_ms_swift_reads_back_as_the_same_setup():
    """150 random setups as one command with flags, with DeepSpeed's JSON or accelerate's file."""
    random_, expressed = random.Random(5), 0
    kinds: set[str] = set()
    base = said(TOOLS["ms_swift"], {"args.model": LLAMA.hub_id}, LLAMA)
    while expressed < 150:
        others = {
            value: of for value, of in drawn(random_, "ms_swift").items() if random_.random() < 0.5
        }
        alone = {key: base[key] for key in ("strategy", "num_gpus") if key in base}
        keys = base | others | alone | random_.choice(SHARING) | {"model": LLAMA.hub_id}
        if expressed % 3 == 0:
            keys |= {"packing": False, "loss_type": None, **random_.choice(TASKS[:8])}
            keys["loss"] = "selective" if keys["objective"] in ("dpo", "kto", "grpo") else None
        files = written_or_refused("ms_swift", keys)
        if isinstance(files, str):
            assert re.search(r"has no word for \w+ |objective \w+ are not written yet", files)
            continue
        run = read_files(
            {value: text for value, text in files.items() if value != "requirements.txt"}
        )
        assert run.tool == "ms_swift"
        assert sayable(run.setup, "ms_swift") == sayable(keys, "ms_swift")
        assert not run.of(Fate.UNKNOWN)
        assert not run.of(Fate.NOT_MODELLED)
        kinds |= {keys["strategy"], keys["objective"]}
        expressed += 1
    assert kinds >= {"fsdp", "hsdp", "zero3", "ddp", "none", "sft", "dpo", "kto", "orpo", "grpo"}


@pytest.mark.parametrize(
    ("tool", "command"),
    [
        ("axolotl", "accelerate launch --num_processes 4 -m axolotl.cli.train axolotl.yaml"),
        ("ms_swift", "bash train.sh"),
        (
            "llamafactory",
            "FORCE_TORCHRUN=1 NPROC_PER_NODE=4 llamafactory-cli train llamafactory.yaml",
        ),
    ],
)
def test_a_self_launching_tool_has_its_command_and_pins_itself(tool, command):
    keys = {**dict(with_defaults_of(tool, {"model": LLAMA.hub_id}, LLAMA))}
    keys |= {
        "strategy": "zero3",
        "num_gpus": 4,
        "method": "lora",
        "lora_target_modules": "all-linear",
    }
    keys |= with_defaults_of(tool, keys, LLAMA)
    away = files_of(tool, keys, LLAMA, about="Fits.")
    assert away.command == command
    assert "# Fits.\n" in away.files[away.main]
    lines = away.files["requirements.txt"].split()
    assert lines[0].startswith(f"{TOOLS[tool].distribution}==")
    assert "deepspeed" in lines


@pytest.mark.parametrize(
    ("tool", "keys", "says"),
    [
        ("trl", {"loss": "standard"}, "TRL's SFTTrainer has no word for loss 'standard'"),
        ("trl", TRL | {"hold_outputs": True}, "no word for hold_outputs true"),
        ("trl", TRL | {"prepare_model_for_kbit_training": True, "method": "qlora"}, "no word for"),
        (
            "trl",
            TRL | {"objective": "dpo", "hold_outputs": True},
            "TRL's DPOTrainer has no word for hold_outputs true",
        ),
        ("trl", TRL | {"objective": "embedding"}, "no word for objective 'embedding'"),
        ("trainer", {"objective": "dpo"}, "Trainer has no word for objective 'dpo'"),
        ("trainer", {"loss": "chunked_trl"}, "Trainer has no word for loss 'chunked_trl'"),
        ("trainer", {"strategy": "device_map", "num_gpus": 2}, "Trainer has no word for "),
        ("trainer", {"activation_offloading": True}, "no word for activation_offloading true"),
    ],
)
def test_a_setup_a_tool_cannot_express_is_refused_by_key(tool, keys, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        files_of(tool, {"model": LLAMA.hub_id, **keys}, LLAMA)


def test_a_new_config_states_defaults_that_other_versions_may_change():
    """TRL checkpoints by default; a file that relies on it still says so."""
    theirs = theirs_of(TOOLS["trl"], TRL, LLAMA)
    assert theirs["args.gradient_checkpointing"] is True
    assert theirs["args.max_length"] == 1024
    assert "args.use_dora" not in theirs
    assert not any(key.startswith("call.") for key in theirs)


def test_a_changed_config_changes_only_what_it_must():
    given = {"args.model_name_or_path": LLAMA.hub_id, "args.per_device_train_batch_size": 8}
    keys = said(TOOLS["trl"], given, LLAMA) | {"per_device_train_batch_size": 2}
    theirs = theirs_of(TOOLS["trl"], keys, LLAMA, given=given)
    assert theirs == given | {"args.per_device_train_batch_size": 2}


@for_each("tool", sorted(tool.name for tool in TOOLS.values() if tool.is_called))
@for_each("method", ["full", "lora", "qlora"])
@for_each("sharing", SHARING)
def test_the_script_is_python_without_undefined_names(tool, method, sharing):
    keys = {"model": LLAMA.hub_id, "method": method, **sharing}
    if tool == "trl":
        packed = method == "qlora" or sharing.get("strategy") == "zero3"
        keys |= {"loss": "chunked_trl", "autocast_adapter_dtype": not packed}
        keys["gradient_checkpointing"] = False
    away = files_of(tool, keys, LLAMA, about='It """fits""".')
    tree = ast.parse(away.files["train.py"])
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    imported = {
        a.asname or a.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for a in node.names
    }
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert used <= stored | imported | defined | arguments | {"range", "len", "__name__"}
    if "accelerate.yaml" in away.files:
        assert away.command == "accelerate launch --config_file accelerate.yaml train.py"
    else:
        assert away.command == "python train.py"


def test_zero_is_written_as_two_files_and_one_names_the_other():
    keys = TRL | {
        "strategy": "zero3",
        "num_gpus": 16,
        "offload_param": "cpu",
        "offload_optimizer": "cpu",
    }
    files = files_of("trl", keys | {"overlap_comm": False}, LLAMA).files
    config = json.loads(files["deepspeed.json"])
    assert config["zero_optimization"]["stage"] == 3
    assert config["zero_optimization"]["overlap_comm"] is False
    assert config["zero_optimization"]["offload_param"] == {"device": "cpu"}
    assert config["gradient_accumulation_steps"] == "auto"  # otherwise it must repeat Trainer's
    assert "deepspeed_config_file: deepspeed.json" in files["accelerate.yaml"]
    assert "num_machines: 2" in files["accelerate.yaml"]
    assert (
        "mixed_precision" not in files["accelerate.yaml"]
    )  # accelerate refuses it together with a DeepSpeed file


@pytest.mark.parametrize(
    ("keys", "packages"),
    [
        ({"method": "full"}, {"torch", "transformers", "accelerate", "datasets"}),
        ({"method": "qlora"}, {"peft", "bitsandbytes"}),
        ({"optim": "paged_adamw_8bit"}, {"bitsandbytes"}),
        ({"use_liger_kernel": True}, {"liger-kernel"}),
        ({"strategy": "zero2", "num_gpus": 2}, {"deepspeed"}),
        ({"attn_implementation": "flash_attention_2"}, {"flash-attn"}),
    ],
)
def test_requirements_list_what_the_setup_needs(keys, packages):
    keys = {"model": LLAMA.hub_id, **keys}
    lines = files_of("trainer", keys, LLAMA).files["requirements.txt"].split()
    assert packages <= {line.split("==")[0] for line in lines}
    assert "transformers==5.23.0" in lines
    assert ("bitsandbytes==0.50.2" in lines) == ("bitsandbytes" in packages)


def test_files_are_written_quickly():
    """Fast enough for a click: 0.1 seconds on an idle machine, at most 2 on a busy one."""
    began = time.perf_counter()
    files_of("trl", TRL | {"method": "lora"}, LLAMA)
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    ("tool", "keys", "says"),
    [
        (
            "axolotl",
            {"strategy": "fsdp", "num_gpus": 4, "optim": "adamw_bnb_8bit"},
            "axolotl stops at optim adamw_bnb_8bit with FSDP 2",
        ),
        (
            "axolotl",
            {"strategy": "fsdp", "num_gpus": 4, "method": "qlora", "objective": "orpo"},
            "axolotl stops at a quantised base with FSDP 2",
        ),
    ],
)
def test_setups_a_tool_fails_on_are_refused(tool, keys, says):
    """tests/verify/test_parsers_real.py checks axolotl itself."""
    base = with_defaults_of(tool, {"model": LLAMA.hub_id, "method": "full", **keys}, LLAMA)
    with pytest.raises(ValueError, match=re.escape(says)):
        files_of(tool, {**base, "lora_target_modules": "all-linear"}, LLAMA)


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        ("trl", '        eval_dataset=parts["test"],'),
        ("trainer", '        eval_dataset=parts["test"],'),
        ("axolotl", "val_set_size: 0.05"),
        ("llamafactory", "val_size: 0.05"),
    ],
)
def test_a_config_that_evaluates_names_an_evaluation_set(tool, line):
    """Trainer fails if it has an evaluation strategy but no rows: transformers 5.23, trainer.py."""
    keys = with_defaults_of(tool, {"model": LLAMA.hub_id, "method": "full"}, LLAMA)
    for strategy in ("steps", "no"):
        away = files_of(tool, {**keys, "eval_strategy": strategy}, LLAMA)
        assert (line in away.files[away.main]) == (strategy == "steps")


@pytest.mark.parametrize("tool", ["trl", "trainer", "axolotl", "llamafactory", "ms_swift"])
@pytest.mark.parametrize(
    "settings",
    [(True, 1, None, 4), (False, 1, 64, None), (True, 16, None, None), (False, 4, 128, 1)],
)
def test_a_command_sets_the_allocator_as_the_setup_has_it(tool, settings):
    keys = dict(with_defaults_of(tool, {"model": LLAMA.hub_id}, LLAMA))
    names = (
        *("expandable_segments", "roundup_power2_divisions", "max_split_size_mb"),
        "torch_empty_cache_steps",
    )
    keys |= dict(zip(names, settings, strict=True))
    away = files_of(tool, keys, LLAMA)
    files = {name: text for name, text in away.files.items() if name != "requirements.txt"}
    if tool != "ms_swift":  # whose script is the command
        files["run.sh"] = away.command
    again = read_files(files).setup
    assert tuple(again.get(name, DEFAULT.value(name)) for name in names) == settings
