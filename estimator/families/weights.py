"""Bytes of weights and adapters on one GPU, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from estimator.families.adapters import (
    is_quantized,
)
from estimator.families.loaded import clamps
from estimator.families.modules import Bare, Module
from estimator.families.packed import FLOAT32_BYTES
from estimator.families.registry import family_of
from estimator.values.arithmetic import allocated, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, Model


def unquantized_width(setup: TrainingSetup) -> int:
    """Bytes per element of a weight that is not packed: as loaded, or 4 after ``prepare_model_for_kbit_training``.

    Source: peft 0.21, utils/other.py: casts every float16 and bfloat16 parameter that is not 4-bit to float32.
    """
    if setup.adapters.has_packed_base and setup.adapters.prepare_model_for_kbit_training:
        return FLOAT32_BYTES
    return setup.precision.dtype.bytes


CAST_BACK = ("lm_head", "embed_tokens", "wte", "wpe")
"""Names of what ORPO's trainer casts: trl 1.16, experimental/utils.py, ``peft_module_casting_to_bf16``."""


def weight_width(module: Module, setup: TrainingSetup) -> int:
    """Bytes per element of this module's weight if not packed: as loaded, or 4 if it stays in float32.

    ORPO's trainer casts heads and embeddings beside a 4-bit base back to bfloat16, by their names, and leaves the rest
    in float32.

    Source: transformers 5.23, modeling_utils.py, ``_keep_in_fp32_modules_strict``; trl 1.16,
    experimental/orpo/orpo_trainer.py:232-263, experimental/utils.py, ``peft_module_casting_to_bf16``.
    """
    if isinstance(module, Bare) and module.float32:
        return FLOAT32_BYTES
    if setup.casts_base_back and any(name in module.name for name in CAST_BACK):
        return Dtype.BFLOAT16.bytes
    return unquantized_width(setup)


def adapter_width(setup: TrainingSetup) -> int:
    """Bytes per element of an adapter: 4 with PEFT's ``autocast_adapter_dtype``, else the base's dtype.

    Without it those of a packed base are bfloat16, to which TRL casts them, whatever the rest of the base is.

    >>> packed = TrainingSetup(method="qlora", dtype="float32", mixed_precision="bf16", autocast_adapter_dtype=False)
    >>> adapter_width(packed)
    2

    Source: peft 0.21, tuners/tuners_utils.py, ``cast_adapter_dtype``; trl 1.16, trainer/sft_trainer.py:911.
    """
    if setup.adapters.autocast_adapter_dtype:
        return FLOAT32_BYTES
    packed = setup.adapters.has_packed_base
    return Dtype.BFLOAT16.bytes if packed else setup.precision.dtype.bytes


class Buffer(NamedTuple):
    """An untrained tensor of the model."""

    name: str
    copies: int
    """Number of copies: one per layer, or one."""
    bytes: int


def buffers(model: Model) -> tuple[Buffer, ...]:
    """Buffers of more than a few KiB, with their bytes as allocated, per GPU.

    GPT-BigCode keeps an unused causal mask, positions² bytes; GPT-J a float32 table of sines and cosines in every
    layer, 4 · positions · rotary_dim bytes.

    Leaves out: rotary frequencies (4 · head_dim bytes).
    Source: transformers 5.23, models/gpt_bigcode/modeling_gpt_bigcode.py, ``GPTBigCodeModel.__init__``;
    models/gptj/modeling_gptj.py, ``GPTJAttention.__init__``.
    """
    made = family_of(model).large_buffers
    given = made(model) if made else ()
    return tuple(
        Buffer(buffer.name, buffer.copies, allocated(buffer.content_bytes)) for buffer in given
    )


def buffer_bytes(model: Model) -> int:
    """Bytes of all buffers of a model, per GPU; those of towers are ``tower_buffers``.

    Source: derived, from ``buffers``.
    """
    return sum(buffer.copies * buffer.bytes for buffer in buffers(model))


def tower_buffers(model: Model, adapters: Adapters) -> tuple[Buffer, ...]:
    """The scalars that clamp inputs and outputs of linears in Gemma 4's towers, 512 bytes each as allocated, per GPU.

    Leaves out: rotary frequencies, SigLIP's positions (8 bytes each), masks of the audio towers.
    Source: transformers 5.23, models/gemma4/modeling_gemma4.py, ``Gemma4ClippableLinear.__init__``.
    """
    scalars = clamps(model, adapters)
    return (Buffer("input_min", scalars, allocated(FLOAT32_BYTES)),) if scalars else ()


def tensors_bytes(shapes: Iterable[tuple[int, ...]], width: int) -> int:
    """Bytes of several tensors of one element width, each as allocated.

    Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp.
    """
    return sum(allocated(elements(shape) * width) for shape in shapes)


def adapter_tensor_width(module: Module, shape: tuple[int, ...], setup: TrainingSetup) -> int:
    """Bytes per element of an adapter's tensor. DoRA's magnitudes on a packed base are always float32.

    Source: trl 1.16, trainer/sft_trainer.py (magnitudes are not cast to bfloat16).
    """
    has_magnitudes = setup.adapters.use_dora and not setup.adapters.lora_bias
    if has_magnitudes and len(shape) == 1 and is_quantized(module, setup.adapters):
        return FLOAT32_BYTES
    return adapter_width(setup)
