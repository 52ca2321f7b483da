"""What matrix products cost besides their operations: bytes, tiles, and making the weights that they read.

Each part is derived from the sizes of the products, as described at its constants.
"""

from __future__ import annotations

from estimator.time.flops import FORWARD, Matrices
from estimator.time.rates import BANDWIDTH_SHARE, Rates, width_of
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.precision import Precision
from estimator.values.range import Range
from estimator.values.results import TimePart
from estimator.values.specs import Dtype, MixedPrecision

MOVES = Range(0.55, 2.6)
"""Seconds that products take for moving their matrices, as multiples of bytes over bandwidth, besides their operations:
a kernel loads the next tile while it multiplies this one, which hides part of it. fitted."""
HALF_WAVE = 128 * 256 * 108 // 2
"""Elements of half a wave of tiles, which a product's last wave leaves idle on average: tiles of 128 × 256 on an A100's
108 multiprocessors. NVIDIA, Matrix Multiplication Background User's Guide, "Tile quantization" and "Wave
quantization"."""
IDLE = Range(0.55, 2.6)
"""Seconds of what tiles leave idle, as multiples of half a wave. Fast end: smaller tiles in the last wave. Slow end:
more than a wave, with the time to load its first tiles and to store its last. fitted."""
SPLIT_WAVE = HALF_WAVE // 2
"""The same of a product for a weight's gradient, which is as deep as there are tokens and is split along them."""
HALF_TILE = 64
"""Rows by which each expert's tokens fall short of whole tiles of 128, on average: the same guide."""
SKINNY = Range(0.3, 0.8)
"""Seconds of LoRA's two thin products as multiples of the bytes that they read and write over the bandwidth: caches
hold what the product beside them has just read. fitted."""
DORA_WEIGHT_BYTES = 34
"""Bytes per element of an adapted weight and call: to float32 2+4, B @ A written 4, scaled 4+4, summed 4+4+4, norm 4.
peft 0.21, tuners/lora/dora.py, ``DoraLinearLayer.forward``."""
CAST_WEIGHT_BYTES = 6
"""Bytes per element when autocast casts a float32 weight to 16 bits, and when backward casts its gradient back."""
PACKED_BYTES, UNPACKED_BYTES = 0.5, 2
"""Bytes per element read from a 4-bit weight and written in 16 bits."""
DEQUANTISATION = Range(2.0, 9.0)
"""Seconds as multiples of the roofline. fitted: LitGPT on A100, 120 tokens per step, nf4 minus 16-bit LoRA: 79 ms for
two passes over 6.5·10⁹ weights (Llama 2 7B, 5 times) to 215 ms over 12.7·10⁹ (13B, 7 times); GPTQ in Qwen's table up
to 9. https://github.com/Lightning-AI/litgpt/blob/26857050/tutorials/resource-tables.md"""


def moved_bytes(precision: Precision, sizes: Matrices, tokens: float, passes: int) -> float:
    """Bytes that matrix products read and write: weights, all experts', once a pass; inputs and outputs per token."""
    width = 2 * width_of(precision)
    return passes * width * (sizes.stored + tokens * (sizes.inputs + sizes.outputs))


def idle_operations(sizes: Matrices, passes: int) -> float:
    """Operations that tiles without work could have run in a pass: half a wave, and half a tile for each expert."""
    return passes * FORWARD * (HALF_WAVE * sizes.inputs + HALF_TILE * sizes.stacked)


def skinny_bytes(adapters: Adapters, precision: Precision, sizes: Matrices) -> int:
    """Bytes per token that LoRA's two products read and write in a pass, besides what has the width of the rank."""
    cast = adapters.autocast_adapter_dtype and width_of(precision) == 1
    return 2 * (2 if cast else width_of(precision)) * (sizes.adapter_inputs + sizes.adapter_outputs)


def dequantisation_part(
    adapters: Adapters, precision: Precision, sizes: Matrices, passes: float, rate: Rates
) -> TimePart:
    """Seconds of unpacking all quantised weights, ``passes`` times: read packed, written in 16 bits."""
    quantized = sizes.quantizable if adapters.has_packed_base else 0
    packed = 2 * PACKED_BYTES if adapters.has_8bit_base else PACKED_BYTES
    size = quantized * (packed + UNPACKED_BYTES * width_of(precision))
    return TimePart("dequantisation", DEQUANTISATION * (passes * size / rate.bandwidth))


def casts_part(
    adapters: Adapters, precision: Precision, sizes: Matrices, passes: float, rate: Rates
) -> TimePart:
    """Autocast makes 16-bit copies of float32 weights once per forward pass; backward casts their gradients.

    ``passes``: how often all weights are cast, or as many of them.
    """
    autocast = precision.mixed_precision is not MixedPrecision.NO
    if not autocast or precision.dtype is not Dtype.FLOAT32 or adapters.has_packed_base:
        return TimePart("casts of weights", Range(0.0, 0.0))
    seconds = passes * CAST_WEIGHT_BYTES * (sizes.layers + sizes.outside) / rate.bandwidth
    return TimePart("casts of weights", seconds / BANDWIDTH_SHARE)
