"""The tape counts what PyTorch would hold. Every expected number is written out by hand."""

from __future__ import annotations

from estimator.tape import operators as op
from estimator.tape.operators import cast_input
from estimator.tape.tape import (
    GRADIENTS,
    TEMPORARIES,
    Leaf,
    Parameter,
    Tape,
    Tensor,
    leaf_node,
)
from estimator.values.specs import Phase
from tests.tapes import alive, played

ROWS, IN, OUT = 256, 512, 1024


def weight(out_features: int = OUT, in_features: int = IN, *, trainable: bool = True) -> Parameter:
    return Parameter(f"w{out_features}", out_features * in_features, 2, trainable=trainable)


def input_tensor(tape: Tape, *, requires_grad: bool = True) -> Tensor:
    """An input produced by an earlier node, like a layer's input."""
    x = tape.new(ROWS * IN, 2)
    x.requires_grad = requires_grad
    return x


def total(tape: Tape) -> int:
    return sum(alive(tape))


def height(tape: Tape, phase: Phase) -> int:
    """The peak of a phase, including what earlier segments left allocated."""
    before, heights = 0, []
    for segment in played(tape):
        if segment.mark.phase is phase:
            heights.append(before + sum(segment.rise))
        before += sum(segment.net)
    return max(heights)


def test_a_tensor_counts_until_its_last_reference_is_deleted():
    tape = Tape(autocast_width=None)
    x = tape.new(100, 4)  # 400 bytes, allocated as 512
    view = tape.view(x)
    assert total(tape) == 512
    del x
    assert total(tape) == 512, "a view keeps the whole storage alive"
    del view
    assert total(tape) == 0


def test_a_trained_linear_saves_its_input_and_a_frozen_one_does_not():
    for trainable, kept in ((True, ROWS * IN * 2), (False, 0)):
        tape = Tape(autocast_width=None)
        x = input_tensor(tape)
        y = op.linear(tape, x, weight(trainable=trainable), None, IN, OUT, "linear")
        del x
        assert total(tape) == ROWS * OUT * 2 + kept
        assert y.elements == ROWS * OUT


def test_linear_backward_holds_both_gradients_and_the_outputs_gradient():
    tape = Tape(autocast_width=None)
    x = tape.new(ROWS * IN, 2)
    x = op.clone(tape, op.linear(tape, x, weight(IN, IN), None, IN, IN, "first"))
    y = op.linear(tape, x, weight(), None, IN, OUT, "second")
    del x
    tape.backward(y)
    saved, output = ROWS * IN * 2, ROWS * OUT * 2  # of each linear; this test holds y
    second = 2 * saved + output + 512 + ROWS * IN * 2 + OUT * IN * 2  # 512: the loss's own gradient
    first = (
        saved + output + OUT * IN * 2 + ROWS * IN * 2 + IN * IN * 2
    )  # one gradient accumulated, one arriving
    assert height(tape, Phase.BACKWARD) == max(first, second)


def test_a_leafs_gradient_stays_after_backward():
    tape = Tape(autocast_width=None)
    y = op.linear(tape, tape.new(ROWS * IN, 2), weight(), None, IN, OUT, "linear")
    tape.backward(y)
    del y
    assert alive(tape)[GRADIENTS] == OUT * IN * 2
    assert alive(tape)[TEMPORARIES] == 0


def test_gradients_of_a_shared_weight_sum_into_a_third_tensor():
    tape = Tape(autocast_width=None)
    tied = weight(IN, IN)
    y = op.linear(tape, tape.new(ROWS * IN, 2), tied, None, IN, IN, "first")
    y = op.linear(tape, y, tied, None, IN, IN, "second")
    tape.backward(y)
    two_gradients_and_their_sum = 3 * IN * IN * 2
    assert height(tape, Phase.BACKWARD) >= two_gradients_and_their_sum
    del y
    assert alive(tape)[GRADIENTS] == IN * IN * 2


def test_a_product_saves_only_what_a_gradient_needs():
    tape = Tape(autocast_width=None)
    a, b = input_tensor(tape), input_tensor(tape, requires_grad=False)
    y = op.multiply(tape, a, b)
    size = ROWS * IN * 2
    del a
    assert total(tape) == 2 * size, "a is not needed: b has no gradient"
    del b
    assert total(tape) == 2 * size, "b is saved for a's gradient"
    del y
    assert total(tape) == 0


def test_a_checkpoint_saves_only_its_input_and_replays_up_to_the_last_saved_tensor():
    tape = Tape(autocast_width=None)
    first, second = weight(IN, IN), weight(OUT, IN)
    played: list[str] = []

    def block(x: Tensor) -> Tensor:
        played.append("start")
        x = op.linear(tape, x, first, None, IN, IN, "first")
        x = op.linear(tape, x, second, None, IN, OUT, "second")
        played.append("second")
        x = op.clone(tape, x)  # saves nothing, so the replay stops before it
        played.append("end")
        return x

    x = input_tensor(tape)
    y = tape.checkpoint(block, x)
    del x
    assert total(tape) == ROWS * IN * 2 + ROWS * OUT * 2, "the block's input and its output"
    tape.backward(y)
    assert played == ["start", "second", "end", "start"], (
        "the replay stops inside the second linear, which saves last"
    )


def test_dropout_saves_one_byte_per_element_unless_it_is_zero():
    tape = Tape(autocast_width=None)
    x = input_tensor(tape)
    assert op.dropout(tape, x, 0.0) is x
    y = op.dropout(tape, x, 0.1)
    del x, y
    assert total(tape) == 0
    x = input_tensor(tape)
    y = op.clone(tape, op.dropout(tape, x, 0.1))
    del x
    assert total(tape) == ROWS * IN * 2 + ROWS * IN, "the copy and the mask"
    del y


def test_cross_entropy_backward_holds_three_float32_copies_of_the_logits():
    tape = Tape(autocast_width=None)
    logits = tape.new(ROWS * 1000, 4)
    logits.requires_grad = True
    labels = tape.new(ROWS, 8)
    loss = op.log_softmax_loss(tape, logits, labels)
    del logits
    tape.backward(loss)
    small = ROWS * 8 + 4 * 512  # labels, loss, weight, the loss's gradient
    assert 0 <= height(tape, Phase.BACKWARD) - 3 * 4 * ROWS * 1000 <= small


def test_autocast_casts_a_float32_weight_once_and_each_input_every_time():
    tape = Tape(autocast_width=2)
    w = Parameter("w", OUT * IN, 4, trainable=True)
    x = tape.new(ROWS * IN, 4)
    outputs = [op.linear(tape, x, w, None, IN, OUT, "linear") for _ in range(2)]
    weight_copy, input_copies = OUT * IN * 2, 2 * ROWS * IN * 2
    assert total(tape) == ROWS * IN * 4 + weight_copy + input_copies + len(outputs) * ROWS * OUT * 2


def test_a_leaf_is_not_taken_for_one_that_was_freed():
    """Python gives a new object the address of a freed one; each leaf's 16-bit copy is its own nevertheless."""
    tape = Tape(autocast_width=2)
    for _ in range(20):
        leaf = tape.new(256, 4)
        leaf.node = leaf_node(Leaf(TEMPORARIES))
        cast_input(tape, leaf, 2)
        del leaf
    assert sum(event.sign == 1 and event.size == 512 for event in tape.events) == 20
