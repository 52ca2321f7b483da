"""Mamba 2's chunked scan as PyTorch runs it, tensor by tensor.

Sizes: b sequences of s tokens, c = ⌈s / l⌉ chunks of l tokens, h heads of width p, state size n.
Everything is float32; under autocast products are 16 bits:

    x and its copies            b · c · l · h · p
    B, C and their copies       b · c · l · h · n        (each group's repeated for its heads)
    inside a chunk              b · c · l · h · l        (sums of decays, the decays, scores, both together)
    states of chunks            b · c · h · p · n, and one more a sequence
    between chunks              b · h · (c + 1)²

Source: transformers 5.23, models/granitemoehybrid/modeling_granitemoehybrid.py, ``mamba2_chunk_scan`` and
``segment_sum`` (word for word the same in models/falcon_h1 and models/nemotron_h); torch 2.13,
aten/src/ATen/native/Linear.cpp, ``sumproduct_pair`` (each factor permuted and reshaped to three dimensions, which
copies it unless its strides allow a view); Dao and Gu 2024, arXiv:2405.21060, listing 1.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.tape import operators as op
from estimator.tape.tape import Tape, Tensor
from estimator.values.arithmetic import ceil_div


class ScanShape(NamedTuple):
    """Counts; batch and length may be symbols."""

    batch: int
    length: int
    heads: int
    head_dim: int
    state_size: int
    groups: int
    chunk_size: int

    @property
    def chunks(self) -> int:
        """Chunks of a sequence, the last padded with zeros."""
        return ceil_div(self.length, self.chunk_size)

    @property
    def rows(self) -> int:
        """Tokens of all sequences, padded to whole chunks."""
        return self.batch * self.chunks * self.chunk_size


class Inputs(NamedTuple):
    """Inputs of the scan; B and C have one entry per group."""

    x: Tensor
    step: Tensor
    decay: Tensor
    b: Tensor
    c: Tensor
    skip: Tensor
    step_bias: Tensor


def scan(tape: Tape, shape: ScanShape, inputs: Inputs) -> Tensor:
    """Outputs of all heads, b · s · h · p in float32; local names live as long as in the source."""
    chunks, heads, width = shape.chunks, shape.heads, shape.heads * shape.head_dim
    one_block, one_chunk = shape.batch * chunks == 1, chunks == 1
    x, decay, b, c, skipped, _step = _by_step(tape, shape, inputs)
    sums = _cumulated(tape, decay)
    inside = _exponential(tape, _segment_sums(tape, decay, shape.chunk_size))
    scores = _contracted(
        tape, c, b, inside.elements, "C × B", copies=(not one_block, not one_block)
    )
    weights = op.multiply(tape, scores, inside, "scores × decay")
    diagonal = _contracted(
        tape, weights, x, x.elements, "scores × x", copies=(False, not one_chunk)
    )
    diagonal = _laid_out(tape, diagonal, copies=not one_block)
    a_chunk = shape.batch * heads * chunks
    to_end = _exponential(tape, op.subtract(tape, op.part(tape, sums, a_chunk), sums))
    decayed = op.multiply(tape, b, to_end, "B × decay")
    size = heads * shape.head_dim * shape.state_size
    states = _contracted(
        tape,
        decayed,
        x,
        shape.batch * chunks * size,
        "states of chunks",
        copies=(not one_block, not one_chunk),
        second_first=True,
    )
    states = _laid_out(tape, states, copies=not one_chunk)
    tape.operation = "states of chunks"
    before = tape.new(shape.batch * size, states.width)
    states = op.concatenate(tape, [before, states])
    padded = shape.batch * heads * (chunks + 1)
    between = _exponential(
        tape, _segment_sums(tape, op.pad(tape, op.part(tape, sums, a_chunk), padded), chunks + 1)
    )
    handed_on = _contracted(
        tape, between, states, states.elements, "states handed on", copies=(False, shape.batch > 1)
    )
    handed_on = _laid_out(tape, handed_on, copies=shape.batch > 1)
    states = op.part(tape, handed_on, shape.batch * chunks * size)
    from_start = _exponential(tape, sums)
    crossed = _contracted(
        tape, c, states, x.elements, "C × states", copies=(not one_block, not one_chunk)
    )
    crossed = _laid_out(tape, crossed, copies=not one_block)
    off_diagonal = op.multiply(tape, crossed, from_start, "C × states × decay")
    output = op.clone(tape, op.add(tape, diagonal, off_diagonal))
    output = op.add(tape, output, skipped)
    if chunks * shape.chunk_size > shape.length:
        output = op.part(tape, output, shape.batch * shape.length * width)
    return output


def _by_step(tape: Tape, shape: ScanShape, inputs: Inputs) -> tuple[Tensor, ...]:
    """x, A, B and C with the step, in chunks; what skips the scan; and the step, a name until the scan returns."""
    rows, heads, one_chunk = shape.rows, shape.heads, shape.chunks == 1
    step = op.add(tape, inputs.step, op.cast(tape, inputs.step_bias, inputs.step.width))
    step = _softplus(tape, step)
    step = op.clamp(tape, step, both_sides=True)
    x = op.cast(tape, inputs.x, 4)
    b = _repeated(tape, op.cast(tape, inputs.b, 4), heads // shape.groups)
    c = _repeated(tape, op.cast(tape, inputs.c, 4), heads // shape.groups)
    width, state = heads * shape.head_dim, heads * shape.state_size
    skipped = op.multiply(tape, inputs.skip, op.pad(tape, x, rows * width), "D × x")
    x = op.multiply(tape, x, op.cast(tape, step, 4), "x × step")
    decay = op.multiply(tape, inputs.decay, op.cast(tape, step, 4), "A × step")
    x, decay, b, c = (
        _laid_out(tape, op.pad(tape, x, rows * width), copies=not one_chunk),
        op.pad(tape, decay, rows * heads),
        _laid_out(tape, op.pad(tape, b, rows * state), copies=not one_chunk),
        _laid_out(tape, op.pad(tape, c, rows * state), copies=not one_chunk),
    )
    return x, decay, b, c, skipped, step


def _segment_sums(tape: Tape, x: Tensor, size: int) -> Tensor:
    """``segment_sum``: x expanded over a second dimension, masked, cumulatively summed, masked again."""
    own, whole, width = x.elements, x.elements * size, x.width

    def summed(t: Tape, g: op.Gradients) -> op.Gradients:
        return [t.view(t.new(own, width))]

    x = tape.record("segment sums, backward", tape.view(x, whole), [x], summed)
    mask = _triangle(tape, size)
    x = op.masked_fill(tape, x, tape.new(size * size, 1))
    sums = _cumulated(tape, x)
    mask = _triangle(tape, size)
    sums = op.masked_fill(tape, sums, tape.new(size * size, 1))
    del mask
    return sums


def _triangle(tape: Tape, size: int) -> Tensor:
    """``torch.tril(torch.ones(…))`` as bool."""
    tape.operation = "mask of a chunk"
    ones = tape.new(size * size, 1)
    triangle = tape.new(size * size, 1)
    del ones
    return triangle


def _cumulated(tape: Tape, x: Tensor) -> Tensor:
    """``cumsum``: saves nothing; backward flips the gradient, sums it up and flips it again.

    Source: torch 2.13, torch/csrc/autograd/FunctionsManual.cpp, ``cumsum_backward``.
    """
    return op.elementwise(tape, x, "cumulative sum", saves="nothing", backward_copies=3)


def _exponential(tape: Tape, x: Tensor) -> Tensor:
    return op.elementwise(tape, x, "exponential", saves="output")


def _softplus(tape: Tape, x: Tensor) -> Tensor:
    """In float32 under autocast (torch 2.13, aten/src/ATen/autocast_mode.h)."""
    return op.elementwise(tape, op.cast(tape, x, 4) if tape.autocast_active else x, "softplus")


def _repeated(tape: Tape, x: Tensor, times: int) -> Tensor:
    """``repeat_interleave``: a copy, even for one head a group; the gradient is summed over the copies."""
    tape.operation = "groups repeated for their heads"
    own, width = x.elements, x.width

    def backward(t: Tape, g: op.Gradients) -> op.Gradients:
        return [t.new(own, width) if times > 1 else g[0]]

    return tape.record(
        "groups repeated for their heads, backward", tape.new(own * times, width), [x], backward
    )


def _laid_out(tape: Tape, x: Tensor, *, copies: bool) -> Tensor:
    """A reshape that is a view in forward; its gradient has another layout and is copied."""
    if not copies:
        return x
    elements, width = x.elements, x.width
    return tape.record(
        "gradient laid out anew", tape.view(x), [x], lambda t, g: [t.new(elements, width)]
    )


def _contracted(
    tape: Tape,
    a: Tensor,
    b: Tensor,
    elements: int,
    name: str,
    *,
    copies: tuple[bool, bool],
    second_first: bool = False,
) -> Tensor:
    """``einsum`` of two tensors: one batched product; each factor may be copied first, and gradients are views.

    ``second_first``: the output's order of dimensions makes the second factor the left operand.
    """
    width = tape.autocast_width if tape.autocast_active else None
    a, b = (op.cast(tape, x, width) if width else x for x in (a, b))
    sources = a, b  # until the product returns
    pairs = list(zip((a, b), copies, strict=True))
    a, b = (op.clone(tape, x) if copied else x for x, copied in pairs[:: -1 if second_first else 1])
    del pairs
    tape.operation = name
    shapes = [(x.elements, x.width, x.requires_grad) for x in (a, b)]

    def backward(t: Tape, g: op.Gradients) -> op.Gradients:
        return [t.view(t.new(n, w)) if needed else None for n, w, needed in shapes]

    save = [b if a.requires_grad else None, a if b.requires_grad else None]
    node = tape.begin(f"{name}, backward", [a, b], backward, save)
    out = tape.finish(node, tape.new(elements, a.width))
    del sources
    return out
