"""Single operators under our rules, at the sizes that tests/verify/test_operators.py uses for real torch."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from estimator.families.activations import activation, bloom_gelu
from estimator.families.family import Rotary
from estimator.families.rotary import Tables, rotate
from estimator.tape import operators as op
from estimator.tape import scan
from estimator.tape.attention import AttentionShape, attention, scaled_dot_product
from estimator.tape.float8 import linear_float8
from estimator.tape.tape import Parameter, Tape, Tensor
from estimator.values.specs import AttnImplementation, Phase

BATCH, LENGTH = 2, 192
T = BATCH * LENGTH
"""Tokens: one float32 per token is 1,536 bytes, three blocks of 512, so one number more or less is noticed."""
ODD = 383
"""Tokens that FP8's products pad."""
H, OUT, VOCABULARY = 640, 896, 1000
HEADS, KV_HEADS, HEAD_DIM = 10, 5, 64
Q, KV = T * HEADS * HEAD_DIM, T * KV_HEADS * HEAD_DIM
CHOSEN = 4
"""Chosen per row by ``top_k``."""
EXPERTS = 3
LOSS_BYTES = 512
TABLE = Path(__file__).parent / "reference" / "operators.csv"
WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}


class Measured(NamedTuple):
    """Bytes that one operator takes, without its weights and constants."""

    kept: int
    """Bytes saved for backward once forward's input and output are released."""
    forward: int
    """Peak of forward; the caller holds the inputs."""
    backward: int
    """Peak of backward, including the loss and the outputs' gradients, but not the loss's own gradient, which
    PyTorch's Python frame holds longer than our tape does."""


class Played:
    """A tape with inputs that need a gradient, and with weights and constants that are counted elsewhere."""

    def __init__(self, dtype: str, *, autocast: bool) -> None:
        self.width = WIDTHS[dtype]
        self.tape = Tape(
            autocast_width=2 if autocast else None,
            is_float16=dtype == "float16",
        )
        self._weights = 0

    def input(self, elements: int, width: int | None = None, *, grad: bool = True) -> Tensor:
        """The output of an earlier operator that passes its gradient to nothing."""
        x = self.tape.new(elements, width or self.width)
        if not grad:
            return x
        return self.tape.record("source backward", x, [_NEEDED], lambda t, g: [None])

    def weight(self, elements: int, *, trained: bool = True) -> Parameter:
        self._weights += 1
        return Parameter(f"weight {self._weights}", elements, self.width, trainable=trained)

    def constant(self, elements: int, width: int | None = None) -> Tensor:
        """An existing tensor of indices, a mask or a table."""
        return Tensor(elements, width or self.width, None)


_NEEDED = Tensor(0, 4, None)
_NEEDED.requires_grad = True

Play = Callable[[Tape, Played], Tensor | Sequence[Tensor]]


def measure(play: Play, dtype: str, *, autocast: bool) -> Measured:
    """One operator forward and backward."""
    played = Played(dtype, autocast=autocast)
    tape = played.tape
    outputs = play(tape, played)
    tape.cast_cache.clear()
    tape.autocast_active = False
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    forward = len(tape.events)
    loss = _sink(tape, outputs)
    del outputs
    kept = len(tape.events)
    root, loss.node = loss.node, None
    tape.go_to(Phase.BACKWARD, root.stage, root.place)
    root.buffers[0] = played.constant(1, 4)
    tape._run_graph(root)
    alive = list(accumulate(event.sign * event.size for event in tape.events))
    return Measured(alive[kept - 1] - LOSS_BYTES, max(alive[:forward]), max(alive[kept:]))


def _sink(tape: Tape, outputs: Sequence[Tensor]) -> Tensor:
    """A loss that saves nothing and passes a new gradient to each output."""
    sizes = [(x.elements, x.width) for x in outputs]
    return tape.record(
        "sink backward", tape.new(1, 4), outputs, lambda t, g: [t.new(*size) for size in sizes]
    )


def read_table() -> dict[tuple[str, str], Measured]:
    """What real torch takes, by operator and dtype."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {
            (row["operator"], row["dtype"]): Measured(
                *(int(row[name]) for name in Measured._fields)
            )
            for row in csv.DictReader(file)
        }


def write_table(rows: Mapping[tuple[str, str], Measured]) -> None:
    """Rewrite the file."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["operator", "dtype", *Measured._fields])
        writer.writerows([*row, *measured] for row, measured in rows.items())


class Case(NamedTuple):
    """One rule at one size."""

    play: Play
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    autocast: bool = False


def _linear(*, trained: bool, bias: bool, needs_x: bool = True, by: str = "linear") -> Play:
    rule = getattr(op, by)

    def play(tape: Tape, played: Played) -> Tensor:
        x = played.input(T * H, grad=needs_x)
        b = played.weight(OUT, trained=trained) if bias else None
        return rule(tape, x, played.weight(OUT * H, trained=trained), b, H, OUT, "linear")

    return play


def _float8(
    *, trained: bool = True, bias: bool = False, tokens: int = T, pads: bool = True
) -> Play:
    def play(tape: Tape, played: Played) -> Tensor:
        x, b = played.input(tokens * H), played.weight(OUT, trained=trained) if bias else None
        weight = played.weight(OUT * H, trained=trained)
        return linear_float8(tape, x, weight, b, H, OUT, "linear", pads=pads)

    return play


def _norm(rule: Callable[..., Tensor], *, trained: bool = True, **keys: bool) -> Play:
    def play(tape: Tape, played: Played) -> Tensor:
        return rule(tape, played.input(T * H), played.weight(H, trained=trained), T, **keys)

    return play


def _layer_norm(*, trained: bool = True, bias: bool = True, in_float32: bool = False) -> Play:
    def play(tape: Tape, played: Played) -> Tensor:
        weights = [played.weight(H, trained=trained) for _ in range(1 + bias)]
        return op.layer_norm(tape, played.input(T * H), weights, T, in_float32=in_float32)

    return play


def _unary(rule: Callable[..., Tensor], *arguments: object, **keys: object) -> Play:
    """A rule of one input, T · h."""
    return lambda tape, played: rule(tape, played.input(T * H), *arguments, **keys)


def _binary(
    rule: Callable[..., Tensor], *, second: int = T * H, grads: tuple[bool, bool] = (True, True)
) -> Play:
    """A rule of two inputs, of which the second may be broadcast."""

    def play(tape: Tape, played: Played) -> Tensor:
        a, b = played.input(T * H, grad=grads[0]), played.input(second, grad=grads[1])
        return rule(tape, a, b)

    return play


def _gated(name: str) -> Play:
    def play(tape: Tape, played: Played) -> Tensor:
        gate, up = played.input(T * H), played.input(T * H)
        return op.multiply(tape, activation(tape, gate, name), up, "gate × up")

    return play


def attention_shape(**keys: object) -> AttentionShape:
    sizes = {
        "batch": BATCH,
        "length": LENGTH,
        "heads": HEADS,
        "key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "value_head_dim": HEAD_DIM,
        "implementation": AttnImplementation.SDPA,
    }
    return AttentionShape(**(sizes | keys))


def _kernel(*, mask: bool = False, groups: bool = False) -> Play:
    """One fused kernel; with a mask, also its bias."""

    def play(tape: Tape, played: Played) -> Tensor:
        q, k, v = played.input(Q), *(played.input(KV if groups else Q) for _ in range(2))
        bias = played.constant(BATCH * LENGTH * LENGTH) if mask else None
        shape = attention_shape(key_value_heads=KV_HEADS if groups else HEADS)
        return scaled_dot_product(tape, q, k, v, bias, shape, groups_heads=groups)

    return play


def _eager(**keys: object) -> Play:
    def play(tape: Tape, played: Played) -> Tensor:
        q, k, v = played.input(Q), played.input(KV), played.input(KV)
        shape = attention_shape(
            implementation=AttnImplementation.EAGER, key_value_heads=KV_HEADS, **keys
        )
        return attention(tape, q, k, v, played.constant(BATCH * LENGTH * LENGTH), shape)[0]

    return play


def _rotary(
    kind: Rotary,
    table_width: int | None = None,
    tables: int = LENGTH * HEAD_DIM,
    share: float = 1.0,
) -> Play:
    def play(tape: Tape, played: Played) -> Sequence[Tensor]:
        table = Tables(played.constant(tables, table_width), played.constant(tables, table_width))
        q, k = played.input(Q), played.input(KV)
        return rotate(tape, q, k, table, kind, share=share, head_dim=HEAD_DIM)

    return play


def _rotary_complex(tape: Tape, played: Played) -> Sequence[Tensor]:
    q, k = played.input(Q), played.input(KV)
    table = played.constant(LENGTH * HEAD_DIM, 4)
    tables = Tables(table, table)
    return rotate(tape, q, k, tables, Rotary.COMPLEX, share=1.0, head_dim=HEAD_DIM)


SCAN_HEADS, SCAN_DIM, STATE, GROUPS, CHUNK = 6, 40, 48, 2, 64


def _scan(batch: int, length: int, groups: int = GROUPS) -> Play:
    """Mamba 2's scan of ``batch`` texts; its inputs are in 16 or 32 bits, the decays in 32."""

    def play(tape: Tape, played: Played) -> Tensor:
        shape = scan.ScanShape(batch, length, SCAN_HEADS, SCAN_DIM, STATE, groups, CHUNK)
        tokens = batch * length
        inputs = scan.Inputs(
            x=played.input(tokens * SCAN_HEADS * SCAN_DIM),
            step=played.input(tokens * SCAN_HEADS),
            decay=played.input(SCAN_HEADS, 4),
            b=played.input(tokens * groups * STATE),
            c=played.input(tokens * groups * STATE),
            skip=played.weight(SCAN_HEADS),
            step_bias=played.weight(SCAN_HEADS),
        )
        return scan.scan(tape, shape, inputs)

    return play


def _split(tape: Tape, played: Played) -> Sequence[Tensor]:
    return op.split(tape, played.input(T * H), [T * H // 2] * 2)


def _concatenate(tape: Tape, played: Played) -> Tensor:
    return op.concatenate(tape, [played.input(T * H), played.input(T * OUT)])


def _embedding(tape: Tape, played: Played) -> Tensor:
    return op.embedding(tape, played.constant(T, 8), played.weight(VOCABULARY * H), H, T)


def _matmul(*, copies: bool = False) -> Play:
    def play(tape: Tape, played: Played) -> Tensor:
        q, k = played.input(Q), played.input(Q)
        scores = BATCH * HEADS * LENGTH**2
        return op.matmul(tape, q, k, scores, "product", copies=(copies, copies))

    return play


def _top_k(tape: Tape, played: Played) -> Tensor:
    return op.top_k(tape, played.input(T * H), T * CHOSEN)[0]


def _gather(tape: Tape, played: Played) -> Tensor:
    return op.gather(
        tape, played.input(T * H), played.constant(T * CHOSEN, 8), T * CHOSEN * H, "gather"
    )


def _scattered(tape: Tape, played: Played) -> Tensor:
    return op.scattered(
        tape, played.input(T * CHOSEN), played.constant(T * CHOSEN, 8), T * H, "scatter"
    )


def _choose(tape: Tape, played: Played) -> Tensor:
    return op.choose(tape, played.constant(T * H, 1), played.input(T * H), played.input(T * H))


def _masked_fill(tape: Tape, played: Played) -> Tensor:
    return op.masked_fill(tape, played.input(T * H), played.constant(T * H, 1))


def _divide_by_constant(tape: Tape, played: Played) -> Tensor:
    return op.divide_by_constant(tape, played.input(T * H), played.constant(1, 4), "quotient")


def _grouped(*, trained: bool) -> Play:
    def play(tape: Tape, played: Played) -> Tensor:
        stack = played.weight(EXPERTS * H * OUT, trained=trained)
        return op.grouped_matmul(tape, played.input(T * H), stack, H, OUT, "experts")

    return play


def _folded(tape: Tape, played: Played) -> Tensor:
    b, a = played.input(EXPERTS * OUT * CHOSEN), played.input(EXPERTS * CHOSEN * H)
    return op.folded(tape, played.weight(EXPERTS * OUT * H, trained=False), b, a)


def _cross_entropy(tape: Tape, played: Played) -> Tensor:
    logits = op.cast(tape, played.input(T * VOCABULARY), 4)
    return op.log_softmax_loss(tape, logits, played.constant(T, 8))


def _filled(tape: Tape, played: Played) -> Tensor:
    return op.filled(tape, [played.input(T * H), played.input(T * H)], played.width)


def _add_to_slice(tape: Tape, played: Played) -> Tensor:
    x, b = played.input(T * H), played.input(T * H // 2)
    return op.add_to_slice(tape, x, b, T * H // 2)


def _add_in_place(tape: Tape, played: Played) -> Tensor:
    return op.add_in_place(tape, played.input(T * H), played.input(T * H))


def _two_linears_of_one_weight(tape: Tape, played: Played) -> Sequence[Tensor]:
    """Autocast casts a weight once but each input every time."""
    x, weight = played.input(T * H), played.weight(OUT * H)
    return [op.linear(tape, x, weight, None, H, OUT, "linear") for _ in range(2)]


def _softplus(tape: Tape, played: Played) -> Tensor:
    return op.elementwise(tape, played.input(T * H), "softplus")


CASES: dict[str, Case] = {
    "cast": Case(lambda t, played: op.cast(t, played.input(T * H), 6 - played.width)),
    "add a number": Case(_unary(op.add_number)),
    "multiply by a number": Case(_unary(op.scale)),
    "multiply by a number in place": Case(_unary(op.scale_in_place)),
    "multiply by noise in place": Case(_unary(op.multiply_in_place, "noise")),
    "multiply a view by noise in place": Case(
        _unary(op.multiply_in_place, "noise", is_of_view=True)
    ),
    "add": Case(_binary(op.add)),
    "add, broadcast": Case(_binary(op.add, second=H)),
    "add in place": Case(_add_in_place),
    "add to a slice": Case(_add_to_slice),
    "subtract": Case(_binary(op.subtract)),
    "subtract, broadcast": Case(_binary(op.subtract, second=T)),
    "multiply": Case(_binary(op.multiply)),
    "multiply, broadcast": Case(_binary(op.multiply, second=T)),
    "multiply, one gradient": Case(_binary(op.multiply, grads=(True, False))),
    "divide": Case(_binary(op.divide)),
    "divide, broadcast": Case(_binary(op.divide, second=T)),
    "divide by a constant": Case(_divide_by_constant),
    "square": Case(_unary(op.square)),
    "mean": Case(_unary(op.mean, T)),
    "standard deviation": Case(_unary(op.deviation, T)),
    "largest of each row": Case(_unary(op.largest, T)),
    "clamp below": Case(_unary(op.clamp, both_sides=False)),
    "clamp": Case(_unary(op.clamp, both_sides=True)),
    "softmax": Case(_unary(op.softmax)),
    "dropout": Case(_unary(op.dropout, 0.1)),
    "no dropout": Case(_unary(op.dropout, 0.0)),
    "where": Case(_choose),
    "masked_fill": Case(_masked_fill),
    "clone": Case(_unary(op.clone)),
    "view": Case(_unary(op.viewed)),
    "slice": Case(_unary(op.part, T * H // 2)),
    "pick": Case(_unary(op.pick, T)),
    "split": Case(_split),
    "concatenate": Case(_concatenate),
    "pad": Case(_unary(op.pad, T * OUT)),
    "copies into one tensor": Case(_filled),
    "repeat": Case(_unary(op.repeat, 3)),
    "expand": Case(lambda t, played: op.expand(t, played.input(T), T * H)),
    "repeat_kv": Case(lambda t, played: op.repeat_heads(t, played.input(KV), 2)),
    "repeat_kv of one head": Case(
        lambda t, played: op.expand_heads(t, played.input(T * HEAD_DIM), HEADS)
    ),
    "top_k": Case(_top_k),
    "gather rows": Case(_gather),
    "scatter": Case(_scattered),
    "sum of experts": Case(
        lambda t, played: op.sum_of_experts(t, played.input(T * CHOSEN * H), T * H)
    ),
    "grouped product": Case(_grouped(trained=True), ("bfloat16",)),
    "grouped product, frozen": Case(_grouped(trained=False), ("bfloat16",)),
    "adapters folded into experts": Case(_folded),
    "embedding": Case(_embedding),
    "cross-entropy": Case(_cross_entropy),
    "linear": Case(_linear(trained=True, bias=False)),
    "linear with bias": Case(_linear(trained=True, bias=True)),
    "linear, frozen": Case(_linear(trained=False, bias=True)),
    "linear of an input without gradient": Case(_linear(trained=True, bias=True, needs_x=False)),
    "linear under autocast": Case(_linear(trained=True, bias=False), autocast=True),
    "linear with bias under autocast": Case(_linear(trained=True, bias=True), autocast=True),
    "linear, frozen, under autocast": Case(_linear(trained=False, bias=True), autocast=True),
    "two linears of one weight under autocast": Case(_two_linears_of_one_weight, autocast=True),
    "linear in FP8": Case(_float8()),
    "linear in FP8 with bias": Case(_float8(bias=True)),
    "linear in FP8, frozen": Case(_float8(trained=False, bias=True)),
    "linear in FP8 without padding": Case(_float8(pads=False)),
    "linear in FP8 of an odd number of tokens": Case(_float8(tokens=ODD)),
    "product": Case(_linear(trained=True, bias=True, by="product")),
    "product under autocast": Case(_linear(trained=True, bias=True, by="product"), autocast=True),
    "matmul": Case(_matmul()),
    "matmul of transposed heads": Case(_matmul(copies=True)),
    "matmul under autocast": Case(_matmul(), autocast=True),
    "RMSNorm": Case(_norm(op.rms_norm)),
    "RMSNorm, frozen": Case(_norm(op.rms_norm, trained=False)),
    "RMSNorm, Gemma": Case(_norm(op.rms_norm_float32, one_plus=True)),
    "RMSNorm, OLMo 2": Case(_norm(op.rms_norm_float32, one_plus=False)),
    "RMSNorm, Gemma 4": Case(_norm(op.rms_norm_by_power)),
    "RMSNorm, Gemma 4, without a weight": Case(
        lambda t, played: op.rms_norm_by_power(t, played.input(T * H), None, T)
    ),
    "L2Norm, Llama 4": Case(_unary(op.l2_norm, T)),
    "LayerNorm": Case(_layer_norm()),
    "LayerNorm without bias": Case(_layer_norm(bias=False)),
    "LayerNorm, frozen": Case(_layer_norm(trained=False)),
    "LayerNorm under autocast": Case(_layer_norm(), autocast=True),
    "LayerNorm, Cohere": Case(_norm(op.layer_norm_in_steps)),
    "LayerNorm, Nemotron": Case(
        lambda t, played: op.layer_norm_plus_one(
            t, played.input(T * H), [played.weight(H), played.weight(H)], T
        )
    ),
    "LayerNorm, OLMo": Case(
        lambda t, played: op.layer_norm(t, played.input(T * H), [], T, in_float32=True)
    ),
    "silu": Case(_unary(activation, "silu")),
    "gelu": Case(_unary(activation, "gelu")),
    "gelu_pytorch_tanh": Case(_unary(activation, "gelu_pytorch_tanh")),
    "gelu_new": Case(_unary(activation, "gelu_new")),
    "gelu_fast": Case(_unary(activation, "gelu_fast")),
    "gelu, BLOOM": Case(_unary(bloom_gelu)),
    "relu": Case(_unary(activation, "relu")),
    "relu2": Case(_unary(activation, "relu2")),
    "sigmoid": Case(_unary(activation, "sigmoid")),
    "tanh": Case(_unary(activation, "tanh")),
    "xielu": Case(
        lambda t, played: activation(t, played.input(T * H), "xielu", [played.weight(1)] * 2)
    ),
    "silu × up": Case(_gated("silu")),
    "gelu_pytorch_tanh × up": Case(_gated("gelu_pytorch_tanh")),
    "softplus": Case(_softplus),
    "exponential": Case(_unary(scan._exponential)),
    "cumulative sum": Case(_unary(scan._cumulated)),
    "repeat_interleave": Case(_unary(scan._repeated, 3)),
    "rotary": Case(_rotary(Rotary.HALVES)),
    "rotary, OLMo": Case(_rotary(Rotary.CAST_BACK, 4)),
    "rotary, GLM": Case(_rotary(Rotary.PAIRS, tables=LENGTH * HEAD_DIM // 2, share=0.5)),
    "rotary, Cohere": Case(_rotary(Rotary.FLOAT32_PAIRS)),
    "rotary, DeepSeek V2": Case(_rotary_complex),
    "rotary, DeepSeek V3": Case(_rotary(Rotary.SPLIT_PAIRS)),
    "rotary, ERNIE": Case(_rotary(Rotary.FLOAT32_SPREAD_PAIRS, 4)),
    "scan of one chunk": Case(_scan(1, CHUNK)),
    "scan of several chunks": Case(_scan(1, 3 * CHUNK)),
    "scan of several chunks, the last filled up": Case(_scan(1, 3 * CHUNK - 7)),
    "scan of several texts of a chunk": Case(_scan(3, CHUNK)),
    "scan of several texts of several chunks": Case(_scan(2, 3 * CHUNK)),
    "scan of a group a head": Case(_scan(2, 3 * CHUNK, SCAN_HEADS)),
    "rotary, GPT-OSS": Case(_rotary(Rotary.SPLIT_HALVES, tables=LENGTH * HEAD_DIM // 2)),
    "flash attention": Case(_kernel(), ("bfloat16", "float16")),
    "flash attention of grouped heads": Case(_kernel(groups=True), ("bfloat16", "float16")),
    "memory-efficient attention": Case(_kernel(), ("float32",)),
    "memory-efficient attention with a mask": Case(_kernel(mask=True)),
    "eager attention": Case(_eager()),
    "eager attention with dropout": Case(_eager(dropout=0.1)),
    "eager attention with softcap": Case(_eager(softcap=True)),
}
