"""ms-swift's command as its own examples have it: a shell script with one command and its flags.

Source: ms-swift 4.6.0, swift/cli/main.py (``NPROC_PER_NODE``), examples/train/multi-gpu/deepspeed/train_zero3.sh,
examples/train/multi-gpu/fsdp_qlora/train.sh.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from estimator.tools.known.allocator import assignment
from estimator.tools.rules import Value
from estimator.tools.writing.texts import nested

SCRIPT = "train.sh"
OTHERS = {"NODE_RANK": '"$RANK"', "MASTER_ADDR": '"$MASTER_ADDR"'}
"""What torchrun must know on each of several machines."""


def script(
    theirs: Mapping[str, Value], about: str, rest: Mapping[str, Value], accelerate_file: str
) -> str:
    r"""The file: what a setup says, and ``rest``, what ms-swift does not start without.

    >>> print(script({"args.model": "a/b", "launch.nproc_per_node": 2}, "Fits.", {}, "").splitlines()[2])
    NPROC_PER_NODE=2 swift sft \
    """
    own = nested(theirs, "args")
    task = "rlhf" if "rlhf_type" in own else "sft"
    command = f"swift {task}"
    if nested(theirs, "accelerate"):
        command = f"accelerate launch --config_file {accelerate_file} -m swift.cli.{task}"
    elif launch := nested(theirs, "launch"):
        said = {key.upper(): str(value) for key, value in launch.items()}
        said |= OTHERS if "NNODES" in said else {}
        command = " ".join([*(f"{key}={value}" for key, value in said.items()), command])
    command = f"{assignment(nested(theirs, 'allocator'))}{command}"
    flags = [f"--{key} {flag_value(value)}" for key, value in {**own, **rest}.items()]
    lines = " \\\n  ".join([command, *flags])
    comment = f"# {about}\n" if about else ""
    return f"#!/usr/bin/env bash\n{comment}{lines}\n"


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
