"""Bytes of weights and adapters on one GPU, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from estimator.families.adapters import (
    adapted_sizes,
    adapter_rank,
    is_adapted,
    is_copied,
    is_quantized,
    is_trained_whole,
)
from estimator.families.modules import Bare, Embedding, Linear, Module, weight_shapes
from estimator.families.registry import family_of
from estimator.families.towers import clamps
from estimator.values.arithmetic import allocated, ceil_div, elements
from estimator.values.facets.adapters import Adapters
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, Model

FLOAT32_BYTES = 4
QUANTIZATION_BLOCK = 64
"""Elements that share one absmax: bitsandbytes 0.50, functional.py, ``quantize_4bit(blocksize=64)`` on CUDA."""
NESTED_BLOCK = 256
"""Absmax values that share one second absmax under double quantisation: ``quantize_blockwise(blocksize=256)``."""


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


def quantized_bytes(count: int, *, double_quant: bool) -> int:
    """Bytes of ``count`` weights packed into 4 bits, with their scales, each piece as allocated.

    Packed weights n/2; one float32 absmax per 64 weights, 4n/64. Double quantisation stores these in 8 bits, n/64, plus
    a float32 per 256 of them, 4n/(64·256), an offset and a code book of 256 float32. The code book of the 16 values
    takes 64 bytes.

    Source: bitsandbytes 0.50, functional.py, ``quantize_4bit`` and ``QuantState``.

    >>> quantized_bytes(4096 * 4096, double_quant=False) == 4096 * 4096 // 2 + 4096 * 4096 // 16 + 512
    True
    """
    packed = allocated(packed_bytes(count))
    return packed + scale_bytes(count, double_quant=double_quant)


def packed_bytes(count: int) -> int:
    """Bytes of ``count`` weights in 4 bits each, without their scales.

    Source: bitsandbytes 0.50, functional.py, ``quantize_4bit``.
    """
    return ceil_div(count, 2)


def scale_bytes(count: int, *, double_quant: bool) -> int:
    """Bytes of the scales of ``count`` packed weights, each piece as allocated.

    Source: bitsandbytes 0.50, functional.py, ``QuantState``.
    """
    blocks = ceil_div(count, QUANTIZATION_BLOCK)
    code = allocated(16 * FLOAT32_BYTES)
    if not double_quant:
        return allocated(blocks * FLOAT32_BYTES) + code
    nested = allocated(ceil_div(blocks, NESTED_BLOCK) * FLOAT32_BYTES)
    offset_and_book = allocated(FLOAT32_BYTES) + allocated(256 * FLOAT32_BYTES)
    return allocated(blocks) + nested + offset_and_book + code


def int8_bytes(in_features: int, out_features: int) -> int:
    """Bytes of a weight [out, in] in LLM.int8, as allocated: one byte per element and a float32 scale per output.

    Source: bitsandbytes 0.50, nn/modules.py, ``Int8Params._quantize`` (CB and SCB).

    >>> int8_bytes(4096, 4096) == 4096 * 4096 + 4 * 4096
    True
    """
    return allocated(in_features * out_features) + allocated(FLOAT32_BYTES * out_features)


def module_bytes(module: Module, setup: TrainingSetup) -> int:
    """Bytes of one module's own weights, with bias and without adapters.

    Source: torch 2.13, c10/cuda/CUDACachingAllocator.cpp (each tensor rounded up to 512 bytes).
    """
    shapes = weight_shapes(module)
    if is_quantized(module, setup.adapters):
        assert isinstance(module, Linear)
        if setup.adapters.has_8bit_base:
            packed = int8_bytes(module.in_features, module.out_features)
        else:
            packed = quantized_bytes(
                elements(shapes[0]), double_quant=setup.adapters.bnb_4bit_use_double_quant
            )
        return packed + tensors_bytes(shapes[1:], unquantized_width(setup))
    return tensors_bytes(shapes, weight_width(module, setup))


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


class AdapterTensor(NamedTuple):
    """One trained tensor of an adapter."""

    shape: tuple[int, ...]
    width: int
    """Bytes per element."""

    @property
    def bytes(self) -> int:
        """Bytes as allocated."""
        return allocated(elements(self.shape) * self.width)


def adapter_shapes(module: Module, adapters: Adapters) -> tuple[tuple[int, ...], ...]:
    """Shapes of LoRA's A [r, in] and B [out, r] on this module, and of B's bias or DoRA's magnitudes [out].

    Empty if the module is not adapted. On a stack of E experts the rank is r · n · E, with n linears fused into one
    (gate and up: 2).

    Source: peft 0.21, tuners/lora/layer.py, ``LoraLayer.update_layer`` and ``ParamWrapper.update_layer``;
    tuners/lora/dora.py, ``update_layer``.
    """
    if not (isinstance(module, Linear | Bare | Embedding) and is_adapted(module, adapters)):
        return ()
    rows, columns = adapted_sizes(module)
    rank = adapter_rank(module, adapters)
    has_row = adapters.lora_bias or adapters.use_dora
    return ((rank, rows), (columns, rank), *([(columns,)] if has_row else []))


def adapter_tensors(module: Module, setup: TrainingSetup) -> tuple[AdapterTensor, ...]:
    """The tensors of ``adapter_shapes`` (derived, from ``adapter_tensor_width``)."""
    return tuple(
        AdapterTensor(shape, adapter_tensor_width(module, shape, setup))
        for shape in adapter_shapes(module, setup.adapters)
    )


def adapter_tensor_width(module: Module, shape: tuple[int, ...], setup: TrainingSetup) -> int:
    """Bytes per element of an adapter's tensor. DoRA's magnitudes on a packed base are always float32.

    Source: trl 1.16, trainer/sft_trainer.py (magnitudes are not cast to bfloat16).
    """
    has_magnitudes = setup.adapters.use_dora and not setup.adapters.lora_bias
    if has_magnitudes and len(shape) == 1 and is_quantized(module, setup.adapters):
        return FLOAT32_BYTES
    return adapter_width(setup)


def copied_shapes(module: Module, adapters: Adapters) -> tuple[tuple[int, ...], ...]:
    """Shapes in elements of the copy of a module that PEFT trains; empty if there is none.

    Source: as ``is_copied``.
    """
    return weight_shapes(module) if is_copied(module, adapters) else ()


def trained_shapes(module: Module, adapters: Adapters) -> tuple[tuple[int, ...], ...]:
    """Shapes in elements of one module's trained tensors: its weights, or its adapters and its copy.

    Source: derived, from ``weight_shapes``, ``adapter_shapes`` and ``copied_shapes``.
    """
    if not adapters.uses_adapters:
        return weight_shapes(module) if is_trained_whole(module, adapters) else ()
    return (*adapter_shapes(module, adapters), *copied_shapes(module, adapters))
