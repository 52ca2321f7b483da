"""Seconds of linears in FP8: products at the card's FP8 rate, and the casts before them by their bytes.

A cast reads a tensor for its largest magnitude, and again to scale, clamp and pack it. torchao run eagerly takes
one kernel for each of these steps, and copies the packed tensors; compiled, two kernels a tensor.
transformer-engine casts and transposes in one kernel, which also finds the magnitude that the next step needs.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

from estimator.passes.float8 import converted_linears
from estimator.time.rates import BANDWIDTH_SHARE, Rates
from estimator.values.facets.computation import Computation
from estimator.values.facets.precision import Precision
from estimator.values.range import Range
from estimator.values.results import TimePart
from estimator.values.specs import Dtype, Fp8Backend, Model

EAGER_CAST_BYTES = 31
"""Bytes per element of a 16-bit tensor: magnitude 2+2, its maximum 2, to float32 2+4, scaled 4+4, clamped 4+4, packed
4+1. torchao 0.18, float8/float8_utils.py, ``tensor_to_amax`` and ``to_fp8_saturated``; float8_training_tensor.py."""
EAGER_CAST_BYTES_FLOAT32 = 33
"""The same of a float32 tensor: magnitude 4+4, its maximum 4, scaled 4+4, clamped 4+4, packed 4+1."""
FUSED_CAST_BYTES, FUSED_CAST_BYTES_FLOAT32 = 5, 9
"""The same, compiled: read for the maximum, read and packed."""
TE_CAST_BYTES, TE_CAST_BYTES_FLOAT32 = 4, 6
"""The same of transformer-engine: read, written packed and transposed. transformer-engine 2.20,
common/transpose/cast_transpose.cu; recipe ``DelayedScaling``, which is accelerate's."""
COPY_BYTES = 2
"""Bytes per element of a packed tensor that is padded, or laid out by the other dimension. torchao 0.18,
float8/float8_ops.py, ``preprocess_addmm``."""


class Float8Sizes(NamedTuple):
    """Sums over the converted linears of the whole model, in elements."""

    weights: int
    inputs: int
    """Per token."""
    outputs: int
    """Per token."""


@lru_cache(maxsize=1024)
def _sizes(model: Model, backend: Fp8Backend) -> Float8Sizes:
    linears = converted_linears(model, backend)
    return Float8Sizes(
        sum(linear.in_features * linear.out_features for linear in linears),
        sum(linear.in_features for linear in linears),
        sum(linear.out_features for linear in linears),
    )


NONE = Float8Sizes(0, 0, 0)


def float8_sizes(model: Model, precision: Precision) -> Float8Sizes:
    """What multiplies in FP8 (elements); nothing under other precisions.

    Source: derived, from ``converted_linears``.
    """
    return _sizes(model, precision.fp8_backend) if precision.uses_fp8 else NONE


def casts_to_float8_part(
    model: Model,
    precision: Precision,
    computation: Computation,
    tokens: float,
    again: float,
    rate: Rates,
) -> TimePart:
    """Seconds of all casts of a micro-batch; ``again``: share that is recomputed.

        forward T · in + w     backward 2 · T · out + w + T · in     elements; compiled, the gradient is cast once

    Source: derived; torchao 0.18, float8/float8_linear.py, ``matmul_with_hp_or_float8_args``.
    """
    sizes = float8_sizes(model, precision)
    wide = precision.dtype is Dtype.FLOAT32
    if precision.fp8_backend is Fp8Backend.TE:
        of_weight = TE_CAST_BYTES_FLOAT32 if wide else TE_CAST_BYTES
        forward = tokens * sizes.inputs * TE_CAST_BYTES + sizes.weights * of_weight
        # what is saved for backward is packed already, and transposed
        moved = Range.of((1 + again) * forward + tokens * sizes.outputs * TE_CAST_BYTES)
    elif computation.torch_compile:
        of_weight = FUSED_CAST_BYTES_FLOAT32 if wide else FUSED_CAST_BYTES
        of = partial(_torchao_bytes, precision, sizes, tokens, again, of_weight, FUSED_CAST_BYTES)
        moved = Range(of(copies=0, grads=1), of(copies=COPY_BYTES, grads=1))
    else:
        of_weight = EAGER_CAST_BYTES_FLOAT32 if wide else EAGER_CAST_BYTES
        of = partial(_torchao_bytes, precision, sizes, tokens, again, of_weight, EAGER_CAST_BYTES)
        moved = Range.of(of(copies=COPY_BYTES, grads=2))
    return TimePart("casts to FP8", moved / rate.bandwidth / BANDWIDTH_SHARE)


def _torchao_bytes(
    precision: Precision,
    sizes: Float8Sizes,
    tokens: float,
    again: float,
    of_weight: int,
    of_value: int,
    *,
    copies: int,
    grads: int,
) -> float:
    """Bytes that torchao's casts move, ``grads``: how often it casts the gradient of an output."""
    pads = precision.fp8_pad_inner_dim
    forward = tokens * sizes.inputs * of_value + sizes.weights * of_weight
    forward += copies * pads * (tokens * sizes.inputs + sizes.weights)
    backward = tokens * (grads * sizes.outputs + sizes.inputs) * of_value
    backward += sizes.weights * of_weight
    # both products pad both factors; the weight, the gradient and the input are laid out anew
    backward += copies * tokens * ((1 + 2 * pads) * sizes.outputs + (1 + pads) * sizes.inputs)
    backward += copies * (1 + pads) * sizes.weights
    return (1 + again) * forward + backward


def product_seconds(
    operations: float, share: float, rate: Rates, times: float = 1.0
) -> Range[float]:
    """Seconds of products of which a share multiplies in FP8, ``times`` as often as in 16 bits (derived)."""
    return operations * (1 - share) / rate.products + times * operations * share / rate.fp8
