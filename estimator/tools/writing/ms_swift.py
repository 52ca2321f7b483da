"""ms-swift's command as its own examples have it: a shell script with one command and its flags.

Source: ms-swift 4.6.0, swift/cli/main.py (``NPROC_PER_NODE``), examples/train/multi-gpu/deepspeed/train_zero3.sh,
examples/train/multi-gpu/fsdp_qlora/train.sh.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from estimator.tools.known.allocator import assignment
from estimator.tools.known.trl import GENERATES
from estimator.tools.rules import Value, Values
from estimator.tools.writing.several_gpus import variables, write_launched
from estimator.tools.writing.texts import nested
from estimator.tools.writing.writer import ACCELERATE_FILE, Said, ToolWriter

SCRIPT = "train.sh"


def script(said: Said, rest: Values) -> str:
    r"""The file: what a setup says, and ``rest``, what ms-swift does not start without.

    >>> said = Said({"args.model": "a/b", "launch.nproc_per_node": 2}, "Fits.", "", "sft")
    >>> print(script(said, {}).splitlines()[2])
    NPROC_PER_NODE=2 swift sft \
    """
    own, theirs = said.args, said.theirs
    task = "rlhf" if "rlhf_type" in own else "sft"
    if nested(theirs, "accelerate"):
        command = f"accelerate launch --config_file {ACCELERATE_FILE} -m swift.cli.{task}"
    else:
        command = f"{variables(nested(theirs, 'launch'))}swift {task}"
    command = f"{assignment(nested(theirs, 'allocator'))}{command}"
    flags = [f"--{key} {flag_value(value)}" for key, value in {**own, **rest}.items()]
    lines = " \\\n  ".join([command, *flags])
    return f"#!/usr/bin/env bash\n{said.comment}{lines}\n"


def flag_value(value: Value) -> str:
    r"""A flag's value as ms-swift parses it, quoted for the shell.

    >>> flag_value(True), flag_value(["q_proj", "v_proj"]), flag_value({"use_reentrant": False})
    ('true', 'q_proj v_proj', '\'{"use_reentrant": false}\'')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return " ".join(map(flag_value, value))
    return shlex.quote(json.dumps(value) if isinstance(value, Mapping) else str(value))


def _files(said: Said) -> dict[str, str]:
    reward = {"reward_funcs": ["accuracy", "format"]} if said.objective in GENERATES else {}
    return {
        SCRIPT: script(said, {"use_hf": True, "dataset": said.dataset, **reward, **said.rest()})
    }


WRITER = ToolWriter(
    parts=frozenset({"args", "launch", "accelerate", "deepspeed", "allocator"}),
    datasets={
        "sft": "tatsu-lab/alpaca",
        **dict.fromkeys(("dpo", "orpo", "reward"), "shareAI/DPO-zh-en-emoji"),
        "kto": "argilla/ultrafeedback-binarized-preferences-cleaned-kto",
        "grpo": "AI-MO/NuminaMath-TIR",
    },
    files=_files,
    command=lambda said: f"bash {SCRIPT}",
    command_is_a_file=True,
    sharing=write_launched,
)
