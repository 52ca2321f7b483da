"""The activations of an MLP: one kernel, or the steps of a formula in Python.

Source: transformers 5.23, activations.py; BLOOM's is in models/bloom/modeling_bloom.py. Local names are those of
the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from collections.abc import Sequence

from estimator.tape import operators as op
from estimator.tape.tape import Parameter, Tape, Tensor

_SAVES_OUTPUT = frozenset({"relu", "sigmoid", "tanh"})


def activation(tape: Tape, x: Tensor, name: str, parameters: Sequence[Parameter] = ()) -> Tensor:
    """``ACT2FN[name]``; xIELU has two learned scalars."""
    match name:
        case "gelu_new":
            return gelu_new(tape, x)
        case "gelu_fast":
            return gelu_fast(tape, x)
        case "quick_gelu":
            return quick_gelu(tape, x)
        case "relu2":
            x = op.elementwise(tape, x, "relu", saves="output")
            return op.square(tape, _as_autocast(tape, x))
        case "xielu":
            return xielu(tape, x, *parameters)
        case _:
            saves = "output" if name in _SAVES_OUTPUT else "input"
            return op.elementwise(tape, x, name, saves=saves)


def _as_autocast(tape: Tape, x: Tensor) -> Tensor:
    """The input of an operator that autocast runs in float32."""
    return op.cast(tape, x, 4) if tape.autocast_active else x


def gelu_new(tape: Tape, x: Tensor) -> Tensor:
    """GPT-2's activation in Python: ``0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))``, ``NewGELUActivation``."""
    return op.multiply(
        tape,
        op.scale(tape, x),
        op.add_number(
            tape,
            _tanh(tape, op.scale(tape, op.add(tape, x, op.scale(tape, _cube(tape, x))))),
        ),
        "gelu",
    )


def quick_gelu(tape: Tape, x: Tensor) -> Tensor:
    """``x · sigmoid(1.702 · x)``, ``QuickGELUActivation``: the scaled x is no tensor that backward reads."""
    inner = op.elementwise(tape, op.scale(tape, x), "sigmoid", saves="output")
    return op.multiply(tape, x, inner, "gelu")


def _tanh(tape: Tape, x: Tensor) -> Tensor:
    return op.elementwise(tape, x, "tanh", saves="output")


def _cube(tape: Tape, x: Tensor) -> Tensor:
    return op.elementwise(tape, _as_autocast(tape, x), "cube", backward_copies=3)


def gelu_fast(tape: Tape, x: Tensor) -> Tensor:
    """GPT-NeoX-20B's: ``0.5 · x · (1 + tanh(x · √(2/π) · (1 + 0.044715 · x · x)))``, ``FastGELUActivation``."""
    return op.multiply(
        tape,
        op.scale(tape, x),
        op.add_number(
            tape,
            _tanh(
                tape,
                op.multiply(
                    tape,
                    op.scale(tape, x),
                    op.add_number(tape, op.multiply(tape, op.scale(tape, x), x, "square")),
                    "gelu",
                ),
            ),
        ),
        "gelu",
    )


def xielu(tape: Tape, x: Tensor, alpha_p: Parameter, alpha_n: Parameter) -> Tensor:
    """Apertus's, ``XIELUActivation._xielu_python``: α₊·x·x + β·x above zero, (expm1(min(x, ε)) - x)·α₋ + β·x below.

    Autocast runs softplus and expm1 in float32, so nearly everything after them is float32 too.
    """
    above_slope = op.elementwise(tape, _as_autocast(tape, alpha_p), "softplus")
    below_slope = op.add_number(tape, op.elementwise(tape, _as_autocast(tape, alpha_n), "softplus"))
    tape.operation = "xIELU: x above zero"
    is_above = tape.new(x.elements, 1)
    above = op.add(
        tape,
        op.multiply(tape, op.multiply(tape, above_slope, x, "xIELU"), x, "xIELU"),
        op.scale(tape, x),
    )
    bounded = op.elementwise(tape, x, "minimum", backward_copies=2)
    power = op.elementwise(
        tape, _as_autocast(tape, bounded), "expm1", saves="output", backward_copies=2
    )
    del bounded
    below = op.subtract(tape, power, x)
    del power
    below = op.multiply(tape, below, below_slope, "xIELU")
    below = op.add(tape, below, op.scale(tape, x))
    return op.choose(tape, is_above, above, below)


def bloom_gelu(tape: Tape, x: Tensor) -> Tensor:
    """BLOOM's ``GeLUFunction``: saves only x, and needs four temporaries of its size."""
    tape.operation = "gelu"
    elements, width = x.elements, x.width

    def backward(t: Tape, g: list[Tensor | None]) -> list[Tensor | None]:
        tanh = t.new(elements, width)
        left = t.new(elements, width)
        steps = [t.new(elements, width) for _ in range(3)]
        del steps
        right = t.new(elements, width)
        slope = t.new(elements, width)
        del left, right, tanh
        gradient = t.new(elements, width)
        del slope
        return [gradient]

    node = tape.begin("gelu backward", [x], backward, [x])
    steps = [tape.new(elements, width) for _ in range(4)]
    del steps[1:]
    steps.append(tape.new(elements, width))
    return tape.finish(node, tape.new(elements, width))
