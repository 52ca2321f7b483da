"""The products of attention that Falcon, BLOOM, MPT and GPT-J write for themselves, without transformers' functions.

Source: transformers 5.23, models/falcon, bloom, mpt and gptj, modeling_*.py. A name that is bound here keeps its tensor
alive exactly as long as the same name does there.
"""

from __future__ import annotations

from estimator.tape import operators as op
from estimator.tape.attention import AttentionShape
from estimator.tape.tape import Tape, Tensor

Attended = tuple[Tensor, Tensor]
"""The output, and the weights that made it, which the layer returns."""


def plus_mask(tape: Tape, scores: Tensor, mask: Tensor | None) -> Tensor:
    """The scores plus the mask, where there is one."""
    return scores if mask is None else op.add(tape, scores, mask)


def attention_scores(tape: Tape, q: Tensor, k: Tensor, shape: AttentionShape) -> Tensor:
    """``q @ k.T``; a single key-value head is broadcast, and copied where more than one text leaves no view."""
    several = shape.batch > 1
    if shape.key_value_heads == 1:
        k = op.expand_heads(tape, k, shape.heads)
    elements = shape.batch * shape.heads * shape.length**2
    return op.matmul(tape, q, k, elements, "attention scores", copies=(several, several))


def weighted(tape: Tape, weights: Tensor, v: Tensor, shape: AttentionShape) -> Tensor:
    """``weights @ v``, and the heads of each token side by side again."""
    if shape.key_value_heads == 1:
        v = op.expand_heads(tape, v, shape.heads)
    elements = shape.batch * shape.length * shape.heads * shape.head_dim
    copies = (False, shape.batch > 1)
    out = op.matmul(tape, weights, v, elements, "attention output", copies=copies)
    return op.clone(tape, out)
