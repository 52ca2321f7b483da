"""Every operator's rule against the bytes of real torch, and by hand where only a GPU shows them.

tests/reference/operators.csv holds what torch 2.13 and transformers 5.23 take, as tests/verify/test_operators.py counts
it.
"""

from __future__ import annotations

import pytest

from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.attention import attention, scaled_dot_product
from estimator.tape.tape import Tape, Tensor
from estimator.values.specs import AttnImplementation
from tests.operator_cases import (
    BATCH,
    CASES,
    HEAD_DIM,
    HEADS,
    KV,
    KV_HEADS,
    LENGTH,
    OUT,
    H,
    Measured,
    Played,
    Q,
    T,
    attention_shape,
    measure,
    read_table,
)
from tests.rows import for_each

TABLE = read_table()


def test_the_reference_table_covers_every_operator():
    assert set(TABLE) == {(name, dtype) for name, case in CASES.items() for dtype in case.dtypes}


@for_each(("name", "dtype"), TABLE)
def test_an_operator_takes_as_much_as_in_torch(name, dtype):
    case = CASES[name]
    assert measure(case.play, dtype, autocast=case.autocast) == TABLE[name, dtype]


# --- by hand: what the meta device does not show --------------------------------------------------

LOSS = 512
X, Y, W = T * H * 2, T * OUT * 2, H * OUT * 2
"""Bytes in 16 bits of an input, an output and a weight."""


def test_a_convolution_copies_its_input_in_forward_and_backward():
    def play(tape: Tape, played: Played) -> Tensor:
        x = played.input(T * H)
        return op.convolution(tape, x, played.weight(H * 4), T * H, "conv", bias=played.weight(H))

    filters, bias = H * 4 * 2, 1536  # 1,280 bytes as allocated
    # forward: input, its copy, output; backward: input, its copy, the gradients of output, filters, input and bias
    assert measure(play, "bfloat16", autocast=False) == Measured(
        kept=X, forward=3 * X, backward=LOSS + 4 * X + filters + bias
    )


@pytest.mark.parametrize(
    ("length", "row"),
    [(192, 192), (200, 200), (193, 200)],  # rows are padded to a multiple of 8 numbers
)
def test_a_boolean_mask_becomes_a_bias_with_rows_padded_to_eight(length, row):
    tokens = BATCH * length

    def play(tape: Tape, played: Played) -> Tensor:
        q, k, v = (played.input(tokens * HEADS * HEAD_DIM) for _ in range(3))
        mask = played.constant(tokens * length, 1)
        return scaled_dot_product(tape, q, k, v, mask, attention_shape(length=length))

    query, bias = tokens * HEADS * HEAD_DIM * 2, BATCH * length * row * 2
    made = BATCH * length * length * 2 if row > length else 0
    # log-sum-exp padded to 32 tokens; the generator's seed and offset, 512 each
    sums = BATCH * HEADS * -(-length // 32) * 32 * 4
    kept = 4 * query + sums + 2 * 512 + -(-bias // 512) * 512
    found = measure(play, "bfloat16", autocast=False)
    assert found.kept == kept
    assert found.forward <= kept + made + 512
    assert found.backward == kept + LOSS + 4 * query  # the gradients of the output, q, k and v


def test_a_4_bit_weight_is_dense_only_during_its_matmul():
    def play(tape: Tape, played: Played) -> Tensor:
        return op.linear_4bit(tape, played.input(T * H), H, OUT, 2, "linear")

    absmax = H * OUT // 64 * 4  # a float32 per 64 weights
    # forward: input, weight with its absmax, less its mean and whole, output; backward: a weight, both gradients
    assert measure(play, "bfloat16", autocast=False) == Measured(
        kept=0, forward=X + W + 2 * absmax + Y, backward=LOSS + Y + W + max(absmax, X)
    )


def test_a_4_bit_matmul_casts_a_float32_input_there_and_back():
    def play(tape: Tape, played: Played) -> Tensor:
        x = played.input(T * H)
        return op.linear_4bit(tape, x, H, OUT, 2, "linear")

    absmax = H * OUT // 64 * 4
    # forward: input in float32 and in 16 bits, weight, output; casting the output to float32 needs no more
    assert measure(play, "float32", autocast=False) == Measured(
        kept=0,
        forward=max(2 * X + X + W + 2 * absmax + Y, 2 * X + X + Y + 2 * Y),
        backward=LOSS + max(2 * Y + Y, Y + W + max(absmax, X), X + 2 * X),
    )


def test_an_8_bit_matmul_saves_its_input_and_makes_a_dense_weight_in_backward():
    def play(tape: Tape, played: Played) -> Tensor:
        return op.linear_8bit(tape, played.input(T * H), H, OUT, "linear")

    scales, packed = T * 4, T * H
    # forward: input, float16 copy, scales, input in 8 bits, its magnitudes and outliers; or sums in int32 and outputs
    quantised = X + X + scales + packed + X + packed
    multiplied = X + scales + packed + 2 * Y + Y + Y
    assert measure(play, "bfloat16", autocast=False) == Measured(
        kept=X, forward=max(quantised, multiplied), backward=LOSS + X + Y + W + X
    )


@pytest.mark.parametrize(("dtype", "copies"), [("float16", 0), ("float32", 1)])
def test_an_8_bit_matmul_casts_all_inputs_but_float16(dtype, copies):
    def play(tape: Tape, played: Played) -> Tensor:
        return op.linear_8bit(tape, played.input(T * H), H, OUT, "linear")

    scales, packed = T * 4, T * H
    x, y = (X, Y) if dtype == "float16" else (2 * X, 2 * Y)
    # input, its float16 copy, scales, input in 8 bits, its magnitudes in 16 bits and outliers; or int32 sums, a float16
    # output and its cast to the input's dtype
    quantised = x + copies * X + scales + packed + X + packed
    multiplied = x + scales + packed + 2 * Y + Y + copies * y
    weight = H * OUT * (2 if dtype == "float16" else 4)
    assert measure(play, dtype, autocast=False) == Measured(
        kept=x, forward=max(quantised, multiplied), backward=LOSS + x + y + weight + x
    )


@pytest.mark.parametrize(("dtype", "copies"), [("bfloat16", 1), ("float16", 0), ("float32", 1)])
def test_an_8_bit_matmul_with_few_outputs_peaks_while_quantising_its_input(dtype, copies):
    def play(tape: Tape, played: Played) -> Tensor:
        return op.linear_8bit(tape, played.input(T * H), H, 8, "linear")

    x = 2 * X if dtype == "float32" else X
    # the input, its float16 copy, a float32 scale per token, 8 bits, magnitudes in 16 bits, outliers of one byte
    expected = x + copies * X + T * 4 + T * H + X + T * H
    assert measure(play, dtype, autocast=False).forward == expected


def test_autocast_casts_a_convolutions_input_filters_and_bias_first():
    def play(tape: Tape, played: Played) -> Tensor:
        x = played.input(T * H)
        return op.convolution(tape, x, played.weight(H * 4), T * H, "conv", bias=played.weight(H))

    filters, bias = H * 4 * 2, 1536
    # float32 input, and in 16 bits: input, filters, bias, the input's copy, output. Kept: input and filters
    found = measure(play, "float32", autocast=True)
    assert found.forward == 2 * X + 3 * X + filters + bias
    assert found.kept == X + filters
    # saved tensors, the input's copy, gradients of output, filters, input and bias
    assert found.backward == LOSS + 4 * X + 2 * filters + bias


@pytest.mark.parametrize(
    ("keys", "values"),
    [({}, HEAD_DIM // 2), ({"head_dim": 320, "value_head_dim": 320}, 320)],
)
def test_heads_without_flash_support_pad_log_sum_exp_to_32_tokens(keys, values):
    # values narrower than keys, or heads wider than 256: the memory-efficient kernel, whose log-sum-exp of 200 tokens
    # has 224 numbers per head
    tokens, width = BATCH * 200, keys.get("head_dim", HEAD_DIM)

    def play(tape: Tape, played: Played) -> Tensor:
        q, k, v = (played.input(tokens * HEADS * size) for size in (width, width, values))
        shape = attention_shape(length=200, **{"value_head_dim": values, **keys})
        return scaled_dot_product(tape, q, k, v, None, shape)

    q, v = (tokens * HEADS * size * 2 for size in (width, values))
    kept = 2 * q + 2 * v + BATCH * HEADS * 224 * 4 + 2 * 512
    assert measure(play, "bfloat16", autocast=False).kept == kept


# --- Liger's and TRL's kernels, by hand ------------------------------------------------------------


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("copies", [True, False])
def test_ligers_norm_sums_its_weight_gradient_on_every_multiprocessor(trained, in_place, copies):
    def play(tape: Tape, played: Played) -> Tensor:
        x, weight = played.input(T * H), played.weight(H, trained=trained)
        return fused.rms_norm(tape, x, weight, T, in_place=in_place, copies=copies)

    found = measure(play, "bfloat16", autocast=False)
    assert found.kept == X + T * 4
    assert found.forward == 2 * X + copies * X + T * 4
    # the output's gradient, its copy, and x's unless written in place; 132 rows of the weight's in float32, their sum,
    # and the sum in 16 bits (1,280 bytes as allocated: 1,536)
    of_weight = trained * (132 * H * 4 + H * 4 + 1536)
    gradients = X + copies * X + (not in_place) * X
    assert found.backward == LOSS + found.kept + gradients + of_weight


@pytest.mark.parametrize("trained", [True, False])
def test_trls_loss_saves_hidden_states_and_four_numbers_per_token(trained):
    vocabulary, texts = 3 * 32768, BATCH
    tokens = T - texts

    def play(tape: Tape, played: Played) -> Tensor:
        x, head = played.input(T * H), played.weight(vocabulary * H, trained=trained)
        return fused.log_probabilities(tape, x, head, H, texts, tokens)

    def bytes_of(size: int) -> int:
        return -(-size // 512) * 512

    found = measure(play, "float32", autocast=True)
    # the scored hidden states, targets of 8 bytes, log-sum-exp and entropy of 4, and the mask of scored tokens of 1
    scored = bytes_of(tokens * H * 4)
    kept = scored + bytes_of(tokens * 8) + 2 * bytes_of(tokens * 4) + bytes_of(tokens)
    assert found.kept == kept
    # autocast: a tile of logits, rows and columns of the head cast for it; seven float32 statistics per token
    tile = tokens * 32768 * 2 + bytes_of(tokens * H * 2)
    forward = (
        T * H * 4 + scored + bytes_of(tokens) + bytes_of(tokens * 8) + 7 * bytes_of(tokens * 4)
    )
    assert found.forward == forward + tile + 32768 * H * 2
    # backward: both sums in float32, a tile, and the columns of two of them
    sums = scored + trained * vocabulary * H * 4
    backward = LOSS + kept + sums + tile + 2 * 32768 * H * 2 + bytes_of(tokens * 4)
    assert 0 <= found.backward - backward + bytes_of(tokens * 4) <= 4096


def test_unpacking_a_weight_needs_its_absmax_or_a_float32_product():
    for scales, beside in ((True, H * OUT // 64 * 4), (False, H * OUT * 4)):
        tape = Tape(autocast_width=None)
        weight = op.unpacked(tape, H * OUT, 2, "linear", scales=scales)
        sizes = [event.sign * event.size for event in tape.events]
        assert sizes == [beside, W, -beside]
        assert weight.elements == H * OUT


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_math_path_keeps_float32_heads_and_scores(dtype):
    """Run on the meta device: torch 2.13's ``_scaled_dot_product_attention_math`` with ``enable_gqa``, then contiguous.

    Its forward lacks only the mask of rows without a score, which a GPU makes and ours counts.
    """

    def play(tape: Tape, played: Played) -> Tensor:
        q, k, v = played.input(Q), played.input(KV), played.input(KV)
        mask = played.constant(BATCH * LENGTH * LENGTH) if dtype == "bfloat16" else None
        shape = attention_shape(key_value_heads=KV_HEADS)
        return scaled_dot_product(tape, q, k, v, mask, shape, groups_heads=True)

    found = measure(play, dtype, autocast=False)
    assert (found.kept, found.backward) == (5_898_240, 11_796_992)
    # by hand: q, k and v expanded to every head, and the probabilities, in float32
    assert found.kept == 4 * (3 * Q + BATCH * HEADS * LENGTH**2)


def test_upcast_attention_multiplies_in_float32():
    # modeling_gpt2.py, _upcast_and_reordered_attn, in bfloat16: queries and keys are cast for the product and saved
    # that way; of the scores the float32 softmax and its cast are saved, of the values a contiguous copy
    def play(tape: Tape, played: Played) -> Tensor:
        q, k, v = (played.input(Q) for _ in range(3))
        shape = attention_shape(implementation=AttnImplementation.EAGER, upcast=True)
        return attention(tape, q, k, v, None, shape)[0]

    scores = BATCH * HEADS * LENGTH**2
    found = measure(play, "bfloat16", autocast=False)
    assert found.kept == 2 * 4 * Q + (4 + 2) * scores + 2 * Q
    in_float32 = measure(play, "float32", autocast=False)
    assert in_float32.kept == 2 * 4 * Q + 4 * scores + 4 * Q
