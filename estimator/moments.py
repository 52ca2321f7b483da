"""The moments of a step in order of time, each with its ledger; the height of each phase; the peak.

Equal layers do equal things: the first, the last and one layer of each kind between them are played on the tape, and
what the others add follows by repetition, in the model's own order of layers. The peak is a maximum over moments,
never a sum of everything that ever lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from estimator.architectures.decoder import Step, layer_kind
from estimator.memory.optimizer import States, Trainable, optimizer_states, step_transient
from estimator.memory.overhead import workspace_bytes
from estimator.memory.tape import COMPONENTS, Bytes, Segment
from estimator.memory.weights import (
    adapter_shapes,
    adapter_width,
    module_bytes,
    tensors_bytes,
    unquantized_width,
)
from estimator.parameters import Embedding, Module, layer_modules, outer_modules, weight_shapes
from estimator.results import Moment
from estimator.specs import STEP_PHASES, Component, Gpu, Model, Phase, TrainingSetup


def modules_with_counts(model: Model) -> Iterator[tuple[Module, int, bool]]:
    """Every module, how many alike, and whether it lies in the layers."""
    for module in outer_modules(model):
        yield module, 1, False
    for module in layer_modules(model):
        yield module, model.num_hidden_layers, True


def weight_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of all weights but the adapters, per GPU.

        Σ modules  count · bytes

    Source: derived, from ``module_bytes``.
    """
    return sum(
        count * module_bytes(module, setup, in_layers=in_layers)
        for module, count, in_layers in modules_with_counts(model)
    )


def adapter_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of all adapters, per GPU.

        Σ adapted linears  r · (in + out) · p     p: bytes per element, 4 by PEFT's default

    Source: derived, from ``adapter_shapes``.
    """
    return sum(
        count * tensors_bytes(adapter_shapes(module, setup), adapter_width(setup))
        for module, count, in_layers in modules_with_counts(model)
    )


def trainable_tensors(model: Model, setup: TrainingSetup) -> list[Trainable]:
    """Every trained tensor: all weights, or the adapters alone."""
    tensors = []
    for module, count, _ in modules_with_counts(model):
        if setup.uses_adapters:
            shapes: Sequence[tuple[int, ...]] = adapter_shapes(module, setup)
            width = adapter_width(setup)
        else:
            shapes, width = weight_shapes(module), unquantized_width(setup)
        tensors += [
            Trainable(shape, width, count, isinstance(module, Embedding)) for shape in shapes
        ]
    return tensors


def gradient_bytes(tensors: Iterable[Trainable]) -> int:
    """Bytes of all gradients, one for each trained tensor in its dtype.

    Source: torch 2.13, torch/csrc/autograd/functions/accumulate_grad.h.
    """
    return sum(tensor.alike * tensors_bytes([tensor.shape], tensor.width) for tensor in tensors)


def played_layers(model: Model, setup: TrainingSetup) -> list[int]:
    """Indices of the layers to play: the first, one of each kind between, the last."""
    last = model.num_hidden_layers - 1
    between = {layer_kind(model, setup, index): index for index in range(last - 1, 0, -1)}
    return sorted({0, last, *between.values()})


def step_moments(
    model: Model, setup: TrainingSetup, gpu: Gpu | None
) -> tuple[tuple[Moment, ...], States]:
    """All moments of a step after the first, each layer and stage at its highest, and the optimizer's states.

    With accumulation the second micro-step is played: the gradients of the first lie under it.
    """
    tensors = trainable_tensors(model, setup)
    gradients = gradient_bytes(tensors)
    states = optimizer_states(tensors, setup.optim, setup.optim_state_dtype)
    resident = dict.fromkeys(COMPONENTS, 0)
    resident[Component.WEIGHTS] = weight_bytes(model, setup)
    resident[Component.ADAPTERS] = adapter_bytes(model, setup)
    resident[Component.OPTIMIZER_STATES] = states.resident_bytes
    resident[Component.WORKSPACE] = workspace_bytes(gpu)
    if setup.gradient_accumulation_steps > 1:
        resident[Component.GRADIENTS] = gradients
    moments = list(_played(model, setup, [resident[component] for component in COMPONENTS]))
    resident[Component.GRADIENTS] = gradients
    resident[Component.TEMPORARIES] = step_transient(tensors, setup.optim, setup.optim_state_dtype)
    moments.append(
        Moment(Phase.OPTIMIZER_STEP, f"{setup.optim.value} step", _alive(resident.values()))
    )
    return tuple(moments), states


def _played(model: Model, setup: TrainingSetup, running: Bytes) -> Iterator[Moment]:
    """Play the chosen layers, then set every real layer in its place with a running sum."""
    played = played_layers(model, setup)
    tape = Step(model, setup, played).play()
    stand_ins = _stand_ins(model, setup, played)
    for (phase, stage, _), run in groupby(
        tape.segments, key=lambda s: (s.phase, s.stage, s.layer is None)
    ):
        segments = list(run)
        if segments[0].layer is None:
            for segment in segments:
                yield _placed(segment, running, _outer_name(segment))
            continue
        by_layer = {segment.layer: segment for segment in segments}
        order = range(model.num_hidden_layers)
        for index in reversed(order) if phase is Phase.BACKWARD else order:
            segment = by_layer[stand_ins[index]]
            moment = _placed(segment, running, _layer_name(segment, index, model.num_hidden_layers))
            if stage == "layer":
                yield moment


def _stand_ins(model: Model, setup: TrainingSetup, played: Sequence[int]) -> list[int]:
    """For every real layer, the position in ``played`` of the layer that stands for it."""
    last = model.num_hidden_layers - 1
    position = {index: place for place, index in enumerate(played)}
    by_kind = {
        layer_kind(model, setup, index): position[index] for index in played if 0 < index < last
    }
    return [
        position[index] if index in (0, last) else by_kind[layer_kind(model, setup, index)]
        for index in range(model.num_hidden_layers)
    ]


def _placed(segment: Segment, running: Bytes, name: str) -> Moment:
    """The segment's highest moment on top of what is alive, which then moves on by what the segment leaves."""
    top = [r + t - e for r, t, e in zip(running, segment.top, segment.entry, strict=True)]
    for place, (before, after) in enumerate(zip(segment.entry, segment.exit, strict=True)):
        running[place] += after - before
    return Moment(segment.phase, name, _alive(top))


def _alive(sizes: Iterable[int]) -> dict[Component, int]:
    return {component: size for component, size in zip(COMPONENTS, sizes, strict=True) if size}


def _layer_name(segment: Segment, index: int, layers: int) -> str:
    return f"layer {index + 1} of {layers}: {segment.operation}"


def _outer_name(segment: Segment) -> str:
    return segment.operation or segment.stage


def heights(moments: Iterable[Moment]) -> dict[Phase, Moment]:
    """The highest moment of each phase of the step."""
    moments = list(moments)
    return {
        phase: max((m for m in moments if m.phase is phase), key=lambda moment: moment.bytes)
        for phase in STEP_PHASES
    }
