"""LLaMA-Factory's YAML: llamafactory 0.9.5, launcher.py."""

from __future__ import annotations

from estimator.tools.known import images
from estimator.tools.writing.several_gpus import variables, write_launched
from estimator.tools.writing.texts import nested, yaml
from estimator.tools.writing.writer import ACCELERATE_FILE, Said, ToolWriter

FILE = "llamafactory.yaml"


def _files(said: Said) -> dict[str, str]:
    data = {"dataset": said.dataset, "dataset_dir": "REMOTE:llamafactory/demo_data"}
    first = {"stage": "sft", "do_train": True, "template": "default"}
    whole = {**first, **said.args, **data, **said.rest("val_size")}
    return {FILE: f"{said.comment}{yaml(whole)}"}


def _command(said: Said) -> str:
    if nested(said.theirs, "accelerate"):
        return f"accelerate launch --config_file {ACCELERATE_FILE} -m llamafactory.launcher {FILE}"
    launch = nested(said.theirs, "launch")
    before = f"FORCE_TORCHRUN=1 {variables(launch)}" if launch else ""
    return f"{before}llamafactory-cli train {FILE}"


WRITER = ToolWriter(
    parts=frozenset({"args", "launch", "accelerate", "deepspeed", "allocator"}),
    datasets={
        "sft": "alpaca_en_demo",
        "kto": "kto_en_demo",
        **dict.fromkeys(("dpo", "orpo", "reward"), "dpo_en_demo"),
    },
    files=_files,
    command=_command,
    sharing=write_launched,
    stated=images.stated,  # it gives an image limits of its own
)
