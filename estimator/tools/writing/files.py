"""The files that run a setup: a script or a config of the tool's, accelerate's, DeepSpeed's, and how to launch them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from estimator.tools.rules import Tool, Value
from estimator.tools.whose import tool_named, version_of
from estimator.tools.writing import scripts
from estimator.tools.writing.several_gpus import DEEPSPEED_FILE
from estimator.tools.writing.texts import json_text, nested, yaml
from estimator.tools.writing.theirs import theirs_of
from estimator.values.refusals import LIBRARIES, InputError
from estimator.values.specs import Model

DATASETS = {
    "trl": "trl-lib/Capybara",
    "trainer": "roneneldan/TinyStories",
    "axolotl": "tatsu-lab/alpaca",
    "llamafactory": "alpaca_en_demo",
}
"""What is trained on until somebody names their own: the tools' own examples; and plain texts for Trainer."""
ACCELERATE_FILE, REQUIREMENTS = "accelerate.yaml", "requirements.txt"
LARGEST_PART = frozenset(
    ["args", "model", "peft", "bnb", "call", "data", "accelerate", "deepspeed"]
)
WRITABLE: Mapping[str, frozenset[str]] = {
    "trl": frozenset({"args", "accelerate", "deepspeed"}),
    "trainer": frozenset(
        ["args", "model", "peft", "bnb", "call", "data", "accelerate", "deepspeed"]
    ),
    "axolotl": frozenset({"args", "accelerate", "deepspeed"}),
    "llamafactory": frozenset({"args", "launch", "deepspeed"}),
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
    theirs = theirs_of(tool, keys, model, WRITABLE[tool.name])
    files = _own_files(tool, theirs, about, dataset or DATASETS[tool.name])
    accelerate = nested(theirs, "accelerate") if tool.name in SCRIPTED else {}
    if accelerate:
        files[ACCELERATE_FILE] = yaml(accelerate)
    if deepspeed := nested(theirs, "deepspeed"):
        files[DEEPSPEED_FILE] = json_text(deepspeed)
    files[REQUIREMENTS] = requirements(tool, keys)
    return TakeAway(files=files, command=_command(tool, theirs))


def _command(tool: Tool, theirs: Mapping[str, Value]) -> str:
    """What starts the run: axolotl 0.19, docs/multi-gpu; llamafactory 0.9.5, launcher.py."""
    processes = theirs.get("accelerate.num_processes"), theirs.get("launch.nproc_per_node")
    match tool.name:
        case "axolotl" if processes[0]:
            return f"accelerate launch --num_processes {processes[0]} -m axolotl.cli.train axolotl.yaml"
        case "axolotl":
            return "axolotl train axolotl.yaml"
        case "llamafactory":
            own = f"FORCE_TORCHRUN=1 NPROC_PER_NODE={processes[1]} " if processes[1] else ""
            return f"{own}llamafactory-cli train llamafactory.yaml"
        case _ if nested(theirs, "accelerate"):
            return f"accelerate launch --config_file {ACCELERATE_FILE} train.py"
    return "python train.py"


def _named() -> str:
    return " or ".join(WRITABLE)


def _own_files(tool: Tool, theirs: Mapping[str, Value], about: str, dataset: str) -> dict[str, str]:
    own = nested(theirs, "args")
    comment = f"# {about}\n" if about else ""
    if tool.name == "axolotl":
        data = {"datasets": [{"path": dataset, "type": "alpaca"}], **_REST}
        return {"axolotl.yaml": f"{comment}{yaml({**own, **data})}"}
    if tool.name == "llamafactory":
        data = {"dataset": dataset, "dataset_dir": "REMOTE:llamafactory/demo_data", **_REST}
        first = {"stage": "sft", "do_train": True, "template": "default"}
        return {"llamafactory.yaml": f"{comment}{yaml({**first, **own, **data})}"}
    if tool.name == "trainer":
        return {"train.py": scripts.with_trainer(theirs, about, dataset)}
    whole = {**nested(theirs, "args"), "dataset_name": dataset, "output_dir": "output"}
    return {
        "train.py": scripts.with_trl(theirs, about, dataset),
        "sft.yaml": f"# {_trl_command(theirs)}\n{yaml(whole)}",
    }


def _trl_command(theirs: Mapping[str, Value]) -> str:
    """The same run without a script: trl 1.16, trl/cli.py."""
    shared = f" --accelerate_config {ACCELERATE_FILE}" if nested(theirs, "accelerate") else ""
    return f"trl sft --config sft.yaml{shared}"


_REST: Mapping[str, Value] = {"output_dir": "output", "learning_rate": 2e-4}
"""What a config must have that no estimate needs: the learning rate of both tools' LoRA examples."""


def requirements(tool: Tool, keys: Mapping[str, Value]) -> str:
    """What must be installed, pinned to the versions that were read for this estimate.

    >>> from estimator.tools.known import trl
    >>> requirements(trl.TOOL, {"method": "full"}).split()[:2]
    ['torch==2.13.0', 'transformers==5.23.0']
    """
    if tool.name not in SCRIPTED:  # the tool pins the others itself
        more = ["deepspeed"] * str(keys.get("strategy", "")).startswith("zero")
        return "\n".join([f"{tool.distribution}=={version_of(tool.name)}", *more, ""])
    names = ["torch", "transformers"]
    if tool.name == "trl":
        names.append("trl")
    if keys.get("method", "full") != "full":
        names.append("peft")
    names.append("accelerate")
    optimizer = str(keys.get("optim", ""))
    packs = keys.get("method") == "qlora" or keys.get("load_in_8bit")
    if packs or any(it in optimizer for it in ("bnb", "8bit", "paged", "lion", "ademamix")):
        names.append("bitsandbytes")
    if keys.get("use_liger_kernel"):
        names.append("liger-kernel")
    if str(keys.get("strategy", "")).startswith("zero"):
        names.append("deepspeed")
    pinned = [f"{name}=={LIBRARIES[name][0]}" for name in names]
    if keys.get("attn_implementation") == "flash_attention_2":
        pinned.append("flash-attn")
    return "\n".join([*pinned, "datasets", ""])
