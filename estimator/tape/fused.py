"""Fused kernels: what each allocates and saves in forward, and what it allocates in backward.

Liger's are Triton kernels behind Python autograd functions, which allocate every output. Many write a gradient over a
saved tensor or over the incoming gradient.

Source, where a rule names no other: liger-kernel 0.8.5, ops/*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

from estimator.tape import operators as op
from estimator.tape.operators import INDEX_BYTES, Gradients
from estimator.tape.symbols import next_power_of_2
from estimator.tape.tape import GRADIENTS, LOGITS, Node, Tape, Tensor
from estimator.values.arithmetic import ceil_div, smaller

MULTIPROCESSORS = 132
"""Rows of the partial gradients of a norm's weight: one per multiprocessor. An H100 has 132, NVIDIA H100 datasheet.
With an A100's 108 they are 0.4 MiB smaller at a width of 4,096, during one operator."""


Rule = TypeVar("Rule", bound=Callable[..., Any])


def opaque(rule: Rule) -> Rule:
    """A kernel that a compiler cannot fuse with others."""

    @wraps(rule)
    def played(tape: Tape, *given: Any, **named: Any) -> Any:
        with tape.kernels():
            return rule(tape, *given, **named)

    return cast("Rule", played)


def _over(x: Tensor) -> Tensor:
    """A gradient written over a tensor that is no longer needed, returned as a view of it."""
    return Tensor(x.elements, x.width, x.storage, is_view=True)


def _saved(tape: Tape, position: int, elements: int, width: int) -> Tensor:
    """A tensor that the running node saved: the gradient itself, or the buffer that it overwrites."""
    return Tensor(elements, width, tape.unpacked[position])


@opaque
def rms_norm(
    tape: Tape, x: Tensor, weight: Tensor, rows: int, *, in_place: bool, copies: bool = False
) -> Tensor:
    """RMSNorm in one kernel: saves x in its dtype and one float32 number a row; makes no float32 copy of x.

    Backward writes the gradient of x over the incoming one (``in_place``) or into a new tensor. A trained weight's
    gradient is summed in float32, in one partial row per multiprocessor. Non-contiguous rows are copied (``copies``).

    Source: liger-kernel 0.8.5, ops/rms_norm.py, ``rms_norm_forward``, ``rms_norm_backward``.
    """
    tape.operation = "norm"
    columns, width, trained = weight.elements, weight.width, weight.requires_grad

    def backward(t: Tape, g: Gradients) -> Gradients:
        incoming = g[0]
        assert incoming is not None
        if copies:
            incoming = t.new(incoming.elements, incoming.width)
        partial = t.new(MULTIPROCESSORS * columns, 4) if trained else None
        gradient = _over(incoming) if in_place else t.new(incoming.elements, incoming.width)
        if partial is None:
            return [gradient, None]
        summed = t.new(columns, 4)
        return [gradient, op.cast(t, summed, width)]

    node = tape.begin("norm backward", [x, weight], backward)
    kept = tape.new(x.elements, x.width) if copies else x
    out = tape.new(x.elements, x.width)
    return tape.finish(node, out, [kept, tape.new(rows, 4)])


@opaque
def layer_norm(tape: Tape, x: Tensor, parameters: Sequence[Tensor], rows: int) -> Tensor:
    """LayerNorm in one kernel: saves x in its dtype and two float32 numbers a row, under autocast too.

    Backward writes the gradient of x into a new tensor, and sums those of weight and bias in float32, in one partial
    row per multiprocessor each.

    Source: liger-kernel 0.8.5, ops/layer_norm.py, ``layer_norm_forward``, ``layer_norm_backward``.
    """
    tape.operation = "layer norm"
    elements, width = x.elements, x.width
    sizes = [(p.elements, p.width, p.requires_grad) for p in parameters]

    def backward(t: Tape, g: Gradients) -> Gradients:
        partial = [t.new(MULTIPROCESSORS * n, 4) if needed else None for n, _, needed in sizes]
        gradients: Gradients = [t.new(elements, width)]
        for rows_of, (n, own, needed) in zip(partial, sizes, strict=True):
            gradients.append(op.cast(t, t.new(n, 4), own) if needed and rows_of else None)
        return gradients

    node = tape.begin("layer norm backward", [x, *parameters], backward)
    out = tape.new(elements, width)
    return tape.finish(node, out, [x, tape.new(rows, 4), tape.new(rows, 4)])


@opaque
def gated(tape: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) × up`` (or gelu) in one kernel: saves both factors and writes their gradients over them.

    Halves of one tensor are copied first: the kernel requires contiguous rows.

    Source: liger-kernel 0.8.5, ops/swiglu.py, ``LigerSiLUMulFunction``; ops/geglu.py, ``LigerGELUMulFunction``.
    """
    tape.operation = "gate × up"
    sizes = [(x.elements, x.width) for x in (gate, up)]

    def backward(t: Tape, _: Gradients) -> Gradients:
        return [_saved(t, place, *size) for place, size in enumerate(sizes)]

    node = tape.begin("gate × up backward", [gate, up], backward)
    kept = [_contiguous(tape, x) for x in (gate, up)]
    return tape.finish(node, tape.new(gate.elements, gate.width), kept)


def _contiguous(tape: Tape, x: Tensor) -> Tensor:
    return tape.new(x.elements, x.width) if x.is_view else x


@opaque
def rotate(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    tables: Sequence[Tensor],
    *,
    copies: bool = False,
    copies_gradients: bool = False,
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys in place, forward and backward: saves only the tables.

    Slices of a fused projection and head-major tensors (``copies``) are copied first. So are gradients that attention
    returns head-major (``copies_gradients``).

    Source: liger-kernel 0.8.5, ops/rope.py, ``rope_forward``, ``rope_backward`` (``contiguous``).
    """
    tape.operation = "rotary"

    def backward(t: Tape, g: Gradients) -> Gradients:
        return [
            None if x is None else (t.new(x.elements, x.width) if copies_gradients else _over(x))
            for x in g
        ]

    node = tape.begin("rotary backward", [q, k], backward)
    turned_q, turned_k = (
        tape.new(x.elements, x.width) if copies or x.is_view else tape.view(x) for x in (q, k)
    )
    _finish_both(tape, node, [turned_q, turned_k], tables)
    return turned_q, turned_k


def _finish_both(
    tape: Tape, node: Node | None, outputs: Sequence[Tensor], save: Sequence[Tensor]
) -> None:
    if node is None:
        return
    node.buffers = [None] * len(outputs)
    for place, output in enumerate(outputs):
        tape.finish(node, output, save if place == 0 else ())
        output.output = place


EXPERT_ROWS = 64
"""Rows per program of Liger's kernels: ops/fused_moe.py, ``BLOCK_M_TOKEN``."""


@opaque
def experts(
    tape: Tape,
    x: Tensor,
    stacks: tuple[Tensor, Tensor],
    shares: Tensor,
    pairs: int,
    width: int,
    count: int,
) -> Tensor:
    """A mixture's experts in one function: each token's rows are gathered, multiplied, gated, multiplied and summed.

        saved: the input T · h, T · k · 2f before the gate, three int32 indices     k: experts a token, f: their width

    Backward recomputes the gated rows, T · k · f, and allocates full gradients of both stacks, even frozen ones; all
    live until it returns. ``pairs``: T · k. The list of programs has at most one extra entry per expert.

    Source: liger-kernel 0.8.5, ops/fused_moe.py, ``LigerFusedMoEFunction``, ``compute_routing_metadata``.
    """
    tape.operation = "experts"
    hidden, byte_width = x.elements, x.width
    up, down = ((stack.elements, stack.width) for stack in stacks)
    columns = up[0] // (2 * width * count)
    share_width = shares.width

    def backward(t: Tape, _: Gradients) -> Gradients:
        before_gate, after = t.new(pairs * 2 * width, byte_width), t.new(pairs * width, byte_width)
        of_shares = t.new(pairs, byte_width)
        of_down = t.new(*down)
        rows, of_x = t.new(pairs * columns, byte_width), t.new(hidden, byte_width)
        of_up = t.new(*up)
        del before_gate, after, rows
        return [of_x, of_up, of_down, op.cast(t, of_shares, share_width)]

    node = tape.begin("experts backward", [x, *stacks, shares], backward)
    programs = ceil_div(pairs, EXPERT_ROWS) + count
    lists = [tape.new(size, 4) for size in (pairs, pairs, pairs, programs, programs, count + 1)]
    before_gate = tape.new(pairs * 2 * width, byte_width)
    after, rows = tape.new(pairs * width, byte_width), tape.new(pairs * columns, byte_width)
    out = tape.new(hidden, byte_width)
    del after, rows
    return tape.finish(node, out, [x, *stacks, before_gate, shares, *lists])


@opaque
def linear_cross_entropy(
    tape: Tape,
    hidden: Tensor,
    weight: Tensor,
    in_features: int,
    vocabulary: int,
    *,
    budget: int = 1,
) -> Tensor:
    """Head and cross-entropy in chunks of tokens; forward computes the gradients and saves them for backward.

        chunk = next power of two from  ⌈T / ⌈V / (c · h)⌉⌉, at most T     T: tokens, V: vocabulary, h: hidden size
                                                                           c: ``budget``, 1 but for some families

    Saves the gradient of the hidden states, T · h, and that of a trained head, V · h, each in its tensor's dtype;
    backward allocates nothing. One buffer of chunk · V logits serves all chunks. cuBLAS adds a chunk to the head's
    gradient in place, except in float32, where the product is a temporary of V · h. Where autocast's dtype differs from
    the head's there is no such buffer: every chunk casts the head twice, and autocast caches one of the two casts of a
    trained head.

    Leaves out: the float32 copies of V · h on cards below compute capability 8.0, where cuBLAS does not sum into the
    16-bit gradient.

    Source: liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py, ``fused_linear_cross_entropy_forward``;
    transformers/model/loss_utils.py, ``LigerForCausalLMLoss`` (labels are shifted before).
    """
    tokens = hidden.elements // in_features
    tape.operation = "shifted labels"
    padded, shifted = tape.new(tokens + 1, INDEX_BYTES), tape.new(tokens, INDEX_BYTES)
    tape.operation = "head's gradients, made with the loss"
    node = tape.begin(
        "head's gradients",
        [hidden, weight],
        lambda t, g: [
            _saved(t, 0, hidden_elements, hidden_width),
            _saved(t, 1, weight_elements, weight_width) if trained else None,
        ],
    )
    hidden_elements, hidden_width = hidden.elements, hidden.width
    weight_elements, weight_width, trained = weight.elements, weight.width, weight.requires_grad
    gradient = tape.new(hidden_elements, hidden_width)
    kept = [gradient, tape.new(weight_elements, weight_width, GRADIENTS)] if trained else [gradient]
    losses, scored = tape.new(tokens, 4), tape.new(tokens, 1)
    chunks = ceil_div(vocabulary, budget * in_features)
    chunk = min(tokens, next_power_of_2(ceil_div(tokens, chunks)))
    compute = tape.autocast_width if tape.autocast_active else None
    tape.operation = "logits of one chunk of tokens"
    if hidden_width == weight_width and compute in (None, hidden_width):
        logits = tape.new(chunk * vocabulary, hidden_width, LOGITS)
        if trained and hidden_width == 4:
            tape.operation = "head's gradient of one chunk of tokens"
            tape.new(weight_elements, 4)  # the product, before it is added
        del logits
    else:
        _chunk(tape, chunk, weight, in_features, vocabulary, compute or hidden_width)
        if chunk < tokens:  # the first chunk left a cast of the head in autocast's cache
            rows = min(chunk, tokens - chunk)
            _chunk(tape, rows, weight, in_features, vocabulary, compute or hidden_width)
    del padded, shifted, losses, scored
    return tape.finish(node, tape.new(1, 4), kept)


def _chunk(
    tape: Tape, rows: int, weight: Tensor, in_features: int, vocabulary: int, width: int
) -> None:
    """One chunk where autocast's dtype differs: its logits, the gradient of its rows, that of the head."""
    tape.operation = "head's cast for one chunk of tokens"
    casts = [tape.new(rows * in_features, width), tape.new(weight.elements, width)]
    tape.operation = "logits of one chunk of tokens"
    logits = tape.new(rows * vocabulary, width, LOGITS)
    del casts
    cast = op.cast_weight(tape, weight, width)
    product = tape.new(rows * in_features, width)
    del cast, product
    if weight.requires_grad:
        rows_cast = tape.new(rows * in_features, width)
        del rows_cast
    del logits


def _over_logits(tape: Tape, logits: Tensor) -> Node | None:
    """The node of a loss whose gradient is written over the logits."""
    tape.operation = "cross-entropy"
    elements, width = logits.elements, logits.width
    name = "cross-entropy backward"
    return tape.begin(name, [logits], lambda t, g: [_saved(t, 0, elements, width)])


@opaque
def cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """Cross-entropy over full logits: forward writes their gradient over them and saves only that.

    Source: liger-kernel 0.8.5, ops/cross_entropy.py, ``cross_entropy_forward``, ``LigerCrossEntropyFunction``.
    """
    node = _over_logits(tape, logits)
    return tape.finish(node, tape.new(1, 4), [logits])


@opaque
def flash_cross_entropy(tape: Tape, logits: Tensor, tokens: int) -> Tensor:
    """The log-probability of each token: keeps the logits and a number of each token; backward writes over the logits.

    Source: flash-attn 2.8.3, ops/triton/cross_entropy.py, ``CrossEntropyLoss``; verl 0.9.1, utils/torch_functional.py,
    ``logprobs_from_logits`` (``inplace_backward=True``).
    """
    node = _over_logits(tape, logits)
    log_sum = tape.new(tokens, 4)
    return tape.finish(node, tape.new(tokens, 4), [logits, log_sum])


TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
"""Rows and columns of one of TRL's tiles of logits: trl 1.16, kernels/chunked_logprob.py, ``TOKEN_CHUNK_SIZE``, and
trainer/utils.py, ``_CHUNKED_LOGPROB_CHUNK_SIZE``."""
ROW_STATISTICS = 7
"""Running maxima and sums that TRL's kernel keeps for each token, in float32: the first of the two files."""


class _Tiles(NamedTuple):
    """The tiles of logits in which TRL computes its loss: counts, and widths in bytes."""

    tokens: int
    vocabulary: int
    in_features: int
    hidden_width: int
    weight_width: int
    width: int
    """Of the products."""

    def play(self, t: Tape, *, names_columns: bool) -> list[Tensor | None]:
        """One tile of logits, refilled; returned with what the loop's names still hold of its casts."""
        width = self.width
        t.operation = "one tile of logits"
        logits = t.new(smaller(self.tokens, TILE_TOKENS) * TILE_VOCABULARY, width, LOGITS)
        of_hidden = of_head = None
        if (
            self.hidden_width == self.weight_width == width
        ):  # the tiles that follow allocate nothing
            t.multiplied()
            return [logits, of_hidden, of_head]
        t.operation = "casts for one tile of logits"
        for rows in _chunks(self.tokens, TILE_TOKENS):
            if self.hidden_width != width:
                of_hidden = t.new(rows * self.in_features, width)
            for columns in _chunks(self.vocabulary, TILE_VOCABULARY):
                if self.weight_width != width:
                    of_head = t.new(columns * self.in_features, width)
                t.multiplied()
                if not names_columns:
                    of_head = None
        return [logits, of_hidden, of_head]


@opaque
def log_probabilities(
    tape: Tape,
    hidden: Tensor,
    weight: Tensor,
    in_features: int,
    texts: int,
    tokens: int,
    gather: Callable[[Tape], Tensor | None] = lambda _: None,
) -> Tensor:
    """TRL's head and loss: log-probabilities of the labels in tiles of logits, which backward computes again.

        tile = min(N, 4096) · 32768     N: ``tokens`` that have a label, at most all but the last of each of the texts

    Saves a copy of the scored hidden states, N · h. Backward sums the gradients in float32, N · h and, for a trained
    head, V · h, and holds both beside their casts. Where autocast's dtype differs, a tile's rows and columns are cast;
    the last cast is held until the next replaces it or the function returns (of columns in backward alone).

    ``gather``: what both directions hold of a weight that is divided between GPUs.

    Leaves out: the indices that PyTorch sorts to scatter the scored gradients, 40 bytes a token.

    Source: trl 1.16, kernels/chunked_logprob.py, ``ChunkedLogProbFunction``; trainer/utils.py, ``add_fused_lm_head``;
    trainer/sft_trainer.py (entropy and accuracy are computed too).
    """
    positions, vocabulary = hidden.elements // in_features - texts, weight.elements // in_features
    tape.operation = "tokens with a label"
    mask = tape.new(positions, 1)
    scored = op.part(tape, hidden, positions * in_features)
    scored = op.gather(tape, scored, mask, tokens * in_features, "tokens with a label")
    targets = tape.new(tokens, INDEX_BYTES)
    width = scored.width
    if tape.autocast_active and tape.autocast_width is not None:
        width = tape.autocast_width
    hidden_size, hidden_width = scored.elements, scored.width
    weight_size, weight_width, trained = weight.elements, weight.width, weight.requires_grad
    tiles = _Tiles(tokens, vocabulary, in_features, hidden_width, weight_width, width)

    def backward(t: Tape, _: Gradients) -> Gradients:
        whole = gather(t)
        summed = t.new(hidden_size, 4)
        summed_head = t.new(weight_size, 4) if trained else None
        held = tiles.play(t, names_columns=True)
        gradient = op.cast(t, summed, hidden_width)
        head = None if summed_head is None else op.cast(t, summed_head, weight_width)
        del held, whole
        return [gradient, head]

    whole = gather(tape)
    node = tape.begin("head's gradients, tile by tile", [scored, weight], backward)
    statistics = [tape.new(tokens, 4) for _ in range(ROW_STATISTICS)]
    held = tiles.play(tape, names_columns=False)
    tape.operation = "log-probabilities"
    log_sum, found, entropy, is_best = (tape.new(tokens, size) for size in (4, 4, 4, 1))
    del statistics, held, whole
    found = tape.finish(node, found, [scored, weight, targets, log_sum, entropy])
    del scored, targets, log_sum
    found = op.gather(tape, found, mask, positions, "log-probabilities")
    loss = op.mean(tape, found, 1, "loss")
    del entropy, is_best
    return loss


def _chunks(size: int, at_once: int) -> list[int]:
    """The sizes of a loop's chunks: the first, the second and the last; those between are like the second.

    >>> _chunks(9, 4), _chunks(21, 4), _chunks(3, 4)
    ([4, 4, 1], [4, 4, 1], [3])
    """
    if size <= at_once:
        return [size]
    if size <= 2 * at_once:
        return [at_once, size - at_once]
    return [at_once, at_once, size - at_once * (ceil_div(size, at_once) - 1)]


@opaque
def selected_log_softmax(tape: Tape, logits: Tensor, indices: Tensor) -> Tensor:
    """The log-probability of one word at each position, in one kernel that saves the logits themselves.

    Backward allocates a gradient of the logits' size.

    Source: trl 1.16, kernels/logprob_entropy.py, ``_LogProbEntropyFunction``.
    """
    tape.operation = "log-probabilities"
    elements, width, rows = logits.elements, logits.width, indices.elements
    node = tape.begin(
        "log-probabilities backward", [logits], lambda t, g: [t.new(elements, width, LOGITS)]
    )
    found, entropy, log_sum, expected = (tape.new(rows, 4) for _ in range(4))
    del entropy
    return tape.finish(node, found, [logits, indices, log_sum, expected])
