"""Kernels that several operators are fused into: what each allocates, saves, and allocates in backward.

Liger's are Triton kernels behind autograd functions in Python, which allocate all that they write. Many write a
gradient over what they have saved, or over the gradient that comes in.

Source, where a rule names no other: liger-kernel 0.8.5, ops/*.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from estimator.tape import operators as op
from estimator.tape.operators import INDEX_BYTES, Gradients
from estimator.tape.symbols import next_power_of_2
from estimator.tape.tape import GRADIENTS, LOGITS, Node, Tape, Tensor
from estimator.values.arithmetic import ceil_div

MULTIPROCESSORS = 132
"""Rows of the partial gradients of a norm's weight: the card's multiprocessors. An H100 has 132, NVIDIA H100 datasheet;
an A100's 108 make them 0.4 MiB smaller at a width of 4,096, for the time of one operator."""


def _over(x: Tensor) -> Tensor:
    """A gradient written over a tensor that nobody else needs any more, and returned as another view of it."""
    return Tensor(x.elements, x.width, x.storage, is_view=True)


def _saved(tape: Tape, position: int, elements: int, width: int) -> Tensor:
    """What the running node saved: the gradient itself, or to be written over by it."""
    return Tensor(elements, width, tape.unpacked[position])


def rms_norm(
    tape: Tape, x: Tensor, weight: Tensor, rows: int, *, in_place: bool, copies: bool = False
) -> Tensor:
    """RMSNorm in one kernel: saves x as it came and a float32 number a row; no float32 copy of x.

    Backward writes the gradient of x over the incoming one (``in_place``) or beside it; the weight's is summed in
    float32 by every multiprocessor for itself, if it is trained. What does not lie row by row is copied
    (``copies``).

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


def gated(tape: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) × up`` (or gelu) in one kernel: saves both factors, and writes their gradients over them.

    Halves of one tensor are copied first: the kernel wants rows without gaps.

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


def rotate(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    tables: Sequence[Tensor],
    *,
    copies: bool = False,
    copies_gradients: bool = False,
) -> tuple[Tensor, Tensor]:
    """Queries and keys turned where they lie, forward and backward: saves the tables alone.

    Slices of a fused projection and heads that lie one after the other (``copies``) are copied first. So are gradients
    that attention hands back head by head (``copies_gradients``).

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
"""Rows that one program of Liger's kernels takes: ops/fused_moe.py, ``BLOCK_M_TOKEN``."""


def experts(
    tape: Tape,
    x: Tensor,
    stacks: tuple[Tensor, Tensor],
    shares: Tensor,
    pairs: int,
    width: int,
    count: int,
) -> Tensor:
    """A mixture's experts in one function: each token's rows gathered, multiplied, gated, multiplied and summed.

        saved: T · h as it came, T · k · 2f before the gate, three int32 indices     k: experts a token, f: their width

    Backward makes the gated rows again, T · k · f, and the gradients of both stacks whole, also where these are frozen;
    all of it lives until it returns. ``pairs``: T · k. The list of programs counts one more for every expert, at most.

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


def linear_cross_entropy(
    tape: Tape,
    hidden: Tensor,
    weight: Tensor,
    in_features: int,
    vocabulary: int,
    *,
    budget: int = 1,
) -> Tensor:
    """Head and cross-entropy together, in chunks of tokens; the gradients are made in forward and kept for backward.

        chunk = next power of two from  ⌈T / ⌈V / (c · h)⌉⌉, at most T     T: tokens, V: vocabulary, h: hidden size
                                                                           c: ``budget``, 1 but for some families

    Saves the gradient of the hidden states, T · h, and where the head is trained its own, V · h, in the dtypes of
    these; backward allocates nothing. One buffer of chunk · V logits serves all chunks. cuBLAS adds a chunk to the
    head's gradient in place, except in float32, where the product is V · h more for a while. Where autocast computes in
    another dtype than the head's there is no such buffer: every chunk casts the head twice, and one of the two casts of
    a trained head stays in autocast's cache.

    Leaves out: the float32 copies of V · h on cards below compute capability 8.0, where cuBLAS does not sum into the
    16-bit gradient.

    Source: liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py, ``fused_linear_cross_entropy_forward``;
    transformers/model/loss_utils.py, ``LigerForCausalLMLoss`` (labels are shifted before).
    """
    tokens = hidden.elements // in_features
    tape.operation = "shifted labels"
    padded = tape.new(tokens + 1, INDEX_BYTES)
    shifted = tape.new(tokens, INDEX_BYTES)
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
    weight_elements, weight_width = weight.elements, weight.width
    trained = weight.requires_grad
    gradient = tape.new(hidden_elements, hidden_width)
    kept = [gradient, tape.new(weight_elements, weight_width, GRADIENTS)] if trained else [gradient]
    losses, scored = tape.new(tokens, 4), tape.new(tokens, 1)
    chunk = next_power_of_2(ceil_div(tokens, ceil_div(vocabulary, budget * in_features)))
    chunk = min(chunk, tokens)
    compute = tape.autocast_width if tape.autocast_active else None
    tape.operation = "logits of one chunk of tokens"
    if hidden_width == weight_width and compute in (None, hidden_width):
        logits = tape.new(chunk * vocabulary, hidden_width, LOGITS)
        if trained and hidden_width == 4:
            tape.operation = "head's gradient of one chunk of tokens"
            product = tape.new(weight_elements, 4)
            del product
        del logits
    else:
        _chunk(tape, chunk, weight, in_features, vocabulary, compute or hidden_width)
        if chunk < tokens:  # the first has left a cast of the head in autocast's cache
            rows = min(chunk, tokens - chunk)
            _chunk(tape, rows, weight, in_features, vocabulary, compute or hidden_width)
    del padded, shifted, losses, scored
    return tape.finish(node, tape.new(1, 4), kept)


def _chunk(
    tape: Tape, rows: int, weight: Tensor, in_features: int, vocabulary: int, width: int
) -> None:
    """One chunk where autocast computes in another dtype: logits, the gradient of its rows, that of the head."""
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


def cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """Cross-entropy over whole logits, whose gradient is written over them in forward; saves that alone.

    Source: liger-kernel 0.8.5, ops/cross_entropy.py, ``cross_entropy_forward``, ``LigerCrossEntropyFunction``.
    """
    tape.operation = "cross-entropy"
    elements, width = logits.elements, logits.width
    node = tape.begin(
        "cross-entropy backward", [logits], lambda t, g: [_saved(t, 0, elements, width)]
    )
    return tape.finish(node, tape.new(1, 4), [logits])


TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
"""Rows and columns of TRL's one tile of logits: trl 1.16, kernels/chunked_logprob.py, ``TOKEN_CHUNK_SIZE``, and
trainer/utils.py, ``_CHUNKED_LOGPROB_CHUNK_SIZE``."""
ROW_STATISTICS = 7
"""Running maxima and sums that TRL's kernel keeps for each token, in float32: the first of the two files."""


def log_probabilities(
    tape: Tape, hidden: Tensor, weight: Tensor, in_features: int, texts: int
) -> Tensor:
    """TRL's head and loss: log-probabilities of the labels, tile by tile, and every tile once more in backward.

        tile = min(T, 4096) · 32768     T: tokens that have a label, here all but the last of each text

    Saves the scored hidden states as a copy, T · h. Backward sums the gradients in float32, T · h and, where the head
    is trained, V · h, and holds both beside their casts. Where autocast computes in another dtype, rows and columns of
    a tile are cast for it; backward still has the columns of the last tile when it casts the next.

    Leaves out: the indices that PyTorch sorts to put the scored gradients back, 40 bytes a token.

    Source: trl 1.16, kernels/chunked_logprob.py, ``ChunkedLogProbFunction``; trainer/utils.py, ``add_fused_lm_head``;
    trainer/sft_trainer.py (entropy and accuracy are asked for too).
    """
    tokens = hidden.elements // in_features - texts
    vocabulary = weight.elements // in_features
    tape.operation = "tokens with a label"
    mask = tape.new(tokens, 1)
    scored = op.part(tape, hidden, tokens * in_features)
    scored = op.gather(tape, scored, mask, tokens * in_features, "tokens with a label")
    targets = tape.new(tokens, INDEX_BYTES)
    width = scored.width
    if tape.autocast_active and tape.autocast_width is not None:
        width = tape.autocast_width
    rows, columns = min(tokens, TILE_TOKENS), min(vocabulary, TILE_VOCABULARY)
    both = min(vocabulary, 2 * TILE_VOCABULARY)
    hidden_size, hidden_width = scored.elements, scored.width
    weight_size, weight_width, trained = weight.elements, weight.width, weight.requires_grad

    def tile(t: Tape, columns: int) -> Tensor:
        t.operation = "one tile of logits"
        logits = t.new(rows * TILE_VOCABULARY, width, LOGITS)
        t.operation = "casts for one tile of logits"
        casts = [t.new(rows * in_features, width)] if hidden_width != width else []
        if weight_width != width:
            casts.append(t.new(columns * in_features, width))
        return logits

    def backward(t: Tape, _: Gradients) -> Gradients:
        summed = t.new(hidden_size, 4)
        summed_head = t.new(weight_size, 4) if trained else None
        logits = tile(t, both)
        gradient = op.cast(t, summed, hidden_width)
        head = None if summed_head is None else op.cast(t, summed_head, weight_width)
        del logits
        return [gradient, head]

    node = tape.begin("head's gradients, tile by tile", [scored, weight], backward)
    statistics = [tape.new(tokens, 4) for _ in range(ROW_STATISTICS)]
    logits = tile(tape, columns)
    tape.operation = "log-probabilities"
    log_sum, found, entropy, is_best = (tape.new(tokens, size) for size in (4, 4, 4, 1))
    del statistics, logits
    found = tape.finish(node, found, [scored, weight, targets, log_sum, entropy])
    del scored, targets, log_sum
    found = op.gather(tape, found, mask, tokens, "log-probabilities")
    loss = op.mean(tape, found, 1, "loss")
    del entropy, is_best
    return loss
