"""Bytes that the operators between matrix products write, and how many operators a step launches, read off the tape.

The tape (``estimator.tape``) knows every tensor that every operator of a layer allocates. An elementwise operator takes
as long as its bytes take to move, and the host takes about as long to launch a small operator as a large one. So the
sum of these bytes and the number of these operators are what time needs of them, for any family, method, precision,
objective and kernel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from estimator.families.by_layer import adapted_groups, modules_of_layer
from estimator.families.delta_net import CHUNK
from estimator.families.modules import Linear
from estimator.objectives.batch import passes_without_grad
from estimator.step.timeline import Schedule, Sizes, plan, structure
from estimator.tape.float8 import CASTS
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.mesh import Mesh
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Phase

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
    passes = 1 + passes_without_grad(setup)
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
