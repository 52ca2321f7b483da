"""Seconds of the operators between matrix products, by the bytes that they move: norms, activations, adapters, loss.

Bytes are in 16-bit compute, derived operator by operator.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from estimator.families.delta_net import CHUNK
from estimator.families.liger import loss_of
from estimator.families.loaded import adapted_groups, modules_of_layer
from estimator.families.model_tree import experts_run, layer_model
from estimator.families.modules import Linear
from estimator.passes.batch import passed_rows
from estimator.step.timeline import Schedule, Sizes, plan, structure
from estimator.tape.float8 import CASTS
from estimator.time.flops import Matrices, is_eager, matrices, scored_share
from estimator.time.rates import BACKWARD_TRAFFIC, BANDWIDTH_SHARE, Rates, width_of
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.precision import Precision
from estimator.values.range import Range
from estimator.values.setup import TrainingSetup
from estimator.values.specs import MixedPrecision, Model, Phase

WRITES = Range(1.0, 6.0)
"""Seconds of the operators between products, as multiples of the bytes that they write over the bandwidth. An operator
of one input moves 2 bytes per byte written, one of two inputs 3, at four fifths of the bandwidth: 2.5 to 3.75. Fast
end: fused kernels (foak, Unsloth), which write less than half of what is counted. Slow end: older versions, which
copied more, and kernels too small to fill the card. fitted."""
COMPILED_WRITES = Range(0.48, 0.97)
"""Bytes that a compiled model's kernels between products read and write, as multiples of those that the tape's
operators write. traced: torch 2.13's inductor, layer by layer, tests/verify/test_compiled_steps.py."""
COMPILED_LOSS_BYTES = 14
"""Bytes per token and word of the vocabulary, whole logits in a compiled loss, at worst: logits written 2, read for
the softmax 2, read twice and overwritten by their gradient 6, into two products 2+2. traced, likewise."""
FUSED_HIDDEN_BYTES = 12
"""Bytes per token and element of the hidden state, forward, fused kernels: two norms with the sum before them, each
2 bytes read (twice) and 2 written."""
FUSED_MLP_BYTES = 6
"""Bytes per token and element of the MLP's width, fused: gate and up read, their product written."""
EAGER_HIDDEN_BYTES = 84
"""The same, unfused: two RMS norms of 36 (cast 2+4, square 4+4, mean 4, scale 4+4, cast 4+2, weight 2+2+2, and the
rows' factors) and two sums of 6. transformers 5.23, models/llama/modeling_llama.py."""
EAGER_MLP_BYTES = 10
"""The same, unfused: activation 2+2, product 2+2+2."""
EAGER_ROTARY_BYTES = 20
"""Bytes per token and element of queries and keys: two products 2+2, negated and joined halves 2+4, a sum of 6."""
ADAPTER_CAST_BYTES = 12
"""Bytes per token and input of an adapted linear, with float32 adapters under autocast: to float32 2+4, back 4+2. peft
0.21, tuners/lora/layer.py, ``Linear.forward``."""
DROPOUT_BYTES = 5
"""Bytes per token and input: 2 read, 2 written, 1 for the mask; twice the first two if the input was cast to
float32."""
ADAPTER_OUTPUT_BYTES = 12
"""Bytes per token and output of an adapted linear: B's result 2, scaled 2+2, added 2+2+2."""
FUSED_LOSS_BYTES = 4
"""Bytes per token and word of the vocabulary, at best: logits written and read once, in a fused head."""
PLAIN_LOSS_BYTES = 12
"""The same with whole logits in a fused cross-entropy: logits 2, read 2 and 2, gradient 2, into two products 2+2."""
EAGER_LOSS_BYTES = 62
"""The same, unfused: logits 2, to float32 2+4, log-softmax 4+4; backward: gradient 4, log-softmax 4+4+4, back to 16
bits 4+2, into two products 2+2; and for the copy of shifted logits 4+4, whose backward fills zeros and copies, 4+4+4.
transformers 4.46, loss/loss_utils.py, ``ForCausalLMLoss`` (``shift_logits``); since then the labels are shifted."""
SCORE_BYTES = 24
"""Bytes per score of eager attention: product 2, scaled 2+2, masked 2+2, softmax in float32 2+4, back 4+2, second
product 2. transformers 5.23, ``eager_attention_forward``."""
FUSED_SCORE_BYTES = 8
"""The same at best: written, read by the softmax, written, read."""


class BetweenProducts(NamedTuple):
    """Seconds of the operators between products in one micro-batch, and their number."""

    forward: Range[float]
    """One forward pass."""
    backward: Range[float]
    """Without recomputation."""
    operators: float


def between_products(
    model: Model, setup: TrainingSetup, length: int, rate: Rates, again: float
) -> BetweenProducts:
    """Seconds of norms, activations, residuals and adapters' casts in one micro-batch: bytes over the bandwidth.

    Source: derived, from ``traffic``; fused kernels and loops over chunks by the constants above.
    """
    moves = traffic(model, setup, again)
    if model.delta_net or model.state_space:
        forward, backward = _around_loops(model, setup, length)
    else:
        forward, backward = _as_counted(model, setup, length, moves)
    scores = _score_bytes(model, setup, length) / BANDWIDTH_SHARE
    return BetweenProducts(
        (forward + scores) / rate.bandwidth,
        (backward + BACKWARD_TRAFFIC * scores) / rate.bandwidth,
        moves.operators,
    )


def _as_counted(
    model: Model, setup: TrainingSetup, length: int, moves: Traffic
) -> tuple[Range[float], Range[float]]:
    """Bytes to move for what the tape's operators write, forward and backward, without attention scores."""
    rows = setup.batch.per_device_train_batch_size
    apart = rows * moves.image + moves.fixed
    # operators in place write without allocating, so backward moves at least what forward does
    back = rows * max(moves.backward, moves.forward)
    writes, least = WRITES, passed_rows(setup) * length * _fused_bytes(model, setup.precision)
    if setup.computation.torch_compile:
        writes, least = COMPILED_WRITES / BANDWIDTH_SHARE, 0
    forward = writes * (length * (rows * moves.forward) + apart)
    backward = writes * (length * back + apart)
    return forward.at_least(least), backward.at_least(BACKWARD_TRAFFIC * least)


def _around_loops(
    model: Model, setup: TrainingSetup, length: int
) -> tuple[Range[float], Range[float]]:
    """The same in layers with loops over chunks, which are counted apart."""
    tokens = passed_rows(setup) * length
    eager = tokens * _eager_bytes(model, setup.precision)
    eager += tokens * _adapter_bytes(
        setup.adapters, setup.precision, matrices(model, setup.adapters)
    )
    slowest = eager / BANDWIDTH_SHARE.low
    fused = tokens * _fused_bytes(model, setup.precision)
    forward = Range(max(fused, slowest * WRITES.low / WRITES.high), slowest)
    return forward, BACKWARD_TRAFFIC * forward


def scored_words(model: Model, setup: TrainingSetup) -> float:
    """Logits per token: the vocabulary or the labels; with a fused head, scored tokens only."""
    words = model.vocab_size if model.num_labels is None else model.num_labels
    if loss_of(model, setup).tiles_logits:
        return words * scored_share(setup)
    words *= setup.mesh.tp_size  # the model is a rank's part, and its logits are gathered
    return words * setup.task.objective.logit_reads(setup.task)


class _Widths(NamedTuple):
    """Widths summed over all layers, in elements per token."""

    mlp: int
    """The MLP, or the experts in use."""
    turned: int
    """Queries and keys."""


@lru_cache(maxsize=1024)
def _widths(model: Model) -> _Widths:
    layers = [layer_model(model, index) for index in range(model.num_hidden_layers)]
    of_experts = experts_run(model) * model.moe_intermediate_size
    return _Widths(
        sum(of_experts or layer.intermediate_size for layer in layers),
        sum(layer.query_size + layer.key_value_size for layer in layers),
    )


def _fused_bytes(model: Model, precision: Precision) -> int:
    """Bytes per token, all layers, one forward pass, fused kernels."""
    hidden = model.num_hidden_layers * model.hidden_size
    return width_of(precision) * (
        FUSED_HIDDEN_BYTES * hidden + FUSED_MLP_BYTES * _widths(model).mlp
    )


def _eager_bytes(model: Model, precision: Precision) -> int:
    """Bytes per token, all layers, one forward pass, unfused kernels."""
    widths, hidden = _widths(model), model.num_hidden_layers * model.hidden_size
    layers = EAGER_HIDDEN_BYTES * hidden + EAGER_MLP_BYTES * widths.mlp
    return width_of(precision) * (layers + EAGER_ROTARY_BYTES * widths.turned)


def _score_bytes(model: Model, setup: TrainingSetup, length: int) -> Range[float]:
    """Bytes of a micro-batch's attention scores in one forward pass, fused or not; 0 if no score is kept."""
    if not is_eager(model, setup.computation):
        return Range(0, 0)
    scores = passed_rows(setup) * model.num_attention_heads * length * length
    if setup.batch.is_joined:
        scores *= setup.batch.per_device_train_batch_size
    scores *= model.num_hidden_layers * width_of(setup.precision)
    unfused = FUSED_SCORE_BYTES if setup.computation.torch_compile else SCORE_BYTES
    return scores * Range(FUSED_SCORE_BYTES, unfused)


def _adapter_bytes(adapters: Adapters, precision: Precision, sizes: Matrices) -> int:
    """Bytes per token of adapters in one forward pass, apart from their products."""
    cast = adapters.autocast_adapter_dtype and precision.mixed_precision is not MixedPrecision.NO
    dropout = DROPOUT_BYTES + 4 * cast if adapters.lora_dropout else 0
    inputs = ADAPTER_CAST_BYTES * cast + dropout
    return sizes.adapter_inputs * inputs + sizes.adapter_outputs * ADAPTER_OUTPUT_BYTES


NAMED_PRODUCTS = frozenset(
    {
        *("LoRA A", "LoRA B", "attention", "attention scores", "attention output"),
        *("experts' gate and up", "experts' down", "router", "router's B @ A"),
    }
)
"""Operators of the tape that are matrix products and have no module's name."""


FOLDED = "adapters folded into the experts"
"""The operator whose bytes are those of the experts' weights, whatever the length."""


TIMED_APART = (": dequantised weight", CASTS)
"""How the tape names what 4-bit loading unpacks and what linears in FP8 cast, which are timed on their own."""


TOKENS = 2**14
"""A length at which a layer is played to find the bytes per token; longer than any image."""


class Traffic(NamedTuple):
    """What one micro-batch writes between its matrix products, all layers, in bytes, and its operators."""

    forward: float
    """Per example and token of its row, in one forward pass."""
    backward: float
    """The same in the backward pass, without recomputation."""
    image: float
    """Per example, whatever its length: images."""
    fixed: float
    """Per micro-batch: adapters folded into the weights of experts."""
    operators: int
    """Operators of the layers in all passes, each a kernel or a few; of a loop over chunks, those of one chunk."""


def traffic(model: Model, setup: TrainingSetup, again: float) -> Traffic:
    """Bytes written between matrix products and operators launched, one micro-batch on one GPU without sharding.

        bytes(b, s) = fixed + b · (image + s · (forward · passes + backward) + s² · scores)     found from a few sizes

    ``again``: the share of the layers that backward recomputes. Attention scores (s²) are left out: they exist in
    eager attention alone, and some families' own flash kernels have none.

    Source: derived, from the played step; tests compare it with transformers' operators counted by hand.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> traffic(TINY_LLAMA, TrainingSetup(), 0.0).operators > 200
    True
    """
    alone = _on_one_gpu(structure(setup))
    written = _written(model, alone, setup.adapters.lora_r)
    passes = 1 + setup.passes_without_grad
    forward = written.forward / passes
    return written._replace(forward=forward, backward=written.backward - again * forward)


_ALONE = Mesh()


@lru_cache(maxsize=1024)
def _on_one_gpu(setup: TrainingSetup) -> TrainingSetup:
    """The step whose operators are counted; gradients that are added to earlier ones in place are written as often."""
    batch, computation = setup.batch.without_accumulation(), setup.computation
    if computation.torch_compile:
        if computation.masks_when_traced and not batch.is_joined:
            batch = replace(batch, padded=True)
        computation = replace(
            computation,
            torch_compile=False,
            torch_compile_mode=None,
            torch_compile_backend=None,
        )
    return replace(setup, mesh=_ALONE, computation=computation, batch=batch)


@lru_cache(maxsize=1024)
def _written(model: Model, alone: TrainingSetup, rank: int) -> Traffic:
    once, twice, four = (_played(model, alone, rank, 1, TOKENS * times) for times in (1, 2, 4))

    def per_token(at: int) -> float:
        first, second = twice[at] - once[at], four[at] - twice[at]
        scores = (second - 2 * first) / 6  # of TOKENS squared
        return (first - 3 * scores) / TOKENS

    forward, backward = per_token(_FORWARD), per_token(_BACKWARD)
    image = 0.0
    if alone.images.shows_any:
        both = _played(model, alone, rank, 2, TOKENS)
        image = sum(both[at] - once[at] for at in (_FORWARD, _BACKWARD))
        image = max(0.0, image - TOKENS * (forward + backward))
    operators = once[_OPERATORS]
    if model.delta_net:  # runs a loop over chunks, whose kernels ``host_time`` counts
        operators = _played(model, alone, rank, 1, CHUNK)[_OPERATORS]
    return Traffic(forward, backward, image, float(once[_FIXED]), operators)


_FORWARD, _BACKWARD, _FIXED, _OPERATORS = range(4)


def _played(
    model: Model, alone: TrainingSetup, rank: int, rows: int, length: int
) -> tuple[int, int, int, int]:
    """Bytes written in forward, in backward, and for folded adapters, and the operators, all layers."""
    setup = alone.replace(lora_r=rank, per_device_train_batch_size=rows, max_length=length)
    sized, schedule = plan(model, alone).step(Sizes.of(setup))
    counts, operators = _counts(schedule, _linears(model, alone.adapters))
    found = [
        sum(times * sized.sizes[slot] for slot, times in counted.items()) for counted in counts
    ]
    return found[_FORWARD], found[_BACKWARD], found[_FIXED], operators


@lru_cache(maxsize=64)
def _counts(schedule: Schedule, names: frozenset[str]) -> tuple[tuple[Counter[int], ...], int]:
    """How often the layers write a tensor of each slot, in forward, in backward, and for folded adapters; operators."""
    counts: tuple[Counter[int], ...] = (Counter(), Counter(), Counter())
    program, operators = schedule.program, 0
    for run in schedule.runs:
        if not run.of_layers:
            continue
        phase = _BACKWARD if run.phase is Phase.BACKWARD else _FORWARD
        for event in range(*program.spans[run.segment]):
            if program.signs[event] < 0 or program.is_renamed(event):
                continue
            operators += run.length
            name = program.operations[event].removesuffix(" backward").removesuffix(",")
            if name == FOLDED:
                counts[_FIXED][program.slots[event]] += run.length
            elif not (name in names or name in NAMED_PRODUCTS or name.endswith(TIMED_APART)):
                counts[phase][program.slots[event]] += run.length
    return counts, operators


@lru_cache(maxsize=1024)
def _linears(model: Model, adapters: Adapters) -> frozenset[str]:
    """Names of the linears of all layers, as the tape names their products."""
    return frozenset(
        module.name
        for index, _ in adapted_groups(model, adapters)
        for module in modules_of_layer(model, adapters, index)
        if isinstance(module, Linear)
    )
