"""axolotl's YAML, and accelerate before it.

Source: axolotl 0.19, docs/multi-gpu.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator.tools.known.axolotl import PARTS
from estimator.tools.rules import Value, Values
from estimator.tools.writing.several_gpus import SHARDING, fsdp_config, groups, named_json
from estimator.tools.writing.texts import nested, yaml
from estimator.tools.writing.writer import Said, Stop, ToolWriter, only_writes
from estimator.values.objective import having

ROWS: Mapping[str, Values] = {
    "sft": {"type": "alpaca"},
    "dpo": {"split": "train", "type": "chatml.intel"},
    "kto": {"split": "train", "type": "llama3.ultra"},
    "orpo": {"type": "chat_template.argilla"},
    "reward": {"type": "bradley_terry.chat_template"},
}
"""How axolotl reads the rows of each: axolotl 0.18, docs/rlhf.qmd and examples."""
OWN: Mapping[str, Values] = {
    "kto": {"remove_unused_columns": False},
    "orpo": {"chat_template": "chatml", "remove_unused_columns": False},
    "reward": {"chat_template": "chatml", "remove_unused_columns": False},
}
"""What axolotl stops without: axolotl 0.18, utils/schemas/validation.py, ``check_kto_config``; examples."""

_OTHERS = '--num_machines {} --machine_rank "$RANK" --main_process_ip "$MASTER_ADDR"'
"""What accelerate must know on each of several machines: accelerate 1.15, commands/launch.py."""


def _files(said: Said) -> dict[str, str]:
    args = said.args
    if args.get("load_in_4bit") and args.get("fsdp_version") == 2:
        # which it refuses beside load_in_4bit: axolotl 0.19, utils/schemas/validation.py
        args["fsdp_config"]["cpu_ram_efficient_loading"] = False
    rows = {"path": said.dataset, **ROWS[said.objective]}
    data = {**OWN.get(said.objective, {}), "datasets": [rows], **said.rest("val_set_size")}
    return {"axolotl.yaml": f"{said.comment}{yaml({**args, **data})}"}


def _command(said: Said) -> str:
    several = nested(said.theirs, "accelerate")
    if not several:
        return "axolotl train axolotl.yaml"
    flags = f"--num_processes {several['num_processes']}"
    if "num_machines" in several:
        flags = f"{_OTHERS.format(several['num_machines'])} {flags}"
    return f"accelerate launch {flags} -m axolotl.cli.train axolotl.yaml"


def _sharing(values: Values) -> Values:
    strategy, number = values["strategy"], values["num_gpus"]
    if strategy == "device_map" or (strategy == "none" and values["tp_size"] == 1):
        return {}
    written: dict[str, Value] = {"accelerate.num_processes": number}
    if (machines := -(-number // values["gpus_per_node"])) > 1:
        written["accelerate.num_machines"] = machines
    if strategy == "none":
        return written | {PARTS: values["tp_size"]}
    if strategy == "ddp":
        return written
    return written | (_fsdp(values) if strategy in SHARDING else named_json(values))


def _fsdp(values: Values) -> dict[str, Value]:
    """Its YAML's own block: axolotl 0.19, utils/schemas/fsdp.py; docs/multi-gpu.qmd."""
    config, version = fsdp_config(values), values["fsdp_version"]
    written: dict[str, Value] = {"args.fsdp_version": version}
    if version == 1:
        written["args.fsdp"] = [SHARDING[values["strategy"]].lower(), "auto_wrap"]
        config |= {"use_orig_params": True, "sync_module_states": True}
    written |= groups(values, "args.")
    return written | {f"args.fsdp_config.{key}": value for key, value in config.items()}


def _is_packed(keys: Values) -> bool:
    return keys.get("method") == "qlora" or bool(keys.get("load_in_8bit"))


def _has_preferences(keys: Values) -> bool:
    return keys.get("objective") in having("is_preference")


STOPS = (
    Stop(
        when=lambda keys: (
            keys.get("fsdp_version") == 2 and keys.get("optim") in ("adamw_8bit", "adamw_bnb_8bit")
        ),
        says="axolotl stops at optim adamw_bnb_8bit with FSDP 2; take paged_adamw_8bit.",
        source="axolotl 0.19.0, utils/schemas/validation.py, check_fsdp2_w_8bit_optimizer",
    ),
    Stop(
        when=lambda keys: (
            keys.get("fsdp_version") == 1
            and keys.get("offload_param") == "cpu"
            and "8bit" in str(keys.get("optim"))
        ),
        says="axolotl stops at an 8-bit optimizer with FSDP 1 and offload; take fsdp_version 2.",
        source="axolotl 0.19.0, utils/schemas/validation.py, check_fsdp_offload_w_8bit_optimizer",
    ),
    Stop(
        when=lambda keys: (
            keys.get("fsdp_version") == 2 and _is_packed(keys) and _has_preferences(keys)
        ),
        says="axolotl stops at a quantised base with FSDP 2 and preferences; take fsdp_version 1, or ZeRO.",
        source="axolotl 0.19.0, utils/schemas/validation.py, check_fsdp2_base_model_quant_rl",
    ),
    Stop(
        when=lambda keys: (
            keys.get("num_gpus", 1) > 1
            and keys.get("method") == "qlora"
            and _has_preferences(keys)
            and bool(keys.get("gradient_checkpointing") and keys.get("use_reentrant"))
        ),
        says="axolotl stops at use_reentrant with QLoRA and preferences on several GPUs; set use_reentrant false.",
        source="axolotl 0.19.0, utils/schemas/validation.py, check_rl_config_gradient_checkpointing",
    ),
)

WRITER = ToolWriter(
    parts=frozenset({"args", "accelerate", "deepspeed", "allocator"}),
    datasets={
        "sft": "tatsu-lab/alpaca",
        "dpo": "Intel/orca_dpo_pairs",
        "kto": "argilla/ultrafeedback-binarized-preferences-cleaned-kto",
        "orpo": "argilla/ultrafeedback-binarized-preferences-cleaned",
        "reward": "argilla/distilabel-intel-orca-dpo-pairs",
    },
    files=_files,
    command=_command,
    takes_accelerate_file=False,
    rows=(
        # a base that it does not pack is float32 while this is on: known/axolotl.py, ``_is_upcast``
        only_writes(
            ("method", "dtype"), lambda values: {"args.load_in_4bit": values["method"] == "qlora"}
        ),
    ),
    sharing=_sharing,
    stops=STOPS,
)
