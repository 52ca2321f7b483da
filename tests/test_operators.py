"""Every operator's rule against the real torch's own bytes, and by hand where only a GPU shows them.

tests/reference/operators.csv holds what torch 2.13 and transformers 5.23 take, as tests/verify/test_operators.py counts
it.
"""

from __future__ import annotations

import pytest

from estimator.tape import operators as op
from estimator.tape.attention import scaled_dot_product
from estimator.tape.tape import Tape, Tensor
from tests.operator_cases import (
    BATCH,
    CASES,
    HEAD_DIM,
    HEADS,
    OUT,
    H,
    Measured,
    Played,
    T,
    attention_shape,
    measure,
    read_table,
)

TABLE = read_table()


def test_the_table_holds_every_operator() -> None:
    assert set(TABLE) == {(name, dtype) for name, case in CASES.items() for dtype in case.dtypes}


@pytest.mark.parametrize(("name", "dtype"), TABLE)
def test_an_operator_takes_what_the_real_one_takes(name: str, dtype: str) -> None:
    case = CASES[name]
    assert measure(case.play, dtype, autocast=case.autocast) == TABLE[name, dtype]


# --- by hand: what the meta device does not show --------------------------------------------------

LOSS = 512
X, Y, W = T * H * 2, T * OUT * 2, H * OUT * 2
"""Bytes in 16 bits of an input, an output and a weight."""


def test_a_convolution_copies_its_input_for_the_product_both_ways() -> None:
    def play(tape: Tape, it: Played) -> Tensor:
        x = it.input(T * H)
        return op.convolution(tape, x, it.weight(H * 4), T * H, "conv", bias=it.weight(H))

    filters, bias = H * 4 * 2, 1536  # 1,280 bytes as allocated
    # forward: input, its copy, output; backward: input, its copy, the gradients of output, filters, input and bias
    assert measure(play, "bfloat16", autocast=False) == Measured(
        kept=X, forward=3 * X, backward=LOSS + 4 * X + filters + bias
    )


@pytest.mark.parametrize(
    ("length", "row"),
    [(192, 192), (200, 208), (193, 208)],  # rows of a multiple of 16 numbers
)
def test_a_mask_of_truth_values_becomes_a_bias_of_rows_of_sixteen(length: int, row: int) -> None:
    tokens = BATCH * length

    def play(tape: Tape, it: Played) -> Tensor:
        q, k, v = (it.input(tokens * HEADS * HEAD_DIM) for _ in range(3))
        mask = it.constant(tokens * length, 1)
        return scaled_dot_product(tape, q, k, v, mask, attention_shape(length=length))

    query, bias = tokens * HEADS * HEAD_DIM * 2, BATCH * length * row * 2
    made = BATCH * length * length * 2 if row > length else 0
    # the log-sum-exp of 32 tokens at a time; the generator's seed and offset, 512 each
    sums = BATCH * HEADS * -(-length // 32) * 32 * 4
    kept = 4 * query + sums + 2 * 512 + -(-bias // 512) * 512
    found = measure(play, "bfloat16", autocast=False)
    assert found.kept == kept
    assert found.forward <= kept + made + 512
    assert found.backward == kept + LOSS + 4 * query  # the gradients of the output, q, k and v


def test_a_4_bit_weight_is_dense_for_the_time_of_a_product_and_nothing_is_kept() -> None:
    def play(tape: Tape, it: Played) -> Tensor:
        return op.linear_4bit(tape, it.input(T * H), H, OUT, 2, "linear")

    absmax = H * OUT // 64 * 4  # a float32 for 64 weights
    # forward: input, weight with its absmax, output; backward: the same weight, both gradients
    assert measure(play, "bfloat16", autocast=False) == Measured(
        kept=0, forward=X + W + absmax + Y, backward=LOSS + Y + W + absmax + X
    )


def test_a_4_bit_product_casts_a_float32_input_there_and_back() -> None:
    def play(tape: Tape, it: Played) -> Tensor:
        x = it.input(T * H)
        return op.linear_4bit(tape, x, H, OUT, 2, "linear")

    absmax = H * OUT // 64 * 4
    # forward: input in float32 and in 16 bits, weight, output; no more when the output goes back to float32
    assert measure(play, "float32", autocast=False) == Measured(
        kept=0,
        forward=max(2 * X + X + W + absmax + Y, 2 * X + X + Y + 2 * Y),
        backward=LOSS + max(2 * Y + Y, Y + W + absmax + X, X + 2 * X),
    )


def test_an_8_bit_product_keeps_its_input_and_makes_a_dense_weight_in_backward() -> None:
    def play(tape: Tape, it: Played) -> Tensor:
        return op.linear_8bit(tape, it.input(T * H), H, OUT, "linear")

    scales, packed = T * 4, T * H
    # forward: input, float16 copy, scales, input in 8 bits, its magnitudes and outliers; or sums in int32 and outputs
    quantised = X + X + scales + packed + X + packed
    multiplied = X + scales + packed + 2 * Y + Y + Y
    assert measure(play, "bfloat16", autocast=False) == Measured(
        kept=X, forward=max(quantised, multiplied), backward=LOSS + X + Y + W + X
    )


def test_a_weight_is_unpacked_with_its_absmax_or_with_a_product_in_float32() -> None:
    for scales, beside in ((True, H * OUT // 64 * 4), (False, H * OUT * 4)):
        tape = Tape(autocast_width=None)
        weight = op.unpacked(tape, H * OUT, 2, "linear", scales=scales)
        sizes = [event.sign * event.size for event in tape.events]
        assert sizes == [beside, W, -beside]
        assert weight.elements == H * OUT
