"""Attention kernels: what each saves and copies. q, k and v are token-major, T × heads × head_dim elements.

PyTorch chooses the kernel: flash for 16 bits without a mask; memory-efficient with a mask or in float32; the math path
for inputs that neither takes (float32 with grouped key-value heads).
Source: torch 2.13, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp; transformers 5.23,
integrations/sdpa_attention.py and models/llama/modeling_llama.py, ``eager_attention_forward``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from estimator.tape.operators import (
    INDEX_BYTES,
    Gradients,
    add,
    cast,
    clone,
    dropout,
    elementwise,
    expand_heads,
    gather,
    matmul,
    pad,
    part,
    permuted,
    repeat_heads,
    scale,
    scaled_matmul,
    softmax,
    viewed,
)
from estimator.tape.scratch import flash_backward, flash_forward
from estimator.tape.tape import Tape, Tensor
from estimator.values.arithmetic import ceil_div
from estimator.values.specs import AttnImplementation

RNG_STATE_BYTES = 16
"""Philox seed and offset saved by the flash and efficient kernels: two int64 tensors, allocated as 512 bytes each."""
MASK_ALIGNMENT = 8
FLASH_ALIGNMENT = 8
"""Flash attention requires head dimensions of a multiple of 8: torch 2.13,
aten/src/ATen/native/transformers/attention.cpp,
``pad_last_dim<8>``; flash-attn 2.8, flash_attn_interface.py, ``FlashAttnFunc``."""
EFFICIENT_ALIGNMENT_BYTES = 16
"""Memory-efficient attention requires heads of a multiple of 16 bytes (``check_head_dim_size_mem_efficient``)."""
FLASH_HEAD_DIM = 256
"""Largest head dimension that flash attention takes: ``check_head_dim_size_flash``; transformers does not ask it to
group wider heads (``use_gqa_in_sdpa``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Sizes and options of an attention call."""

    batch: int
    length: int
    heads: int
    key_value_heads: int
    head_dim: int
    value_head_dim: int
    implementation: AttnImplementation
    dropout: float = 0.0
    softcap: bool = False
    softmax_float32: bool = True
    scale_product: bool = True
    casts_weights: bool = True
    """Eager attention casts its weights back to the dtype of q, since autocast's softmax returns float32."""
    head_major: bool = False
    """q and k come from a concatenation in head-major order, so the flash kernel's output must be copied back."""
    padded: bool = False
    """Some rows end in padding."""
    upcast: bool = False
    """Eager attention multiplies queries and keys in float32 (GPT-2's ``reorder_and_upcast_attn``)."""


def attention(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, shape: AttentionShape
) -> tuple[Tensor, Tensor | None]:
    """Attend with the setup's implementation; ``mask`` is None where the kernel applies the causal mask itself.

    Returns the output and, for eager attention, the weights, which the layer's ``_`` holds until the layer returns.
    """
    if shape.implementation.keeps_scores:
        attend = _upcast if shape.upcast else _eager
        return attend(tape, q, k, v, mask, shape)
    if shape.implementation.is_flash:
        # float32 queries of a float32 residual stream are cast to the weights' 16 bits:
        # transformers 5.23, integrations/flash_attention.py, get_target_dtype
        q, k, v = (cast(tape, x, 2) for x in (q, k, v))
        mask = None
        if shape.value_head_dim != shape.head_dim:
            return _widened(tape, q, k, v, shape), None
        if shape.padded:
            return _unpadded(tape, q, k, v, shape), None
    return _sdpa(tape, q, k, v, mask, shape), None


def _unpadded(tape: Tape, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
    """FlashAttention where some rows end in padding: the other tokens are gathered, attend, and are scattered back.

    Saves copies of q, k and v instead of the originals, the kernel's output, that output padded with zeros, and the
    token indices, which every layer computes anew. Counts every token as unpadded.

    Source: transformers 5.23, modeling_flash_attention_utils.py, ``_upad_input``, ``_pad_input``.
    """
    tape.operation = "tokens without padding"
    indices = tape.new(shape.batch * shape.length, INDEX_BYTES)
    picked = []
    for x, is_copied in zip((q, k, v), (shape.head_major, shape.head_major, False), strict=True):
        rows = clone(tape, x) if is_copied else x
        picked.append(gather(tape, rows, indices, x.elements, "tokens without padding"))
        del rows
    out = _fused(tape, picked[0], picked[1], picked[2], shape, mask=None)
    del picked
    return gather(tape, out, indices, out.elements, "padding put back")


def _widened(tape: Tape, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
    """Flash attention with values narrower than keys: values are padded to the keys' width, the output is sliced back.

    Source: transformers 5.23, integrations/flash_attention.py, ``flash_attention_forward``.
    """
    wanted = v.elements
    v = pad(tape, v, q.elements)
    attend = _unpadded if shape.padded else partial(_fused, mask=None)
    out = attend(tape, q, k, v, shape)
    return clone(tape, part(tape, out, wanted))


def _sdpa(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, shape: AttentionShape
) -> Tensor:
    """``sdpa_attention_forward``: repeats key-value heads with a mask or wide heads; else the kernel groups them."""
    groups = mask is None and shape.head_dim <= FLASH_HEAD_DIM
    if not groups:
        k, v = heads_repeated(tape, k, v, shape)
    return scaled_dot_product(tape, q, k, v, mask, shape, groups_heads=groups)


def heads_repeated(
    tape: Tape, k: Tensor, v: Tensor, shape: AttentionShape
) -> tuple[Tensor, Tensor]:
    """``repeat_kv``: copies every key-value head for its group; a single head is only expanded."""
    groups = shape.heads // shape.key_value_heads
    repeat = repeat_heads if shape.key_value_heads > 1 else expand_heads
    if groups == 1:
        return k, v
    return repeat(tape, k, groups), repeat(tape, v, groups)


def scaled_dot_product(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    shape: AttentionShape,
    *,
    groups_heads: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention``; ``groups_heads`` is its ``enable_gqa``.

    Flash takes 16 bits without a mask and may group heads. Memory-efficient attention takes the rest, but needs as
    many key-value heads as query heads. Everything else runs as the math path, in float32.
    Source: torch 2.13, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, ``select_sdp_backend``.
    """
    sources = q, k, v  # the caller holds the uncast tensors until this returns
    if tape.autocast_active and tape.autocast_width is not None:
        # gcc evaluates the last argument first, which sets the order of the gradients
        v, k, q = (cast(tape, x, tape.autocast_width) for x in reversed(sources))
    same_heads = q.elements == k.elements
    same_width = shape.value_head_dim == shape.head_dim
    is_flash = q.width == 2 and mask is None and same_width and (same_heads or groups_heads)
    is_flash = is_flash and shape.head_dim <= FLASH_HEAD_DIM
    if not is_flash and not (same_heads and _is_aligned(shape, q.width)):
        return _math(tape, q, k, v, mask, shape, groups_heads=groups_heads)
    is_cut = is_flash and shape.head_dim % FLASH_ALIGNMENT > 0
    if is_cut and shape.implementation.is_torchs:
        out = _flash_of_padded_heads(tape, q, k, v, shape)
    else:
        out = _fused(tape, q, k, v, shape, mask=mask)
    return clone(tape, out) if is_cut or (shape.head_major and is_flash) else out


def _is_aligned(shape: AttentionShape, width: int) -> bool:
    """Whether memory-efficient attention takes heads of this width."""
    return not (
        shape.head_dim * width % EFFICIENT_ALIGNMENT_BYTES
        or shape.value_head_dim * width % EFFICIENT_ALIGNMENT_BYTES
    )


def _flash_of_padded_heads(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape
) -> Tensor:
    """Flash attention with heads zero-padded to a multiple of 8; the output is sliced back by a view.

    Source: torch 2.13, aten/src/ATen/native/transformers/attention.cpp, ``scaled_dot_product_attention``.
    """
    own = q.elements
    q, k, v = (pad(tape, x, _padded_elements(x, shape)) for x in (q, k, v))
    return part(tape, _fused(tape, q, k, v, shape, mask=None), own)


def _padded_elements(x: Tensor, shape: AttentionShape) -> int:
    width = ceil_div(shape.head_dim, FLASH_ALIGNMENT) * FLASH_ALIGNMENT
    return x.elements // shape.head_dim * width


def _fused(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape, *, mask: Tensor | None
) -> Tensor:
    """Flash or memory-efficient: saves q, k, v, the output and a float32 log-sum-exp per token and head.

    A mask becomes an additive bias [b, 1, s, s] in the compute dtype; every layer makes and saves its own copy.
    flash-attn pads heads to a multiple of 8 inside its function, and in backward the output's gradient too:
    flash-attn 2.8, flash_attn_interface.py, ``FlashAttnFunc`` and ``FlashAttnVarlenFunc``.
    """
    is_dao = shape.implementation.is_flash
    pads = is_dao and shape.head_dim % FLASH_ALIGNMENT > 0
    saved_mask = [] if mask is None else [_aligned(tape, _additive(tape, mask, q.width), shape)]
    is_narrow = shape.head_dim <= FLASH_HEAD_DIM and v.elements >= k.elements
    is_flash = mask is None and q.width != 4 and is_narrow
    rows = shape.length if is_flash else ceil_div(shape.length, 32) * 32  # memory-efficient
    tape.operation = "attention"
    own = _output_elements(q, v, shape)
    sizes = [
        (x.elements, _padded_elements(x, shape) if pads else x.elements, x.width, x.requires_grad)
        for x in (q, k, v)
    ]
    padded = sizes[0][1]
    key_heads = shape.heads if q.elements == k.elements else shape.key_value_heads
    heads_wide = ceil_div(shape.head_dim, FLASH_ALIGNMENT) * FLASH_ALIGNMENT

    def backward(t: Tape, g: Gradients) -> Gradients:
        around = t.new(padded, sizes[0][2]) if pads else None
        whole = [t.new(n, w) if needed or pads else None for _, n, w, needed in sizes]
        if is_flash:
            heads = shape.heads, key_heads, heads_wide
            t.scratch(flash_backward, shape.batch, shape.length, *heads, 2)
        del around
        if not pads:
            return list(whole)
        return [
            t.view(x, n) if needed and x is not None else None
            for x, (n, _, _, needed) in zip(whole, sizes, strict=True)
        ]

    saved = [] if pads else [permuted(x) for x in (q, k, v)]
    node = tape.begin("attention backward", [q, k, v], backward, saved, is_kernel=True)
    inside = [tape.new(n, w) for _, n, w, _ in sizes] if pads else []
    out, *others = tape.attention_outputs(
        [
            (padded if pads else own, q.width),
            (shape.batch * shape.heads * rows, 4),  # log-sum-exp
            *[(1, RNG_STATE_BYTES // 2)] * 2,
        ]
    )
    if is_flash and not shape.dropout:
        tape.scratch(flash_forward, shape.batch, shape.length, shape.heads, heads_wide)
    kept = [permuted(out), *others, *saved_mask, *inside]
    return tape.finish(node, tape.view(out, own) if pads else out, kept)


def _output_elements(q: Tensor, v: Tensor, shape: AttentionShape) -> int:
    """As many as the queries; as many as the values where these have another head dimension."""
    if shape.value_head_dim == shape.head_dim:
        return q.elements
    return v.elements


def _aligned(tape: Tape, bias: Tensor, shape: AttentionShape) -> Tensor:
    """``pad_bias``: the kernel requires rows of a multiple of 16; others are copied into padded rows.

    Source: torch 2.13, aten/src/ATen/native/transformers/attention.cpp, ``preprocess_mask``.
    """
    row = ceil_div(shape.length, MASK_ALIGNMENT) * MASK_ALIGNMENT
    if row == shape.length:
        return bias
    return tape.new(bias.elements // shape.length * row, bias.width)


def _additive(tape: Tape, mask: Tensor, width: int) -> Tensor:
    """A boolean mask as 0 and -∞ in the dtype of q; a numeric one (ALiBi) is additive already."""
    if mask.width > 1:
        return cast(tape, mask, width)
    tape.operation = "attention: additive mask of this layer"
    if not tape.is_compiled or mask.storage is None:
        return tape.new(mask.elements, width)
    shared = tape.masks.get(mask.storage)
    if shared is None:
        stored = mask.storage.bytes // mask.width  # expanded over the rows
        shared = tape.masks[mask.storage] = tape.view(tape.new(stored, width), mask.elements)
    return shared


def _math(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    shape: AttentionShape,
    *,
    groups_heads: bool,
) -> Tensor:
    """The math path, in float32 for every dtype: saves q, k, v and b · heads · s² probabilities in float32.

    Without ``enable_gqa`` the products broadcast a single key-value head. With more than one sequence no view fits, so
    they copy it for every query head.
    Source: torch 2.13, aten/src/ATen/native/transformers/attention.cpp, ``_scaled_dot_product_attention_math``.
    """
    width = q.width
    groups = 1 if q.elements == k.elements else shape.heads // shape.key_value_heads
    elements = _output_elements(q, v, shape)
    scores = shape.batch * shape.heads * shape.length**2
    bias = tape.new(shape.length**2, 4) if mask is None else _additive(tape, mask, width)
    with tape.without_autocast():
        uncast_q, uncast_k, v = cast(tape, q, 4), cast(tape, k, 4), cast(tape, v, 4)
        q = scale(tape, uncast_q)
        if groups_heads:
            uncast_k, v = repeat_heads(tape, uncast_k, groups), repeat_heads(tape, v, groups)
            k = scale(tape, uncast_k)
        else:
            k = expand_heads(tape, scale(tape, uncast_k), groups)
        several = shape.batch > 1
        is_copied = several and not (groups_heads and groups > 1)
        copies = (
            several and not shape.head_major,
            is_copied and not (shape.head_major and groups == 1),
        )
        weights = matmul(tape, q, k, scores, "attention scores", copies=copies)
        del k  # the mask is added in place
        probabilities = softmax(tape, weights)
        tape.operation = "attention: rows without a score"
        masked = tape.new(scores, 1)
        del masked, weights
        probabilities = dropout(tape, probabilities, shape.dropout)
        # the second output, which the caller discards
        returned = cast(tape, probabilities, width) if width != 4 else None
        out = matmul(
            tape,
            probabilities,
            v if groups_heads else expand_heads(tape, v, groups),
            elements,
            "attention output",
            copies=(False, is_copied),
        )
        del probabilities
        out = cast(tape, out, width)
        del uncast_q, uncast_k, q, v, returned, bias
    return clone(tape, out)


def _eager(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, shape: AttentionShape
) -> tuple[Tensor, Tensor]:
    """Eager attention: product, scale, mask, float32 softmax, cast, dropout, product.

    Saves per score the float32 softmax output (4 bytes) and its copy in the compute dtype.
    """
    groups = shape.heads // shape.key_value_heads
    scores = shape.batch * shape.heads * shape.length**2
    key, value = heads_repeated(tape, k, v, shape)
    several = shape.batch > 1
    # repeated heads are head-major already
    is_copied = several and (groups == 1 or shape.key_value_heads == 1)
    weights = matmul(tape, q, key, scores, "attention scores", copies=(several, is_copied))
    if shape.scale_product:
        weights = scale(tape, weights)
    if shape.softcap:
        weights = scale(tape, weights)
        weights = elementwise(tape, weights, "tanh", saves="output")
        weights = scale(tape, weights)
    if mask is not None:
        weights = add(tape, weights, mask)
    width = q.width
    # `attn_weights = softmax(attn_weights, dtype=torch.float32).to(query.dtype)`: the name holds them until the cast
    uncast = weights if shape.softmax_float32 else None
    if shape.softmax_float32 or tape.autocast_active:
        weights = softmax(tape, cast(tape, weights, 4))
    else:
        weights = softmax(tape, weights)
    if shape.casts_weights:
        weights = cast(tape, weights, width)
    del uncast
    weights = dropout(tape, weights, shape.dropout)
    elements = _output_elements(q, v, shape)
    out = matmul(tape, weights, value, elements, "attention output", copies=(False, is_copied))
    # the gradient lies by tokens, and the product's wants batch and heads in one dimension
    out = viewed(tape, out, copies_gradient=several and shape.heads > 1)
    return clone(tape, out), weights


def _upcast(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, shape: AttentionShape
) -> tuple[Tensor, Tensor]:
    """Scores in float32 throughout; ``baddbmm`` also takes an uninitialised tensor of their size, times 0.

    Source: transformers 5.23, models/gpt2/modeling_gpt2.py, ``_upcast_and_reordered_attn``.
    """
    scores = shape.batch * shape.heads * shape.length**2
    several = shape.batch > 1
    empty = tape.new(scores, 4)
    with tape.without_autocast():
        query, key = (clone(tape, x) if several else x for x in (q, k))
        weights = scaled_matmul(
            tape, cast(tape, query, 4), cast(tape, key, 4), scores, "attention scores"
        )
    del empty
    if mask is not None:
        weights = add(tape, weights, mask)
    weights = softmax(tape, weights)
    weights = cast(tape, weights, v.width)
    weights = dropout(tape, weights, shape.dropout)
    out = matmul(tape, weights, v, q.elements, "attention output", copies=(False, several))
    del query, key
    return clone(tape, out), weights
