"""Lets libraries that bring Triton's kernels launch them here, where nothing runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Kernel:
    """A kernel whose launch does nothing."""

    def __getitem__(self, grid: object) -> Any:
        return lambda *_, **__: None


class _Dtype(str):
    """A dtype by its name."""

    SINT_TYPES = UINT_TYPES = ()
    FP_TYPES = ("fp16", "bf16", "fp32")


def _triton() -> tuple[ModuleType, ModuleType]:
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.__spec__, language.__spec__ = (
        ModuleSpec("triton", None),
        ModuleSpec("triton.language", None),
    )
    triton.__version__ = "3.0"
    triton.language = language
    triton.jit = lambda *_, **__: _Kernel()
    triton.cdiv = lambda a, b: -(-a // b)
    triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
    language.constexpr = language.float32 = int
    language.dtype = _Dtype
    return triton, language


@contextmanager
def found() -> Iterator[None]:
    """While libraries are imported, they find Triton; PyTorch's own compiler does not afterwards."""
    import transformers
    from transformers.utils import import_utils

    sys.modules["triton"], sys.modules["triton.language"] = _triton()
    for module in (import_utils, transformers.utils):
        module.is_triton_available = lambda: True
    yield
    del sys.modules["triton"], sys.modules["triton.language"]
