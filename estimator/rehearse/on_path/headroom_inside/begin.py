"""Waits for libraries to be imported, and acts before or after."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import card, kernels, ranks, record, saving, server, stopping, trainers, values, weights

After = Callable[[ModuleType], None]
AFTER: dict[str, After] = {
    "torch": stopping.torch_is_here,
    "transformers.modeling_utils": weights.skip_reading,
    "transformers.masking_utils": values.answer_masks,
    "transformers.trainer": trainers.watch,
    "triton.runtime.jit": kernels.launch_nothing,
    "triton.runtime.autotuner": kernels.launch_nothing,
    "triton.backends.nvidia.driver": kernels.drive_nothing,
    "flashinfer.jit.core": kernels.build_nothing,
    "deepspeed.runtime.zero.utils": ranks.all_agree,
    "deepspeed.runtime.zero.stage3": ranks.no_step_overflows,
    "deepspeed.runtime.zero.stage_1_and_2": ranks.no_step_overflows,
    "trl.generation.vllm_client": server.answer,
    "vllm.model_executor.model_loader": weights.load_nothing,
    "safetensors.torch": saving.write_no_safetensors,
    "huggingface_hub.hf_api": saving.upload_nothing,
}
"""What is done with a module as soon as it is imported."""


def begin() -> None:
    """Wait for the libraries of a run."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds modules as Python would, and wraps the loaders of those that are waited for."""

    def __init__(self) -> None:
        self._looking: set[str] = set()

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """The spec of a module that is waited for; None of all others."""
        if name not in AFTER or name in self._looking:
            return None
        self._looking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.discard(name)
        if spec is None or spec.loader is None:
            return spec
        if name == "torch" and not record.is_on():
            card.insert(spec)
            record.start()
        _call_after(spec.loader, AFTER[name])
        return spec


def _call_after(loader: Any, then: After) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        then(module)

    loader.exec_module = exec_module
