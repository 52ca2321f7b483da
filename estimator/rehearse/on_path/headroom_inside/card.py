"""Puts the card that is not there into this process, before torch looks for one."""

from __future__ import annotations

import ctypes
import re
from importlib.machinery import ModuleSpec
from pathlib import Path

from . import build, record

OLDEST = (2, 4)
"""The oldest torch whose requests are known to be answered: CUDA 12's runtime and cuDNN 9."""


def insert(spec: ModuleSpec) -> None:
    """Load the libraries that stand for NVIDIA's; ends the process with a sentence where that cannot be."""
    if not spec.origin:
        record.refuse("torch is not installed whole: its folder has no __init__.py.")
    packages = Path(spec.origin or "").parent.parent
    version = _version(packages)
    numbers = tuple(int(digits) for digits in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        record.refuse(
            f"torch {version} is older than 2.4, the oldest that can be rehearsed; install a newer one."
        )
    cuda = build.cuda_of(packages)
    if not cuda:
        record.refuse(
            f"torch {version} in {packages} is built without CUDA; a rehearsal needs PyTorch's CUDA build, as the run "
            "will: install it from https://pytorch.org/get-started/locally (no GPU and no driver are needed)."
        )
    if int(cuda.split(".", maxsplit=1)[0]) < 12:
        record.refuse(f"torch {version} is built for CUDA {cuda}; CUDA 12 and 13 can be rehearsed.")
    try:
        folder = build.cached(packages)
    except build.NotBuiltError as problem:
        record.refuse(str(problem))
    first = folder / build.LIBRARY
    others = [library for library in sorted(folder.glob("lib*.so.*")) if library != first]
    for library in (first, *others):  # found by name from now on, before NVIDIA's own
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    null = ctypes.CDLL(str(first))
    null.null_answer.argtypes = [ctypes.c_int]
    null.null_take_most.argtypes, null.null_take_most.restype = [ctypes.c_int], ctypes.c_size_t
    record.here.null = null


def _version(packages: Path) -> str:
    text = (packages / "torch" / "version.py").read_text(encoding="utf-8")
    found = re.search(r"__version__ *= *['\"]([^'\"]+)['\"]", text)
    return found[1] if found else "0.0"
