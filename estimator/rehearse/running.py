"""Runs the user's command beside the card that is not there, and collects what its processes wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from estimator.values.refusals import InputError

ON_PATH = Path(__file__).parent / "on_path"
ROOT = Path(__file__).parents[2]
NO_LOGGING = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""A rehearsal is nobody's experiment: these services record none of it, unless the user's own environment says so."""


NO_COMPILER = {
    "DS_SKIP_CUDA_CHECK": "1",
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
"""DeepSpeed would ask nvcc for its version; vLLM would cut its CUDA graphs by ``torch.compile`` and compile a sampler
by nvcc, unless it is told to do without (vllm 0.31, envs.py)."""


def environment(
    own: Mapping[str, str],
    card: Mapping[str, str],
    reports: str,
    steps: int,
    *,
    read_weights: bool,
    alone_of: int = 0,
) -> dict[str, str]:
    """The environment of the user's command: their own, and what puts the card into each Python that it starts."""
    path = [str(ON_PATH), *filter(None, [own.get("PYTHONPATH")])]
    ours = {
        "PYTHONPATH": os.pathsep.join(path),
        "HEADROOM_REHEARSAL": reports,
        "HEADROOM_STEPS": str(steps),
        "HEADROOM_ROOT": str(ROOT),
        "HEADROOM_READ_WEIGHTS": str(int(read_weights)),
    }
    # which of the machine's own cards are to be seen: there is none, or it is not used
    kept = {name: value for name, value in own.items() if name != "CUDA_VISIBLE_DEVICES"}
    if alone_of:
        ours |= {
            "HEADROOM_ALONE": "1",
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(alone_of),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29533",  # nothing listens there
        }
    return {**NO_LOGGING, **NO_COMPILER, **kept, **card, **ours}


def run(
    command: Sequence[str],
    card: Mapping[str, str],
    steps: int,
    *,
    read_weights: bool,
    alone_of: int = 0,
) -> tuple[int, list[dict[str, Any]]]:
    """Run the command to its end; its exit status and its processes' reports. What it prints goes to standard error."""
    if not sys.platform.startswith("linux"):
        raise InputError(
            "A rehearsal needs Linux: PyTorch has no CUDA build for this system. Rehearse in a Linux container."
        )
    if shutil.which(command[0]) is None:
        raise InputError(f"{command[0]} is not found; name a command as you would run it.")
    with TemporaryDirectory(prefix="headroom-") as folder:
        told = environment(
            os.environ, card, folder, steps, read_weights=read_weights, alone_of=alone_of
        )
        process = subprocess.Popen(command, env=told, stdout=sys.stderr.fileno())
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise
        reports = [
            json.loads(path.read_text("utf-8")) for path in sorted(Path(folder).glob("*.json"))
        ]
    return status, reports
