"""Attention kernels: what each keeps and copies. q, k and v are token-major tensors of T × heads × head_dim elements.

Which kernel runs is PyTorch's choice: flash for 16-bit without a mask; memory-efficient with a mask or in float32;
the math path where neither takes the inputs (float32 with grouped key-value heads).
Source: torch 2.13, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp; transformers 5.23,
integrations/sdpa_attention.py and models/llama/modeling_llama.py, ``eager_attention_forward``.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.arithmetic import ceil_div
from estimator.memory.operators import (
    Gradients,
    add,
    cast,
    clone,
    dropout,
    elementwise,
    matmul,
    repeat_heads,
    scale,
    softmax,
)
from estimator.memory.tape import Tape, Tensor
from estimator.specs import AttnImplementation

RNG_STATE_BYTES = 16
"""Philox seed and offset kept by the flash and efficient kernels: two int64 tensors, 512 bytes each as allocated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Sizes that every attention kernel needs."""

    batch: int
    length: int
    heads: int
    key_value_heads: int
    head_dim: int
    implementation: AttnImplementation
    dropout: float = 0.0
    softcap: bool = False
    softmax_float32: bool = True
    scale_product: bool = True
    head_major: bool = False
    """q and k come out of a concatenation head by head, so the flash kernel's output must be copied back."""


def attention(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, shape: AttentionShape
) -> Tensor:
    """Attend with the implementation that the setup asks for; ``mask`` is None where causality is the kernel's own."""
    if shape.implementation is AttnImplementation.EAGER:
        return _eager(tape, q, k, v, mask, shape)
    if shape.implementation is AttnImplementation.FLASH_ATTENTION_2:
        # float32 queries of a float32 stream are cast to the weights' 16 bits:
        # transformers 5.23, integrations/flash_attention.py, get_target_dtype
        q, k, v = (cast(tape, x, 2) for x in (q, k, v))
        mask = None
    return _sdpa(tape, q, k, v, mask, shape)


def _sdpa(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, shape: AttentionShape
) -> Tensor:
    sources = q, k, v  # the caller holds the uncast tensors until this returns
    if tape.autocast_active and tape.autocast_width is not None:
        q, k, v = (cast(tape, x, tape.autocast_width) for x in sources)
    groups = shape.heads // shape.key_value_heads
    if mask is not None:
        if shape.key_value_heads > 1:
            k, v = repeat_heads(tape, k, groups), repeat_heads(tape, v, groups)
        return _fused(tape, q, k, v, shape, mask=mask)
    if q.width == 4 and groups > 1:
        return _math(tape, q, k, v, shape)
    out = _fused(tape, q, k, v, shape, mask=None)
    return clone(tape, out) if shape.head_major and q.width == 2 else out


def _fused(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape, *, mask: Tensor | None
) -> Tensor:
    """Flash or memory-efficient: saves q, k, v, the output and a float32 log-sum-exp for each token and head.

    A mask becomes an additive bias [b, 1, s, s] in the compute dtype, made and saved by every layer for itself.
    """
    tape.operation = "attention"
    saved_mask: list[Tensor] = []
    rows = shape.length
    if mask is not None:
        tape.operation = "attention: additive mask of this layer"
        inverted = tape.new(mask.elements, 1)
        saved_mask.append(tape.new(mask.elements, q.width))
        del inverted
    if mask is not None or q.width == 4:
        rows = ceil_div(shape.length, 32) * 32
    tape.operation = "attention"
    sizes = [(x.elements, x.width, x.requires_grad) for x in (q, k, v)]

    def backward(t: Tape, g: Gradients) -> Gradients:
        return [t.new(n, w) if needed else None for n, w, needed in sizes]

    node = tape.begin("attention backward", [q, k, v], backward, [q, k, v])
    out = tape.new(q.elements, q.width)
    log_sum_exp = tape.new(shape.batch * shape.heads * rows, 4)
    rng = [tape.new(1, RNG_STATE_BYTES // 2), tape.new(1, RNG_STATE_BYTES // 2)]
    return tape.finish(node, out, [out, log_sum_exp, *rng, *saved_mask])


def _math(tape: Tape, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
    """The math path: scores of b · heads · s² are kept.

    Source: torch 2.13, aten/src/ATen/native/transformers/attention.cpp, ``_scaled_dot_product_attention_math``.
    """
    groups = shape.heads // shape.key_value_heads
    scores = shape.batch * shape.heads * shape.length**2
    q = scale(tape, q)
    k, v = repeat_heads(tape, k, groups), repeat_heads(tape, v, groups)
    k = scale(tape, k)
    tape.operation = "attention: causal bias"
    bias = tape.new(shape.length**2, q.width)
    weights = matmul(tape, q, k, scores, "attention scores")  # the bias is added in place
    probabilities = softmax(tape, weights)
    tape.operation = "attention: rows without a score"
    masked = tape.new(scores, 1)
    del masked, weights, bias
    out = matmul(tape, probabilities, v, q.elements, "attention output")
    del probabilities
    return clone(tape, out)


def _eager(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, shape: AttentionShape
) -> Tensor:
    """Scores as ordinary tensors: product, scale, mask, float32 softmax, cast, dropout, product.

    Saves per score 4 bytes of softmax output and its copy in the compute dtype.
    """
    groups = shape.heads // shape.key_value_heads
    scores = shape.batch * shape.heads * shape.length**2
    key, value = repeat_heads(tape, k, groups), repeat_heads(tape, v, groups)
    query = clone(tape, q) if shape.batch > 1 else q
    is_copied = groups == 1 and shape.batch > 1  # by matmul itself, to merge batch and heads
    weights = matmul(
        tape, query, clone(tape, key) if is_copied else key, scores, "attention scores"
    )
    del query
    if shape.scale_product:
        weights = scale(tape, weights)
    if shape.softcap:
        weights = scale(tape, elementwise(tape, scale(tape, weights), "tanh", saves="output"))
    if mask is not None:
        weights = add(tape, weights, mask)
    width = weights.width
    if shape.softmax_float32 or tape.autocast_active:
        weights = softmax(tape, cast(tape, weights, 4))
        weights = cast(tape, weights, width)
    else:
        weights = softmax(tape, weights)
    weights = dropout(tape, weights, shape.dropout)
    if is_copied:
        value = clone(tape, value)
    out = matmul(tape, weights, value, q.elements, "attention output")
    return clone(tape, out)
