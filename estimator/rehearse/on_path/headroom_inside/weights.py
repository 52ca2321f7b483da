"""Makes a model's weights from its config, where a run would read or download them."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from . import record


def skip_reading(modeling: ModuleType) -> None:
    """``from_pretrained`` takes every weight from nowhere, through the library's own loading.

    Source: transformers 4.46 and 5.23, modeling_utils.py, PreTrainedModel.from_pretrained: with a ``state_dict`` it
        opens no file.
    """
    if os.environ.get("HEADROOM_READ_WEIGHTS") == "1":
        return
    base: Any = modeling.PreTrainedModel
    read = base.from_pretrained.__func__

    def from_pretrained(cls: Any, name: Any = None, *told: Any, **named: Any) -> Any:
        if name is None or named.get("state_dict") is not None or named.get("gguf_file"):
            return read(cls, name, *told, **named)
        config = named.pop("config", None)
        if config is None or isinstance(config, (str, os.PathLike)):
            config, named = cls.config_class.from_pretrained(
                config or name, return_unused_kwargs=True, **named
            )
        if getattr(config, "quantization_config", None) is not None:
            record.note(f"{name} is stored quantised, so its weights are read.")
            return read(cls, name, *told, config=config, **named)
        for word in (
            "cache_dir",
            "force_download",
            "local_files_only",
            "token",
            "revision",
            "use_safetensors",
        ):
            named.pop(word, None)
        record.note(f"The weights of {name} are made from its config; none is read or downloaded.")
        model = read(
            cls, None, *told, config=config, state_dict=_nothing(cls, config, named), **named
        )
        model.name_or_path = model.config.name_or_path = str(name)
        return model

    base.from_pretrained = classmethod(from_pretrained)


def load_nothing(loaders: ModuleType) -> None:
    """vLLM, too, makes its weights from the config.

    Source: vllm 0.31, model_executor/model_loader/__init__.py, ``get_model_loader``; dummy_loader.py.
    """
    if os.environ.get("HEADROOM_READ_WEIGHTS") == "1":
        return
    module: Any = loaders
    found = module._LOAD_FORMAT_TO_MODEL_LOADER
    for name in OF_CHECKPOINTS:
        found[name] = found["dummy"]
    record.note(
        "vLLM's weights are made from the config; its CUDA graphs are captured without torch.compile, and "
        "take nothing outside PyTorch."
    )


OF_CHECKPOINTS = ("auto", "hf", "safetensors", "pt", "npcache")
"""Formats of a checkpoint that is read as it is; bitsandbytes' is packed as it is read."""


def _nothing(cls: Any, config: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Every tensor of a checkpoint, in the dtype in which the model is loaded; its pages are never touched."""
    torch = record.here.torch
    asked = named.get("dtype") or named.get("torch_dtype") or "auto"
    if isinstance(asked, str) and asked != "auto":
        asked = getattr(torch, asked)
    if not isinstance(asked, torch.dtype):
        stored = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
        asked = getattr(torch, stored) if isinstance(stored, str) else stored or torch.float32
    with torch.device("meta"):
        skeleton = cls(config)
    names: dict[int, str] = {}
    tensors = skeleton.state_dict(keep_vars=True)
    for name, tensor in tensors.items():  # tied weights are stored once
        names.setdefault(id(tensor), name)
    return {
        name: torch.empty(
            tensors[name].shape,
            dtype=asked if tensors[name].is_floating_point() else tensors[name].dtype,
        )
        for name in names.values()
    }
