"""Attention that a family writes for itself, without transformers' shared functions: Falcon, BLOOM, MPT, GPT-J.

Source: transformers 5.23, models/falcon, bloom, mpt and gptj, modeling_*.py. A name that is bound here keeps its tensor
alive exactly as long as the same name does there.
"""

from __future__ import annotations

from estimator.families.block import Block
from estimator.families.rotary import rotate_pairs
from estimator.tape import operators as op
from estimator.tape.attention import AttentionShape, scaled_dot_product
from estimator.tape.tape import Tape, Tensor
from estimator.values.specs import AttnImplementation

_EAGER = AttnImplementation.EAGER


def falcon_attention(b: Block, x: Tensor, fused: str, output: str) -> Tensor:
    """One key-value head (7B), some (40B, 180B, 11B: copied for every query head before the rotation), or all (RW)."""
    shape = b.attention_shape()
    qkv = b.linear(fused, x)
    q, k, v = _falcon_heads(b, qkv)
    q, k = b.rotate(q, k)
    if shape.implementation is _EAGER:
        attend = _falcon_eager if b.rotary is not None else _falcon_eager_alibi
        out, weights = attend(b.tape, q, k, v, b.mask, shape, x.width)
        b.hold(weights)
        del weights
    else:
        out = scaled_dot_product(b.tape, q, k, v, b.mask, shape)
    out = b.linear(output, out)
    del qkv
    return out


def _falcon_heads(b: Block, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tape, model, rows = b.tape, b.model, b.rows
    query, key = rows * model.query_size, rows * model.key_value_size
    q = op.part(tape, fused, query)
    if not model.new_decoder_architecture and model.num_key_value_heads > 1:
        return q, op.part(tape, fused, key), op.part(tape, fused, key)
    k, v = (op.pick(tape, fused, key) for _ in range(2))
    if not model.new_decoder_architecture:
        return q, k, v
    groups = model.num_attention_heads // model.num_key_value_heads
    picked = k, v
    k, v = (op.expand_heads(tape, x, groups) for x in picked)
    q, k, v = op.clone(tape, q), op.clone(tape, k), op.clone(tape, v)
    return q, k, v


Attended = tuple[Tensor, Tensor]
"""The output, and the weights that made it, which the layer returns."""


def _falcon_eager(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    shape: AttentionShape,
    width: int,
) -> Attended:
    """The scores are divided in place; the softmax is in the dtype of the layer's input."""
    scores = op.scale_in_place(tape, _scores(tape, q, k, shape))
    masked = _masked(tape, scores, mask)
    weights = op.softmax(tape, op.cast(tape, masked, width))
    del scores, masked
    return _weighted(tape, weights, v, shape), weights


def _falcon_eager_alibi(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    shape: AttentionShape,
    width: int,
) -> Attended:
    """In float32: the scores, these with ALiBi (scaled in place), and the mask on top."""
    product = _scores(tape, q, k, shape)
    raised = op.cast(tape, product, 4)
    logits = op.scale_in_place(tape, op.add_number(tape, raised))
    masked = _masked(tape, logits, mask)
    weights = op.softmax(tape, op.cast(tape, masked, width))
    del masked
    weights = op.dropout(tape, weights, shape.dropout)
    out = _weighted(tape, weights, v, shape)
    del product, raised, logits
    return out, weights


def mpt_attention(b: Block, x: Tensor) -> Tensor:
    """ALiBi in float32 joins the scores, and masking makes one more copy of them."""
    tape, shape, model = b.tape, b.attention_shape(), b.model
    qkv = b.linear("attn.Wqkv", x)
    if model.clip_qkv:
        qkv = op.clamp(tape, qkv, both_sides=True)
    q, k, v = op.split(tape, qkv, [b.rows * model.query_size] * 3)
    scores = op.scale(tape, _scores(tape, q, k, shape))
    assert b.alibi is not None
    scores = op.add(tape, scores, b.alibi)
    if b.mask is not None:
        scores = op.masked_fill(tape, scores, b.mask)
    weights = op.cast(tape, op.softmax(tape, op.cast(tape, scores, 4)), v.width)
    weights = op.dropout(tape, weights, shape.dropout)
    b.hold(weights)
    out = b.linear("attn.out_proj", _weighted(tape, weights, v, shape))
    del qkv, scores
    return out


def _masked(tape: Tape, scores: Tensor, mask: Tensor | None) -> Tensor:
    return scores if mask is None else op.add(tape, scores, mask)


def _scores(tape: Tape, q: Tensor, k: Tensor, shape: AttentionShape) -> Tensor:
    """``q @ k.T``; a single key-value head is broadcast, and copied where more than one text leaves no view."""
    several = shape.batch > 1
    if shape.key_value_heads == 1:
        k = op.expand_heads(tape, k, shape.heads)
    elements = shape.batch * shape.heads * shape.length**2
    return op.matmul(tape, q, k, elements, "attention scores", copies=(several, several))


def _weighted(tape: Tape, weights: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
    """``weights @ v``, and the heads of each token side by side again."""
    if shape.key_value_heads == 1:
        v = op.expand_heads(tape, v, shape.heads)
    elements = shape.batch * shape.length * shape.heads * shape.head_dim
    copies = (False, shape.batch > 1)
    out = op.matmul(tape, weights, v, elements, "attention output", copies=copies)
    return op.clone(tape, out)


def bloom_attention(b: Block, x: Tensor, residual: Tensor) -> Tensor:
    """ALiBi and the scaled product by one ``baddbmm``, the mask by another sum; what is added to the residual, too."""
    tape, shape, model = b.tape, b.attention_shape(), b.model
    block = "self_attention"
    qkv = b.linear(f"{block}.query_key_value", x)
    q, k, v = (op.part(tape, qkv, b.rows * model.query_size) for _ in range(3))
    if shape.batch > 1:  # batch and heads become one dimension
        q, k, v = op.clone(tape, q), op.clone(tape, k), op.clone(tape, v)
    elements = shape.batch * shape.heads * shape.length**2
    scores = op.matmul(tape, q, k, elements, "attention scores")
    masked = _masked(tape, scores, b.mask)
    weights = op.softmax(tape, op.cast(tape, masked, 4))
    weights = op.cast(tape, weights, q.width)
    weights = op.dropout(tape, weights, shape.dropout)
    b.hold(weights)
    out = op.matmul(tape, weights, v, q.elements, "attention output")
    out = b.linear(f"{block}.dense", op.clone(tape, out))
    return op.add(tape, residual, op.dropout(tape, out, model.resid_pdrop))


def gptj_attention(b: Block, x: Tensor) -> Tensor:
    """Every layer gathers its own sines and cosines and spreads them for k and again for q; scores in float32."""
    tape, model, shape = b.tape, b.model, b.attention_shape()
    query, key = b.linear("attn.q_proj", x), b.linear("attn.k_proj", x)
    value = b.linear("attn.v_proj", x)
    rotary = int(model.head_dim * model.partial_rotary_factor)
    tape.operation = "rotary tables of this layer"
    repeated = tape.new(shape.batch * model.max_position_embeddings * rotary, 4)
    positions = tape.new(shape.length * rotary, op.INDEX_BYTES)
    tables = tape.new(shape.length * rotary, key.width)
    turned = key.elements // model.head_dim * rotary
    key_turned, key_passed = op.part(tape, key, turned), op.part(tape, key, key.elements - turned)
    query_turned, query_passed = (
        op.part(tape, query, turned),
        op.part(tape, query, query.elements - turned),
    )
    key_turned = rotate_pairs(tape, key_turned, tables)
    query_turned = rotate_pairs(tape, query_turned, tables)
    key = op.concatenate(tape, [key_turned, key_passed])
    query = op.concatenate(tape, [query_turned, query_passed])
    out, weights = _gptj_attend(tape, query, key, value, b.mask, shape)
    b.hold(weights)
    del weights
    out = b.linear("attn.out_proj", out)
    del repeated, positions
    return op.dropout(tape, out, model.resid_pdrop)


def _gptj_attend(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, shape: AttentionShape
) -> Attended:
    q, k = op.cast(tape, q, 4), op.cast(tape, k, 4)
    weights = _scores(tape, q, k, shape)
    weights = op.scale(tape, weights)
    weights = _masked(tape, weights, mask)
    weights = op.softmax(tape, op.cast(tape, weights, 4) if tape.autocast_active else weights)
    weights = op.cast(tape, weights, v.width)
    weights = op.dropout(tape, weights, shape.dropout)
    return _weighted(tape, weights, v, shape), weights
