"""Bytes of weights that bitsandbytes packs, and of their scales."""

from __future__ import annotations

from estimator.values.arithmetic import allocated, ceil_div
from estimator.values.specs import Dtype

FLOAT32_BYTES = Dtype.FLOAT32.bytes
QUANTIZATION_BLOCK = 64
"""Elements that share one absmax: bitsandbytes 0.50, functional.py, ``quantize_4bit(blocksize=64)`` on CUDA."""
NESTED_BLOCK = 256
"""Absmax values that share one second absmax under double quantisation: ``quantize_blockwise(blocksize=256)``."""


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
