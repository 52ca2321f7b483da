"""The linear of FP8 training: torchao's ``Float8Linear``, run eagerly, as accelerate converts it.

Each product has both factors in FP8, one scale per tensor, computed when it is needed: nothing is remembered from one
call to the next. What is saved for backward stays in high precision.

Source: torchao 0.18, float8/float8_linear.py, ``matmul_with_hp_or_float8_args``; float8/float8_ops.py,
``preprocess_addmm``; accelerate 1.15, utils/dataclasses.py, ``AORecipeKwargs`` (``pad_inner_dim`` true, tensorwise).
"""

from __future__ import annotations

from functools import partial

from estimator.tape.operators import add, cast, permuted
from estimator.tape.tape import Parameter, Tape, Tensor
from estimator.values.arithmetic import ceil_div

CASTS = ": casts to FP8"
"""How the tape names what a linear in FP8 writes beside its products."""
FP8_BYTES = 1
SCALE_BYTES = 4
ALIGNMENT = 16
"""Inner dimensions are padded to a multiple of it: torchao 0.18, float8/float8_utils.py, ``_get_min_alignment``."""


def _to_float8(tape: Tape, elements: int, width: int) -> tuple[Tensor, Tensor]:
    """A tensor in FP8 and its scale: x in float32, x · scale, the same clamped, then packed.

    The magnitudes whose maximum gives the scale are freed before, and are smaller.
    Source: torchao 0.18, float8/float8_training_tensor.py, ``_ToFloat8ConstrFunc.forward``; float8/float8_utils.py,
    ``to_fp8_saturated``.
    """
    scale = tape.new(1, SCALE_BYTES)
    wide = None if width == 4 else tape.new(elements, 4)
    scaled = tape.new(elements, 4)
    del wide
    clamped = tape.new(elements, 4)
    packed = tape.new(elements, FP8_BYTES)
    del scaled, clamped
    return packed, scale


def is_aligned(size: int) -> bool:
    """Whether a size is a multiple of 16.

    >>> is_aligned(4096), is_aligned(1000)
    (True, False)
    """
    return ceil_div(size, ALIGNMENT) * ALIGNMENT == size


def converts(in_features: int, out_features: int) -> bool:
    """Whether accelerate converts a linear of this size: both sizes are multiples of 16.

    Source: accelerate 1.15, utils/ao.py, ``filter_linear_layers``.
    """
    return is_aligned(in_features) and is_aligned(out_features)


def _product(
    tape: Tape,
    rows: int,
    inner: int,
    columns: int,
    *,
    name: str,
    width: int,
    pads: bool,
    transposed: bool = False,
    by_rows: bool = False,
) -> Tensor:
    """``a [rows, inner] @ b [inner, columns]`` of two tensors in FP8, which the caller holds.

    ``pads``: both are copied, in their layout if the inner dimension is aligned, else by rows. The kernel wants a by
    rows and b by columns; another layout is copied once more. ``transposed``: a lies by columns; ``by_rows``: b does by
    rows.
    Source: torchao 0.18, float8/float8_ops.py, ``preprocess_addmm`` and ``addmm_float8_unwrapped``; torch 2.13,
    aten/src/ATen/native/PadNd.cpp, ``constant_pad_nd`` (``clone`` without padding).
    """
    a: Tensor | None = None
    b: Tensor | None = None
    if pads and not is_aligned(inner):
        inner = ceil_div(inner, ALIGNMENT) * ALIGNMENT
        transposed, by_rows = False, True
    if pads:
        a, b = tape.new(rows * inner, FP8_BYTES), tape.new(inner * columns, FP8_BYTES)
    if transposed:
        a = tape.new(rows * inner, FP8_BYTES)
    if by_rows:
        b = tape.new(inner * columns, FP8_BYTES)
    inverse = tape.new(1, SCALE_BYTES), tape.new(1, SCALE_BYTES)
    tape.operation = name
    out = tape.new(rows * columns, width)
    del a, b, inverse
    return out


def linear_float8(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    bias: Parameter | None,
    in_features: int,
    out_features: int,
    name: str,
    *,
    pads: bool = True,
) -> Tensor:
    """``x @ W.T + b`` with both factors in FP8; ``pads``: products pad their factors (``pad_inner_dim``).

    Saves x and W as they are, whether they are trained or not, after its output is allocated. Backward makes both
    gradients, also a frozen weight's, from four casts that live until it returns: the output's gradient twice, W, x.
    The bias is added outside, as an operator of its own. Autocast casts the input, never the weight.
    """
    source = x  # the caller holds the uncast input until this returns
    width = tape.autocast_width if tape.autocast_active and tape.autocast_width else x.width
    tape.operation = f"{name}: autocast copies"
    x = cast(tape, source, width)
    elements, size, weight_width = x.elements, weight.elements, weight.width
    rows = elements // in_features
    needs_x, needs_w = x.requires_grad, weight.requires_grad
    casts = f"{name}{CASTS}"
    product = partial(_product, name=name, width=width, pads=pads)

    def backward(t: Tape, g: list[Tensor | None]) -> list[Tensor | None]:
        t.operation = casts
        first = _to_float8(t, rows * out_features, width)
        weight_in_8 = _to_float8(t, size, weight_width)
        of_x = product(t, rows, out_features, in_features, by_rows=True)
        t.operation = casts
        second = _to_float8(t, rows * out_features, width)
        x_in_8 = _to_float8(t, elements, width)
        of_w = product(t, out_features, rows, in_features, transposed=True, by_rows=True)
        del first, weight_in_8, second, x_in_8
        of_w.is_view = True
        if needs_w and weight_width != width:
            of_w = t.new(size, weight_width)
        return [of_x if needs_x else None, of_w if needs_w else None]

    node = tape.begin(f"{name} backward", [x, weight], backward)
    tape.operation = casts
    x_in_8, weight_in_8 = _to_float8(tape, elements, width), _to_float8(tape, size, weight_width)
    out = product(tape, rows, in_features, out_features)
    del x_in_8, weight_in_8
    out = tape.finish(node, out, [x, permuted(weight)])
    if bias is None:
        return out
    return add(tape, out, cast(tape, bias, width))
