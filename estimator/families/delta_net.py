"""The gated delta net, which replaces attention in most layers of Qwen3-Next and Qwen3.5.

A delta net keeps a matrix per head, which every token decays and corrects. This is how PyTorch runs it without
flash-linear-attention and causal-conv1d: chunk by chunk, in a loop that saves every iteration's state for backward.

Source: transformers 5.23, models/qwen3_5/modeling_qwen3_5.py, models/qwen3_next/modeling_qwen3_next.py. Local
names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.family import ModuleClass
from estimator.families.layer_kinds import DELTA_FILTER
from estimator.families.modules import Module, Norm, OwnParameter, Tree, tree
from estimator.tape import operators as op
from estimator.tape.tape import Parameter, Tape, Tensor
from estimator.values.arithmetic import ceil_div
from estimator.values.specs import DeltaNet, Model

CHUNK = 64
"""Tokens per chunk: ``torch_chunk_gated_delta_rule``, ``chunk_size``."""


def delta_net_tree(model: Model, *, fused: bool = False) -> Tree:
    """``fused``: one projection for queries, keys, values and gates, one for learning rate and decay (Qwen3-Next)."""
    assert model.delta_net is not None
    hidden, heads = model.hidden_size, model.delta_net.value_heads
    keys, values = model.delta_net.key_width, model.delta_net.value_width
    normed: dict[str, Module] = {
        "norm": Norm("", model.delta_net.value_dim),
        "out_proj": parts.linear(values, hidden),
    }
    widths = (
        {"in_proj_qkvz": 2 * (keys + values), "in_proj_ba": 2 * heads}
        if fused
        else {
            "in_proj_qkv": 2 * keys + values,
            "in_proj_z": values,
            "in_proj_b": heads,
            "in_proj_a": heads,
        }
    )
    projections: dict[str, Module] = {
        name: parts.linear(hidden, width) for name, width in widths.items()
    }
    return tree(
        "@GatedDeltaNet",
        dt_bias=OwnParameter(Norm("", heads)),
        A_log=OwnParameter(Norm("", heads)),
        conv1d=Norm("", 2 * keys + values, taps=DELTA_FILTER),
        **({**projections, **normed} if fused else {**normed, **projections}),
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of one layer's delta rule, in elements."""

    batch: int
    length: int
    chunks: int
    heads: int
    groups: int
    """Value heads per query-key head."""
    key_dim: int
    value_dim: int

    @property
    def rows(self) -> int:
        return self.batch * self.length * self.heads

    @property
    def padded(self) -> int:
        """Rows padded to whole chunks."""
        return self.batch * self.heads * self.chunks * CHUNK

    @property
    def pairs(self) -> int:
        """Pairs of tokens in the same chunk."""
        return self.padded * CHUNK

    @property
    def of_chunk(self) -> int:
        """Rows per chunk."""
        return self.batch * self.heads * CHUNK

    @property
    def state(self) -> int:
        return self.batch * self.heads * self.key_dim * self.value_dim


def _shape(b: Block) -> _Shape:
    sizes, length = _sizes(b), b.setup.batch.max_length
    return _Shape(
        b.setup.batch.per_device_train_batch_size,
        length,
        ceil_div(length, CHUNK),
        sizes.value_heads,
        sizes.value_heads // sizes.key_heads,
        sizes.key_dim,
        sizes.value_dim,
    )


def _sizes(b: Block) -> DeltaNet:
    assert b.model.delta_net is not None
    return b.model.delta_net


def delta_net(b: Block, x: Tensor) -> Tensor:
    """Projections, short convolution, delta rule chunk by chunk, gated norm, output projection."""
    tape, sizes = b.tape, _sizes(b)
    if b.setup.batch.padded:
        x = op.multiply(tape, x, Tensor(b.rows, 1, None), "padding masked")
    is_fused = b.has("linear_attn.in_proj_qkvz")
    mixed, z, rate, decay, *held = (_projected_at_once if is_fused else _projected)(b, x)
    mixed = _convolved(b, mixed)
    keys, values = b.rows * sizes.key_width, b.rows * sizes.value_width
    q, k, v = op.split(tape, mixed, [keys, keys, values])
    del held[2:]
    beta = op.elementwise(tape, rate, "sigmoid", saves="output")
    g = _log_decay(b, decay)
    out = _chunked_rule(tape, _shape(b), q, k, v, g, beta)
    out = _gated_norm(b, out, z)
    out = b.linear("linear_attn.out_proj", out)
    del mixed, z, rate, decay, held, q, k, v, beta, g
    return out


def _projected(b: Block, x: Tensor) -> tuple[Tensor, ...]:
    """Input of the convolution, output gate, learning rate and decay."""
    mixed = b.linear("linear_attn.in_proj_qkv", x)
    z = b.linear("linear_attn.in_proj_z", x)
    rate = b.linear("linear_attn.in_proj_b", x)
    return mixed, z, rate, b.linear("linear_attn.in_proj_a", x)


def _projected_at_once(b: Block, x: Tensor) -> tuple[Tensor, ...]:
    """The same from two fused projections, whose parts are copied; also returns what the caller's names keep alive."""
    tape, sizes, rows = b.tape, _sizes(b), b.rows
    keys, values = rows * sizes.key_width, rows * sizes.value_width
    heads = rows * sizes.value_heads
    whole = b.linear("linear_attn.in_proj_qkvz", x)
    both = b.linear("linear_attn.in_proj_ba", x)
    q, k, v, z = op.split(tape, whole, [keys, keys, values, values])
    rate, decay = op.split(tape, both, [heads, heads])
    if sizes.value_heads > sizes.key_heads:
        v, z, rate, decay = [op.clone(tape, tensor) for tensor in (v, z, rate, decay)]
    q, k = [op.clone(tape, tensor) for tensor in (q, k)]
    mixed = op.concatenate(tape, [q, k, v])
    return mixed, z, rate, decay, whole, both, q, k, v


def _convolved(b: Block, x: Tensor) -> Tensor:
    """Causal convolution per channel, then the activation."""
    tape, width, channels = b.tape, x.width, x.elements // b.rows
    longer = b.setup.batch.per_device_train_batch_size * (
        b.setup.batch.max_length + DELTA_FILTER - 1
    )
    weight = b.norms["linear_attn.conv1d"][0]
    out = b.within(
        weight.key,
        x,
        lambda x: op.convolution(tape, x, weight, longer * channels, "short convolution"),
    )
    out = op.part(tape, out, x.elements)
    out = b.activation(out)
    return op.cast(tape, out, width)


def _log_decay(b: Block, x: Tensor) -> Tensor:
    """``-exp(A) · softplus(a + bias)``, in float32."""
    tape = b.tape
    (a,), (bias,) = b.norms["linear_attn.A_log"], b.norms["linear_attn.dt_bias"]
    factor = op.elementwise(tape, op.cast(tape, a, 4), "exp", saves="output")
    factor = op.scale(tape, factor)
    return op.multiply(
        tape, factor, op.elementwise(tape, _biased(tape, x, bias), "softplus"), "decay"
    )


def _biased(tape: Tape, x: Tensor, bias: Parameter) -> Tensor:
    return op.add(tape, op.cast(tape, x, 4), bias)


def _gated_norm(b: Block, x: Tensor, z: Tensor) -> Tensor:
    """RMSNorm of each head, times silu of its gate in float32."""
    tape, width = b.tape, x.width
    rows = b.rows * _sizes(b).value_heads
    x = op.rms_norm(tape, x, b.norms["linear_attn.norm"][0], rows)
    opened = op.elementwise(tape, op.cast(tape, z, 4), "silu")
    x = op.multiply(tape, x, opened, "gate of the output")
    del opened
    return op.cast(tape, x, width)


def _chunked_rule(
    tape: Tape, s: _Shape, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> Tensor:
    """``torch_chunk_gated_delta_rule``: in float32, chunk by chunk; the output has the dtype of q."""
    width = q.width
    q, k, v, beta, decay, v_beta, k_beta = _in_chunks(tape, s, q, k, v, g, beta)
    tape.operation = "mask inside a chunk"
    all_pairs = tape.new(CHUNK * CHUNK, 1)
    mask = tape.new(CHUNK * CHUNK, 1)
    del all_pairs
    log_decay = _cumulated(tape, decay)
    pairwise = _pairwise(tape, s, log_decay, mask)
    # whole chunks of float32 were neither cast nor padded, so heads are still adjacent
    copies = width == 4 and s.chunks * CHUNK == s.length
    scores = _product(tape, k_beta, k, s.pairs, "keys × keys", is_copied=copies)
    system = op.multiply(tape, scores, pairwise, "decay")
    del scores
    scores = _product(tape, q, k, s.pairs, "queries × keys", is_copied=copies)
    within = op.multiply(tape, scores, pairwise, "decay")
    del scores
    decayed = op.multiply(tape, k_beta, _exponential(tape, log_decay), "decay")
    values = _solved(tape, system, v_beta)
    predicted = _solved(tape, system, decayed)
    tape.operation = "states and output"
    state = tape.new(s.state, 4)
    out = tape.new(s.padded * s.value_dim, 4)
    q = op.multiply(tape, q, _exponential(tape, log_decay), "decay")
    k = op.multiply(tape, k, _exponential(tape, _to_the_end(tape, s, log_decay)), "decay")
    chunk_decay = _exponential(tape, op.part(tape, log_decay, s.padded // CHUNK))
    of_values, of_keys = s.of_chunk * s.value_dim, s.of_chunk * s.key_dim
    of_pairs, of_heads = s.of_chunk * CHUNK, s.batch * s.heads
    for times in _rounds(s.chunks):
        with tape.standing_for(times):
            new = op.subtract(
                tape,
                op.part(tape, values, of_values),
                _part_product(tape, predicted, of_keys, state, of_values, "prediction"),
            )
            before = _part_product(tape, q, of_keys, state, of_values, "state read")
            out = _put(
                tape,
                out,
                op.add(
                    tape,
                    before,
                    _part_product(tape, within, of_pairs, new, of_values, "chunk read"),
                ),
            )
            state = op.add(
                tape,
                op.multiply(tape, state, op.part(tape, chunk_decay, of_heads), "state decayed"),
                _part_product(tape, k, of_keys, new, s.state, "state corrected"),
            )
    del state
    out = op.clone(tape, out)
    out = op.part(tape, out, s.rows * s.value_dim)
    out = op.clone(tape, out) if width == 4 else op.cast(tape, out, width)
    del beta, decay, v, v_beta, k_beta, mask, log_decay, pairwise, system, within, decayed
    del values, predicted, chunk_decay, new, before
    return out


def _in_chunks(
    tape: Tape, s: _Shape, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, ...]:
    """The inputs in float32, padded to whole chunks, and values and keys times the learning rate."""
    q, k = (_for_heads(tape, x, s.groups) for x in (q, k))
    v = op.viewed(tape, v, copies_gradient=True)
    q, k, v, beta, decay = [op.cast(tape, x, 4) for x in (q, k, v, beta, g)]
    q = _unit(tape, q, s.rows)
    k = _unit(tape, k, s.rows)
    q = op.scale(tape, q)
    q, k, v = [
        op.pad(tape, x, s.padded * size)
        for x, size in ((q, s.key_dim), (k, s.key_dim), (v, s.value_dim))
    ]
    beta, decay = [op.pad(tape, x, s.padded) for x in (beta, decay)]
    v_beta = op.multiply(tape, v, op.viewed(tape, beta), "learning rate")
    k_beta = op.multiply(tape, k, op.viewed(tape, beta), "learning rate")
    # the gradient of a solved right-hand side is column-major
    q, k, k_beta, v_beta = [
        op.viewed(tape, x, copies_gradient=is_solved)
        for x, is_solved in ((q, False), (k, False), (k_beta, True), (v_beta, True))
    ]
    return q, k, v, beta, decay, v_beta, k_beta


def _rounds(chunks: int) -> tuple[int | None, ...]:
    """The iterations of the loop to play, and how many each represents; None: only itself.

    The first differs because no state has a gradient yet, the last because its state is not read again. What all
    iterations share is first saved in the second.
    """
    if chunks == 1:  # a recorded number: each is asked for by itself
        return (None,)
    if chunks == 2:
        return (None, None)
    if chunks == 3:
        return (None, None, None)
    return (None, None, chunks - 4, None, None)


def _for_heads(tape: Tape, x: Tensor, groups: int) -> Tensor:
    """``repeat_interleave`` if value heads share a head of x; the gradient arrives head by head."""
    if groups == 1:
        return op.viewed(tape, x, copies_gradient=True)
    return op.repeat_heads(tape, x, groups)


def _unit(tape: Tape, x: Tensor, rows: int) -> Tensor:
    """``l2norm``."""
    total = op.mean(tape, op.multiply(tape, x, x, "square of the norm"), rows, "sum of squares")
    total = op.add_number(tape, total)
    inverse = op.elementwise(
        tape, total, "inverse root of the norm", saves="output", backward_copies=2
    )
    del total
    return op.multiply(tape, x, inverse, "norm")


def _cumulated(tape: Tape, x: Tensor) -> Tensor:
    """``cumsum`` within each chunk; its gradient is flipped, summed and flipped back."""
    elements, width = x.elements, x.width
    tape.operation = "decay so far"

    def backward(t: Tape, g: op.Gradients) -> op.Gradients:
        flipped = t.new(elements, width)
        total = t.new(elements, width)
        gradient = t.new(elements, width)
        del flipped, total
        return [gradient]

    return tape.record("decay so far, backward", tape.new(elements, width), [x], backward)


def _pairwise(tape: Tape, s: _Shape, log_decay: Tensor, mask: Tensor) -> Tensor:
    """Decay between each token of a chunk and each later one."""
    x = op.subtract(tape, op.expand(tape, log_decay, s.pairs), op.expand(tape, log_decay, s.pairs))
    x = op.masked_fill(tape, x, mask)
    return _exponential(tape, x)


def _to_the_end(tape: Tape, s: _Shape, log_decay: Tensor) -> Tensor:
    return op.subtract(tape, op.part(tape, log_decay, s.padded // CHUNK), log_decay)


def _exponential(tape: Tape, x: Tensor) -> Tensor:
    return op.elementwise(tape, x, "exp", saves="output")


def _product(
    tape: Tape, a: Tensor, b: Tensor, elements: int, name: str, *, is_copied: bool = False
) -> Tensor:
    """``@`` of four- or five-dimensional tensors, viewed as three-dimensional, so each gradient is a view."""
    a, b = op.viewed(tape, a), op.viewed(tape, b)
    return op.matmul(tape, a, b, elements, name, copies=(is_copied, is_copied))


def _part_product(
    tape: Tape, whole: Tensor, part: int, b: Tensor, elements: int, name: str
) -> Tensor:
    """The same of one chunk's part of the first factor."""
    return _product(tape, op.part(tape, whole, part), b, elements, name)


def _put(tape: Tape, out: Tensor, x: Tensor) -> Tensor:
    """Writes one chunk of the output."""
    below = out if out.requires_grad else None
    return op.copied_in(tape, tape.view(out), below, x, out.elements)


def _solved(tape: Tape, system: Tensor, b: Tensor) -> Tensor:
    """``torch.linalg.solve_triangular``: saves the system and the result.

    Backward solves the transposed system for the gradient of b. The system's own gradient is the negated product with
    the result, restricted to a triangle. Source: torch 2.13, torch/csrc/autograd/FunctionsManual.cpp,
    ``linalg_solve_triangular_backward``.
    """
    tape.operation = "triangular system"
    size, rest, needs_system = system.elements, b.elements, system.requires_grad

    def backward(t: Tape, g: op.Gradients) -> op.Gradients:
        of_b = t.new(rest, 4)
        if not needs_system:
            return [None, of_b]
        product = t.new(size, 4)
        negated = t.new(size, 4)
        del product
        triangle = t.new(size, 4)
        del negated
        return [triangle, of_b]

    node = tape.begin("triangular system, backward", [system, b], backward, [system])
    out = tape.new(rest, 4)
    return tape.finish(node, out, [out])


DELTA_NET = ModuleClass("linear_attn", delta_net_tree, delta_net)
"""Qwen3.5's."""
FUSED_DELTA_NET = DELTA_NET._replace(tree=partial(delta_net_tree, fused=True))
"""Qwen3-Next's."""
