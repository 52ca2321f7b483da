"""DoRA: what a layer's adapter adds if magnitude and direction are trained separately.

The columns of W + s·B·A are scaled to trained magnitudes. Every call computes the dense product B·A, its sum with the
weight and the column norms, and frees them again; only the scale of each output is kept.

Source: Liu et al. 2024, arXiv:2402.09353, section 4.3; peft 0.21, tuners/lora/dora.py, ``DoraLinearLayer.forward``, and
tuners/lora/variants.py, ``DoraLinearVariant.forward``.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.tape import operators as op
from estimator.tape.tape import Parameter, Tape, Tensor


class Dora(NamedTuple):
    """The tensors of a linear with DoRA."""

    in_features: int
    out_features: int
    rank: int
    weight: Parameter
    bias: Parameter | None
    lora_a: Parameter
    lora_b: Parameter
    magnitude: Parameter
    packed_width: int | None
    """Bytes per element of the unpacked weight; None: the weight is not packed."""
    unpacks_scales: bool = True
    """Whether scales are first unpacked to float32, one per 64 weights: yes for 4 bits, no for 8."""


def dora(tape: Tape, layer: Dora, x: Tensor, result: Tensor | None) -> Tensor:
    """What is added to the base's output: (m - 1) · base + m · s · B·A·x, with m the trained over the current
    magnitude.

    ``result``: the base's output. None: dropout changed x, so the base is computed again, from a dense weight in the
    dtype of x that backward keeps.
    """
    product = op.cast(tape, _dense_product(tape, layer), x.width)
    weight = _dense_weight(tape, layer, x.width)
    scale = _scale(tape, layer, weight, product)
    branch = _branch(tape, layer, x)
    if result is None:
        sizes = layer.in_features, layer.out_features
        base = op.linear(tape, x, weight, None, *sizes, "DoRA's base")
    else:
        base = result if layer.bias is None else op.subtract(tape, result, layer.bias)
    less_one = op.add_number(tape, scale)
    direct = op.multiply(tape, less_one, base, "DoRA's scale")
    del less_one
    scaled = op.scale(tape, op.multiply(tape, scale, branch, "DoRA's scale"))
    return op.add(tape, direct, scaled)


def _branch(tape: Tape, layer: Dora, x: Tensor) -> Tensor:
    low = op.linear(tape, x, layer.lora_a, None, layer.in_features, layer.rank, "LoRA A")
    return op.linear(tape, low, layer.lora_b, None, layer.rank, layer.out_features, "LoRA B")


def _dense_product(tape: Tape, layer: Dora) -> Tensor:
    """B @ A, computed by applying both to an in × in identity matrix."""
    tape.operation = "DoRA's unit matrix"
    unit = tape.new(layer.in_features**2, layer.lora_a.width)
    return _branch(tape, layer, unit)


def _dense_weight(tape: Tape, layer: Dora, width: int) -> Tensor:
    """The frozen weight in the dtype of x; a packed one is unpacked first."""
    if layer.packed_width is None:
        return op.cast(tape, layer.weight, width)
    unpacked = op.unpacked(
        tape,
        layer.in_features * layer.out_features,
        layer.packed_width,
        "DoRA's weight",
        scales=layer.unpacks_scales,
    )
    return op.cast(tape, unpacked, width)


def _scale(tape: Tape, layer: Dora, weight: Tensor, product: Tensor) -> Tensor:
    """Trained magnitudes over the column norms of weight + s · product, which are constants in backward."""
    tape.operation = "DoRA's weight and its adapters"
    scaled = tape.new(product.elements, product.width)
    together = tape.new(weight.elements, weight.width)
    del scaled
    tape.operation = "DoRA's lengths"
    lengths = tape.new(layer.out_features, 4 if tape.autocast_active else together.width)
    lengths = op.cast(tape, lengths, weight.width)
    del together
    return op.divide_by_constant(tape, layer.magnitude, lengths, "DoRA's scale")
