"""The files that run a setup: a script or a config of the tool's, accelerate's, DeepSpeed's, and how to launch them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

from estimator.tools.defaults import tool_named, version_of
from estimator.tools.known import images
from estimator.tools.known.allocator import assignment
from estimator.tools.known.trl import GENERATES
from estimator.tools.lists import listed
from estimator.tools.rules import Tool, Value
from estimator.tools.sayable import sayable
from estimator.tools.writing import commands, overrides, scripts
from estimator.tools.writing.several_gpus import DEEPSPEED_FILE
from estimator.tools.writing.stops import check_stops
from estimator.tools.writing.texts import json_text, nested, yaml
from estimator.tools.writing.theirs import theirs_of
from estimator.values.refusals import LIBRARIES, InputError
from estimator.values.specs import Model

DATASETS: Mapping[str, Mapping[str, str]] = {
    "trl": {
        "sft": "trl-lib/Capybara",
        **dict.fromkeys(("dpo", "orpo", "reward"), "trl-lib/ultrafeedback_binarized"),
        "kto": "trl-lib/kto-mix-14k",
        **dict.fromkeys(("grpo", "rloo"), "trl-lib/DeepMath-103K"),
    },
    "trainer": {
        "sft": "roneneldan/TinyStories",
        "sequence_classification": "stanfordnlp/imdb",
    },
    "axolotl": {
        "sft": "tatsu-lab/alpaca",
        "dpo": "Intel/orca_dpo_pairs",
        "kto": "argilla/ultrafeedback-binarized-preferences-cleaned-kto",
        "orpo": "argilla/ultrafeedback-binarized-preferences-cleaned",
        "reward": "argilla/distilabel-intel-orca-dpo-pairs",
    },
    "llamafactory": {
        "sft": "alpaca_en_demo",
        "dpo": "dpo_en_demo",
        "kto": "kto_en_demo",
        "orpo": "dpo_en_demo",
        "reward": "dpo_en_demo",
    },
    "ms_swift": {
        "sft": "tatsu-lab/alpaca",
        **dict.fromkeys(("dpo", "orpo", "reward"), "shareAI/DPO-zh-en-emoji"),
        "kto": "argilla/ultrafeedback-binarized-preferences-cleaned-kto",
        "grpo": "AI-MO/NuminaMath-TIR",
    },
    "verl": dict.fromkeys(("grpo", "rloo"), "$HOME/data/gsm8k"),
}
"""What is trained on until somebody names their own: the tools' own examples; and plain texts for Trainer."""
ACCELERATE_FILE, REQUIREMENTS = "accelerate.yaml", "requirements.txt"
WRITABLE: Mapping[str, frozenset[str]] = {
    "trl": frozenset({"args", "trainer", "processor", "accelerate", "deepspeed", "allocator"}),
    "trainer": frozenset(
        listed("args trainer model peft bnb call data accelerate deepspeed allocator")
    ),
    "axolotl": frozenset({"args", "accelerate", "deepspeed", "allocator"}),
    "llamafactory": frozenset({"args", "launch", "accelerate", "deepspeed", "allocator"}),
    "ms_swift": frozenset({"args", "launch", "accelerate", "deepspeed", "allocator"}),
    "verl": frozenset({"args"}),
}
"""The parts of a config that a tool's files can hold, by tool; those that are not named here have no writer."""


SCRIPTED = frozenset({"trl", "trainer"})
"""Tools that are libraries: a script calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeAway:
    """Files that run a setup, by their names, and the command that starts them."""

    files: Mapping[str, str]
    command: str

    @property
    def main(self) -> str:
        """The name of the first: the script, or the tool's own config."""
        return next(iter(self.files))

    def archive(self) -> bytes:
        """All files and the command in one zip. Equal files give equal bytes.

        >>> zipfile.ZipFile(io.BytesIO(TakeAway(files={"a.txt": "x"}, command="run").archive())).namelist()
        ['a.txt', 'run.sh']
        """
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, text in {**self.files, "run.sh": f"{self.command}\n"}.items():
                zipped.writestr(zipfile.ZipInfo(name), text)
        return whole.getvalue()


def files_of(
    tool_name: str,
    keys: Mapping[str, Value],
    model: Model | None = None,
    *,
    about: str = "",
    dataset: str = "",
) -> TakeAway:
    """The files of a setup for a tool; ``InputError`` names the key that the tool has no word for.

    ``about``: a sentence for the head of the script, such as the verdict.

    >>> keys = {"model": "openai-community/gpt2", "loss": "chunked_trl", "num_gpus": 4, "strategy": "ddp"}
    >>> away = files_of("trl", keys)
    >>> [*away.files]
    ['train.py', 'sft.yaml', 'accelerate.yaml', 'requirements.txt']
    >>> away.command
    'accelerate launch --config_file accelerate.yaml train.py'
    """
    tool = tool_named(tool_name, keys.get("objective"))
    if tool.name not in WRITABLE:
        raise InputError(f"files for {tool.label} are not written yet; take {_named()}.")
    if not isinstance(keys.get("model"), str):
        raise InputError("the model has no name that a file could load it by; take one of the Hub.")
    if tool.name == "llamafactory":  # which gives an image limits of its own
        keys = images.stated(keys, model)
    plain = sayable(keys, tool.name)
    if tool.name == "verl":  # whose batches have no words where it stops at them
        check_stops(tool.name, plain)
    theirs = theirs_of(tool, keys, model, WRITABLE[tool.name])
    check_stops(tool.name, plain)
    if plain["method"] == "qlora" and theirs.get("args.fsdp_version") == 2:
        theirs[LOADS_ONCE] = False
    objective = str(plain["objective"])
    if objective not in DATASETS[tool.name]:
        raise InputError(f"files of {tool.label} for objective {objective} are not written yet.")
    files = _own_files(tool, theirs, about, dataset or DATASETS[tool.name][objective], objective)
    accelerate = nested(theirs, "accelerate") if tool.name != "axolotl" else {}
    if accelerate:
        files[ACCELERATE_FILE] = yaml(accelerate)
    if deepspeed := nested(theirs, "deepspeed"):
        files[DEEPSPEED_FILE] = json_text(deepspeed)
    files[REQUIREMENTS] = requirements(tool, keys)
    own = _command(tool, theirs, objective)
    is_inside = tool.name == "ms_swift"  # whose file is the command
    before = "" if is_inside else assignment(nested(theirs, "allocator"))
    return TakeAway(files=files, command=f"{before}{own}")


def _command(tool: Tool, theirs: Mapping[str, Value], objective: str) -> str:
    """What starts the run: axolotl 0.19, docs/multi-gpu; llamafactory 0.9.5, launcher.py."""
    by_accelerate, by_torchrun = nested(theirs, "accelerate"), nested(theirs, "launch")
    match tool.name:
        case "axolotl" if by_accelerate:
            several = _OTHERS.format(by_accelerate.get("num_machines", 1))
            flags = f"--num_processes {by_accelerate['num_processes']}"
            flags = f"{several} {flags}" if "num_machines" in by_accelerate else flags
            return f"accelerate launch {flags} -m axolotl.cli.train axolotl.yaml"
        case "axolotl":
            return "axolotl train axolotl.yaml"
        case "llamafactory" if by_accelerate:
            shared = f"--config_file {ACCELERATE_FILE}"
            return f"accelerate launch {shared} -m llamafactory.launcher llamafactory.yaml"
        case "llamafactory":
            own = {
                "FORCE_TORCHRUN": 1,
                **{key.upper(): value for key, value in by_torchrun.items()},
            }
            if "NNODES" in own:
                own |= {"NODE_RANK": '"$RANK"', "MASTER_ADDR": '"$MASTER_ADDR"'}
            said = "".join(f"{key}={value} " for key, value in own.items()) if by_torchrun else ""
            return f"{said}llamafactory-cli train llamafactory.yaml"
        case "verl":
            return f"bash {objective}.sh"
        case "ms_swift":
            return f"bash {commands.SCRIPT}"
        case _ if nested(theirs, "accelerate"):
            return f"accelerate launch --config_file {ACCELERATE_FILE} train.py"
    return "python train.py"


_OTHERS = '--num_machines {} --machine_rank "$RANK" --main_process_ip "$MASTER_ADDR"'
"""What accelerate must know on each of several machines: accelerate 1.15, commands/launch.py."""


def _named() -> str:
    return " or ".join(WRITABLE)


def _own_files(
    tool: Tool, theirs: Mapping[str, Value], about: str, dataset: str, objective: str
) -> dict[str, str]:
    own = nested(theirs, "args")
    comment = f"# {about}\n" if about else ""
    rest: dict[str, Value] = {"output_dir": "output"}
    rest["learning_rate"] = LEARNING_RATES.get(objective, 5e-6)
    if own.get("eval_strategy", "no") != "no" and tool.name in EVALUATED:
        rest[EVALUATED[tool.name]] = scripts.SHARE
    if tool.name == "axolotl":
        more = AXOLOTLS_OWN.get(objective, {})
        rows = {"path": dataset, **AXOLOTLS_ROWS[objective]}
        data = {**more, "datasets": [rows], **rest}
        return {"axolotl.yaml": f"{comment}{yaml({**own, **data})}"}
    if tool.name == "llamafactory":
        data = {"dataset": dataset, "dataset_dir": "REMOTE:llamafactory/demo_data", **rest}
        first = {"stage": "sft", "do_train": True, "template": "default"}
        return {"llamafactory.yaml": f"{comment}{yaml({**first, **own, **data})}"}
    if tool.name == "ms_swift":
        reward = {"reward_funcs": ["accuracy", "format"]} if objective in GENERATES else {}
        data = {"use_hf": True, "dataset": dataset, **reward, **rest}
        return {commands.SCRIPT: commands.script(theirs, about, data, ACCELERATE_FILE)}
    if tool.name == "verl":
        return {f"{objective}.sh": overrides.script(theirs, about, dataset)}
    if tool.name == "trainer":
        return {"train.py": scripts.with_trainer(theirs, about, dataset)}
    files = {"train.py": scripts.with_trl(theirs, about, dataset, objective)}
    if objective in TRL_SCRIPTS and not nested(theirs, "processor"):
        reward = {"reward_funcs": ["accuracy_reward"]} if objective in GENERATES else {}
        whole = {**own, **reward, "dataset_name": dataset, "output_dir": "output"}
        files[f"{objective}.yaml"] = f"# {_trl_command(theirs, objective)}\n{yaml(whole)}"
    return files


def _trl_command(theirs: Mapping[str, Value], objective: str) -> str:
    """The same run without a script: trl 1.16, trl/cli."""
    shared = f" --accelerate_config {ACCELERATE_FILE}" if nested(theirs, "accelerate") else ""
    return f"trl {objective} --config {objective}.yaml{shared}"


TRL_SCRIPTS = frozenset({"sft", "dpo", "kto", "reward", "grpo", "rloo"})
"""Objectives that TRL trains without a script of one's own: trl 1.16, trl/scripts."""
LOADS_ONCE = "args.fsdp_config.cpu_ram_efficient_loading"
"""What axolotl refuses beside load_in_4bit under FSDP 2: axolotl 0.19, utils/schemas/validation.py."""
EVALUATED = {"axolotl": "val_set_size", "llamafactory": "val_size"}
"""The key for the share of the rows that is kept for evaluation, without which there is none."""
LEARNING_RATES = {"sft": 2e-4, "reward": 1e-4}
"""Of the tools' LoRA examples, 5e-6 for preferences: LLaMA-Factory, examples/train_lora."""
AXOLOTLS_ROWS: Mapping[str, Mapping[str, Value]] = {
    "sft": {"type": "alpaca"},
    "dpo": {"split": "train", "type": "chatml.intel"},
    "kto": {"split": "train", "type": "llama3.ultra"},
    "orpo": {"type": "chat_template.argilla"},
    "reward": {"type": "bradley_terry.chat_template"},
}
"""How axolotl reads the rows of each: axolotl 0.18, docs/rlhf.qmd and examples."""
AXOLOTLS_OWN: Mapping[str, Mapping[str, Value]] = {
    "kto": {"remove_unused_columns": False},
    "orpo": {"chat_template": "chatml", "remove_unused_columns": False},
    "reward": {"chat_template": "chatml", "remove_unused_columns": False},
}
"""What axolotl stops without: axolotl 0.18, utils/schemas/validation.py, ``check_kto_config``; examples."""


EXTRAS = {"verl": "[gpu,vllm]"}
"""What a tool installs on demand alone: verl 0.9, setup.py (flash-attn, liger-kernel; vllm)."""
PACKED_BY_BNB = frozenset(["adamw_bnb_8bit", "paged_adamw_8bit"])


def requirements(tool: Tool, keys: Mapping[str, Value]) -> str:
    """What must be installed, pinned to the versions that were read for this estimate.

    >>> from estimator.tools.known import trl
    >>> requirements(trl.TOOL, {"method": "full"}).split()[:2]
    ['torch==2.13.0', 'transformers==5.23.0']
    """
    if tool.name not in SCRIPTED:  # the tool pins the others itself
        more = ["deepspeed"] * str(keys.get("strategy", "")).startswith("zero")
        if tool.name == "verl" and str(keys.get("optim")) in PACKED_BY_BNB:
            more.append("bitsandbytes")
        with_ = EXTRAS.get(tool.name, "")
        return "\n".join([f"{tool.distribution}{with_}=={version_of(tool.name)}", *more, ""])
    names = ["torch", "transformers"]
    if tool.name == "trl":
        names.append("trl")
    if keys.get("method", "full") != "full":
        names.append("peft")
    names.append("accelerate")
    optimizer = str(keys.get("optim", ""))
    packs = keys.get("method") == "qlora" or keys.get("load_in_8bit")
    if packs or any(word in optimizer for word in ("bnb", "8bit", "paged", "lion", "ademamix")):
        names.append("bitsandbytes")
    if keys.get("use_liger_kernel"):
        names.append("liger-kernel")
    if str(keys.get("strategy", "")).startswith("zero"):
        names.append("deepspeed")
    pinned = [f"{name}=={LIBRARIES[name][0]}" for name in names]
    if keys.get("attn_implementation") == "flash_attention_2":
        pinned.append("flash-attn")
    return "\n".join([*pinned, "datasets", ""])
