"""Rotary position embeddings: one program per variant, with the sizes of all its tensors.

Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.families.family import Rotary
from estimator.tape import operators as op
from estimator.tape.tape import ACTIVATIONS, Tape, Tensor


class Tables(NamedTuple):
    """Cosine and sine of every position, s · d elements each."""

    cosine: Tensor
    sine: Tensor


def rotate(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    tables: Tables,
    kind: Rotary,
    *,
    share: float,
    head_dim: int,
    parts: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys. Only the leading ``share`` of each head is rotated, and also appended to ``parts``."""
    width = q.width
    match kind:
        case Rotary.SPLIT_HALVES:
            return _joined_halves(tape, q, tables), _joined_halves(tape, k, tables)
        case Rotary.SPLIT_PAIRS:
            return _joined_pairs(tape, q, k, tables)
        case Rotary.COMPLEX:
            return _as_complex(tape, q, k, tables)
    match kind:
        case Rotary.PAIRS:
            tables = _spread(tape, tables)
        case Rotary.FLOAT32_PAIRS | Rotary.FLOAT32_HALVES:
            if kind is Rotary.FLOAT32_HALVES:  # tables that a strategy cast are cast back
                tables = Tables(*(op.cast(tape, table, 4) for table in tables))
            q, k = op.cast(tape, q, 4), op.cast(tape, k, 4)
        case Rotary.FLOAT32_SPREAD_PAIRS:
            tables = _spread(tape, tables)
    in_float32 = kind is Rotary.FLOAT32_SPREAD_PAIRS
    if share >= 1:
        q, k = (_rotated(tape, x, tables, in_float32=in_float32) for x in (q, k))
    else:
        q, k = _partly_turned(tape, q, k, tables, share, head_dim, parts, in_float32=in_float32)
    if kind in (Rotary.HALVES, Rotary.PAIRS):
        return q, k
    return op.cast(tape, q, width), op.cast(tape, k, width)


def turned(tape: Tape, x: Tensor, tables: Tables) -> Tensor:
    """Gemma 4: queries or keys alone, rotated as in Llama."""
    return _rotated(tape, x, tables, in_float32=False)


def rotate_pairs(tape: Tape, x: Tensor, tables: Tensor) -> Tensor:
    """GPT-J: adjacent pairs, with sines and cosines expanded for this tensor only; ``tables`` holds both."""
    return _rotated(tape, x, _spread(tape, Tables(tables, tables)), in_float32=False)


def _joined_halves(tape: Tape, x: Tensor, tables: Tables) -> Tensor:
    """``_apply_rotary_emb``: for each half, the difference or sum of two products."""
    first, second = op.split(tape, x, [x.elements // 2] * 2)
    return _joined(tape, first, second, tables)


def _joined_pairs(tape: Tape, q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb_interleave``: each part is a separate slice."""
    half = Tables(*(tape.view(table, table.elements // 2) for table in tables))
    q1, q2 = (op.part(tape, q, q.elements // 2) for _ in range(2))
    k1, k2 = (op.part(tape, k, k.elements // 2) for _ in range(2))
    q = _joined(tape, q1, q2, half)
    return q, _joined(tape, k1, k2, half)


def _joined(tape: Tape, first: Tensor, second: Tensor, tables: Tables) -> Tensor:
    turned_first = op.subtract(
        tape,
        op.multiply(tape, first, tables.cosine, "rotary"),
        op.multiply(tape, second, tables.sine, "rotary"),
    )
    turned_second = op.add(
        tape,
        op.multiply(tape, second, tables.cosine, "rotary"),
        op.multiply(tape, first, tables.sine, "rotary"),
    )
    return op.concatenate(tape, [turned_first, turned_second])


def _as_complex(tape: Tape, q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """``apply_rotary_emb``; a complex number counts as two float32."""
    q_complex, k_complex = op.cast(tape, q, 4), op.cast(tape, k, 4)
    turned = _complex_product(tape, q_complex, tables.cosine)
    q_out = op.cast(tape, turned, q.width)
    del turned
    turned = _complex_product(tape, k_complex, tables.cosine)
    k_out = op.cast(tape, turned, k.width)
    del q_complex, k_complex
    return q_out, k_out


def _complex_product(tape: Tape, x: Tensor, table: Tensor) -> Tensor:
    """A product with the table, whose conjugate backward materialises: torch 2.13, ATen/ConjugateFallback.cpp."""
    tape.operation = "rotary"
    elements, width, size = x.elements, x.width, (table.elements, table.width)

    def backward(t: Tape, g: op.Gradients) -> op.Gradients:
        conjugate = t.new(*size)
        gradient = t.new(elements, width)
        del conjugate
        return [gradient]

    node = tape.begin("rotary backward", [x], backward, [table])
    return tape.finish(node, tape.new(elements, width))


def _spread(tape: Tape, tables: Tables) -> Tables:
    """``repeat_interleave``: each element twice, in a new tensor."""
    tape.operation = "rotary tables of this layer"
    cosine, sine = (tape.new(x.elements, x.width, ACTIVATIONS) for x in tables)
    return Tables(cosine, sine)


def _partly_turned(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    tables: Tables,
    share: float,
    head_dim: int,
    parts: list[Tensor] | None,
    *,
    in_float32: bool,
) -> tuple[Tensor, Tensor]:
    """Slices both, rotates both, joins both, so backward un-rotates both before it undoes either slice."""
    sliced = [_leading(tape, x, share, head_dim) for x in (q, k)]
    turned = [_rotated(tape, x, tables, in_float32=in_float32) for x, _ in sliced]
    if parts is not None:
        parts.extend(turned)
    q, k = (op.concatenate(tape, [turned.pop(0), rest]) for _, rest in sliced)
    return q, k


def _leading(tape: Tape, x: Tensor, share: float, head_dim: int) -> tuple[Tensor, Tensor]:
    leading = x.elements // head_dim * int(head_dim * share)
    return op.part(tape, x, leading), op.part(tape, x, x.elements - leading)


def _rotated(tape: Tape, x: Tensor, tables: Tables, *, in_float32: bool) -> Tensor:
    return op.add(
        tape,
        op.multiply(tape, op.cast(tape, x, 4) if in_float32 else x, tables.cosine, "rotary"),
        op.multiply(tape, _rotate_half(tape, x, in_float32=in_float32), tables.sine, "rotary"),
    )


def _rotate_half(tape: Tape, x: Tensor, *, in_float32: bool) -> Tensor:
    first, second = (
        op.part(tape, x, x.elements // 2),
        op.part(tape, x, x.elements - x.elements // 2),
    )
    turned = op.concatenate(tape, [op.scale(tape, second), first])
    return op.cast(tape, turned, 4) if in_float32 else turned
