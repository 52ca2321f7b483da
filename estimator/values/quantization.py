"""How a checkpoint stores its weights, as the ``quantization_config`` of its config says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StorageRule(StrEnum):
    """How a weight matrix is stored."""

    GPTQ = "gptq"
    AWQ = "awq"
    BNB_4BIT = "bnb_4bit"
    BNB_8BIT = "bnb_8bit"
    FP8 = "fp8"
    MXFP4 = "mxfp4"
    PACKED = "pack-quantized"
    """compressed-tensors: integers of a few bits, packed into int32."""
    INT8 = "int-quantized"
    """compressed-tensors: one byte per weight, one scale per row."""


class Scales(StrEnum):
    """How many weights share an FP8 or packed scale."""

    TENSOR = "tensor"
    ROW = "channel"
    GROUP = "group"
    BLOCK = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """What a ``quantization_config`` says about the weights."""

    name: str
    """Name for use in a sentence: ``GPTQ 4-bit``."""
    storage: StorageRule | None
    """None: recognised as quantised, but in an unknown format."""
    config_class: str = ""
    """The config's class in transformers: ``GPTQConfig``."""
    can_dequantize: bool = False
    """Whether ``from_pretrained`` can dequantise on load (``dequantize=True``)."""
    bits: int = 16
    group_size: int = 0
    """Weights along a row that share a scale; 0: the whole row."""
    scales: Scales = Scales.GROUP
    block: tuple[int, int] = (128, 128)
    """Rows and columns that share an FP8 scale, where ``scales`` is BLOCK."""
    scale_bytes: int = 4
    has_zero_points: bool = False
    double_quant: bool = False
    quant_type: str = "fp4"
    quant_storage: str = "uint8"
    """bitsandbytes: storage dtype of the packed 4-bit weights."""
    quantized_head: bool = False
    skipped: frozenset[str] = frozenset()
    """Modules that are not quantised: full names or trailing parts, such as ``layers.0.mlp`` or ``lm_head``."""
