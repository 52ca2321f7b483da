"""The process that uses the GPU: it reports the environment, then measures one case after another.

torch is imported here and in `real_run.py` alone, so that the session needs none and its tests neither.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.gpu.cases import Case
from estimator.sources.catalog import COUNTERS
from estimator.values.specs import STEP_PHASES

LEFT_IN_PEACE = 1 << 20
"""Bytes that a case may leave behind (bitsandbytes' code books); with more, the process is replaced."""
PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "bitsandbytes",
    "liger_kernel",
    "flash_attn",
    "triton",
)
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables that change what torch reserves; recorded with the versions if set."""


class FoundDevice(NamedTuple):
    """The device and the packages in the worker's process."""

    device: str
    memory_bytes: int | None
    """The card's memory according to torch, in bytes."""
    free_bytes: int | None
    """Free bytes once this process has its CUDA context."""
    compute_capability: str
    packages: frozenset[str]
    versions: str


class Answer(NamedTuple):
    """The outcome of one case."""

    outcome: str
    """``measured``, ``out_of_memory``, or ``failed`` with the reason in ``said``."""
    cells: dict[str, int | float | None]
    said: str
    retire: bool
    """Whether this process must be replaced because memory is left, or libraries are patched or broken."""


def serve(pipe: Connection, device: str) -> None:
    """Reports the environment, then measures each case it receives, until the input ends."""
    _quiet()
    from benchmarks.gpu import real_run  # noqa: PLC0415 — torch, of which only this process has need

    counter = real_run.NoCounter() if device == "cpu" else real_run.CudaDeviceCounter()
    found = _found(device)
    pipe.send(found)
    if not isinstance(found, FoundDevice):
        return
    done = 0
    while (case := pipe.recv()) is not None:
        pipe.send(_answer(real_run, case, device, counter, done))
        done += 1


def _quiet() -> None:
    """Selects one GPU and turns off network and progress bars; must run before the libraries are imported."""
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.stdout = sys.stderr  # whatever a library prints is no answer


def _found(device: str) -> FoundDevice | str:
    """The environment, or a sentence that says why nothing can be measured."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    transformers.utils.logging.disable_progress_bar()
    packages = frozenset(name for name in PACKAGES if find_spec(name))
    versions = [f"{name} {_version(name)}" for name in PACKAGES if name in packages]
    versions.append(f"Python {platform.python_version()}")
    versions += [f"{name}={os.environ[name]}" for name in ALLOCATOR_SETTINGS if name in os.environ]
    if device == "cpu":
        return FoundDevice("cpu", None, None, "", packages, "; ".join(versions))
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA GPU here; --device cpu tries the script without one."
    properties = torch.cuda.get_device_properties(0)
    free, _ = torch.cuda.mem_get_info()
    return FoundDevice(
        device=properties.name,
        memory_bytes=properties.total_memory,
        free_bytes=free,
        compute_capability=f"{properties.major}.{properties.minor}",
        packages=packages,
        versions="; ".join([*versions, f"CUDA {torch.version.cuda}"]),
    )


def _version(name: str) -> str:
    try:
        return version(name.replace("_", "-"))
    except PackageNotFoundError:
        return "unknown"


def _answer(real_run: Any, case: Case, device: str, counter: Any, done: int) -> Answer:
    try:
        facts = real_run.measure(case, device, counter)
    except Exception as problem:  # a case that fails must not take the others with it
        return Answer("failed", {}, f"{type(problem).__name__}: {problem}"[:400], retire=True)
    ran_out = facts["out_of_memory"]
    left = facts["left"].allocated or 0
    return Answer(
        "out_of_memory" if ran_out else "measured",
        _cells(facts) | {"cases_before": done},
        ran_out,
        retire=bool(ran_out) or left > LEFT_IN_PEACE or case.use_liger_kernel,
    )


def _cells(facts: dict[str, Any]) -> dict[str, int | float | None]:
    """The readings by column: per phase the highest of the steps after the first, and the peak of all phases."""
    first, *later = facts["steps"] or [{}]
    readings = {"before": facts["before"], "after_load": facts.get("after_load")}
    for phase in STEP_PHASES:
        for step in later:
            if phase in step:
                seen = readings.get(phase.value)
                readings[phase.value] = seen.highest(step[phase]) if seen else step[phase]
    for phase in STEP_PHASES:
        if phase.value in readings:
            seen = readings.get("peak")
            reading = readings[phase.value]
            readings["peak"] = seen.highest(reading) if seen else reading
    cells: dict[str, int | float | None] = {
        f"{counter}_{moment}_bytes": getattr(reading, counter)
        for moment, reading in readings.items()
        if reading is not None
        for counter in COUNTERS
    }
    heights = [reading.allocated for reading in first.values() if reading.allocated is not None]
    cells["allocated_first_step_bytes"] = max(heights, default=None)
    cells["total_parameters"] = facts.get("total_parameters")
    cells["trainable_parameters"] = facts.get("trainable_parameters")
    cells["step_seconds"] = facts["step_seconds"]
    cells["alloc_retries"] = facts["retries"]
    return cells
