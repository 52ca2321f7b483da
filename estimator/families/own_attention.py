"""Attention as Falcon, BLOOM, MPT and GPT-J implement it themselves, without transformers' shared functions.

Source: transformers 5.23, models/falcon, bloom, mpt and gptj, modeling_*.py. Local names are those of the
source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from estimator.tape import operators as op
from estimator.tape.attention import AttentionShape
from estimator.tape.tape import Tape, Tensor

Attended = tuple[Tensor, Tensor]
"""The output and the attention weights, both of which the layer returns."""


def plus_mask(tape: Tape, scores: Tensor, mask: Tensor | None) -> Tensor:
    """The scores plus the mask, if there is one."""
    return scores if mask is None else op.add(tape, scores, mask)


def attention_scores(tape: Tape, q: Tensor, k: Tensor, shape: AttentionShape) -> Tensor:
    """``q @ k.T``; a single key-value head is broadcast, and copied if there is more than one sequence."""
    several = shape.batch > 1
    if shape.key_value_heads == 1:
        k = op.expand_heads(tape, k, shape.heads)
    elements = shape.batch * shape.heads * shape.length**2
    return op.matmul(tape, q, k, elements, "attention scores", copies=(several, several))


def weighted(tape: Tape, weights: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
    """``weights @ v``, with each token's heads made contiguous again."""
    if shape.key_value_heads == 1:
        v = op.expand_heads(tape, v, shape.heads)
    elements = shape.batch * shape.length * shape.heads * shape.head_dim
    copies = (False, shape.batch > 1)
    out = op.matmul(tape, weights, v, elements, "attention output", copies=copies)
    return op.clone(tape, out)
