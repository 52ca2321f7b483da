"""A model's resident memory throughout a step: weights, adapters, gradients and optimizer states, in bytes per GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from estimator.families.adapters import (
    adapted_tied_head,
    adapter_parameters,
    copied_modules,
    is_trained_whole,
    trainable_parameters,
    trains_bias,
)
from estimator.families.by_layer import text_modules
from estimator.families.counts import total_parameters
from estimator.families.modules import Embedding, Linear, Module, weight_shapes
from estimator.families.towers import (
    idle_modules,
    made_modules,
    run_on_text,
    tower_parameters,
)
from estimator.families.weights import (
    AdapterTensor,
    adapter_tensors,
    buffer_bytes,
    module_bytes,
    tensors_bytes,
    tower_buffers,
    weight_width,
)
from estimator.resident.optimizer import States, Trainable, optimizer_states, step_transient
from estimator.tape.tape import COMPONENTS
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.optimisation import Optimisation
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Model

Alike = Iterable[tuple[Module, int]]
"""Modules with weights, and the number of equal ones."""


def weight_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of all weights except adapters, and of buffers, per GPU.

        Σ modules  count · bytes  +  Σ buffers  count · bytes

    Source: derived, from ``module_bytes`` and ``buffers``.
    """
    beside = sum(buffer.copies * buffer.bytes for buffer in tower_buffers(model, setup.adapters))
    return bytes_of(made_modules(model, setup.adapters), setup) + buffer_bytes(model) + beside


def bytes_of(modules: Alike, setup: TrainingSetup) -> int:
    """Bytes of the weights of some modules, without adapters.

    Source: derived, from ``module_bytes``.
    """
    return sum(count * module_bytes(module, setup) for module, count in modules)


def adapter_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes that PEFT adds, per GPU: adapters, and the copies of ``modules_to_save``.

        Σ adapted linears  (r · (in + out) + out with DoRA) · p  +  Σ copied modules  elements · w
        p: bytes per element of an adapter, 4 by PEFT's default; w: of a weight, as loaded

    Source: derived, from ``adapter_tensors``; peft 0.21, tuners/tuners_utils.py, ``cast_adapter_dtype`` (adapters
    become float32, copies do not).
    """
    modules = (*made_modules(model, setup.adapters), *adapted_tied_head(model, setup.adapters))
    return adapters_of(modules, copied_modules(model, setup.adapters), setup)


def adapters_of(modules: Alike, copies: Alike, setup: TrainingSetup) -> int:
    """Bytes of the adapters of some modules, and of the copies of others.

    Source: derived, from ``adapter_tensors``.
    """
    adapters = sum(
        count * tensor.bytes
        for module, count in modules
        for tensor in adapter_tensors(module, setup)
    )
    return adapters + sum(
        count * tensors_bytes(weight_shapes(module), weight_width(module, setup))
        for module, count in copies
    )


def trainable_tensors(model: Model, setup: TrainingSetup) -> list[Trainable]:
    """Every tensor that gets a gradient: all weights, or the adapters and PEFT's copies (derived, likewise).

    Modules that a step on text does not run get no gradient, and optimizers skip them: ``idle_tensors``.
    """
    text = tuple(text_modules(model, setup.adapters)), copied_modules(model, setup.adapters)
    run = (
        *run_on_text(model, setup.adapters, setup.images),
        *text[0],
        *adapted_tied_head(model, setup.adapters),
    )
    idle = {module for module, _ in idle_modules(model, setup.adapters, setup.images)}
    copies = [(module, count) for module, count in text[1] if module not in idle]
    return trained_of(run, copies, setup)


def idle_tensors(model: Model, setup: TrainingSetup) -> list[Trainable]:
    """Trained tensors without gradients or states: those of towers that a step on text does not run.

    Source: torch 2.13, optim/adamw.py and optim/optimizer.py (``if p.grad is None``); bitsandbytes 0.50,
    optim/optimizer.py, ``Optimizer8bit.step``; derived, likewise.
    """
    idle = dict(idle_modules(model, setup.adapters, setup.images))
    copies = [copy for copy in copied_modules(model, setup.adapters) if copy[0] in idle]
    return trained_of(idle.items(), copies, setup)


def trained_of(modules: Alike, copies: Alike, setup: TrainingSetup) -> list[Trainable]:
    """The trained tensors of some modules, and of PEFT's copies of others (derived, likewise)."""
    tensors = [
        trained_whole(module, shape, count, setup)
        for module, count in copies
        for shape in weight_shapes(module)
    ]
    for module, count in modules:
        if setup.adapters.uses_adapters:
            tensors += [trained_adapter(tensor, count) for tensor in adapter_tensors(module, setup)]
            if trains_bias(module, setup.adapters):
                tensors.append(trained_whole(module, weight_shapes(module)[-1], count, setup))
        elif is_trained_whole(module, setup.adapters):
            tensors += [
                trained_whole(module, shape, count, setup) for shape in weight_shapes(module)
            ]
    return tensors


def trained_adapter(tensor: AdapterTensor, count: int) -> Trainable:
    """A tensor of ``count`` equal adapters; its matrices are those of linears (derived, likewise)."""
    return Trainable(tensor.shape, tensor.width, count, is_linear=len(tensor.shape) == 2)


def trained_whole(
    module: Module, shape: tuple[int, ...], count: int, setup: TrainingSetup
) -> Trainable:
    """A tensor of ``count`` equal modules that are trained themselves (derived, likewise)."""
    linear = isinstance(module, Linear) and not module.conv1d and len(shape) == 2
    embedding = isinstance(module, Embedding)
    return Trainable(shape, weight_width(module, setup), count, embedding, linear)


def gradient_bytes(tensors: Iterable[Trainable]) -> int:
    """Bytes of all gradients, one for each trained tensor in its dtype.

    Source: torch 2.13, torch/csrc/autograd/functions/accumulate_grad.h.
    """
    return sum(tensor.alike * tensors_bytes([tensor.shape], tensor.width) for tensor in tensors)


NO_STATES = States(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """What one model keeps on a GPU throughout a step, and what its optimizer adds; bytes per GPU."""

    weights: int
    """Weights, including those that are not trained."""
    adapters: int = 0
    gradients: int = 0
    """All gradients, at the end of backward."""
    accumulated: int = 0
    """Gradients of earlier micro-steps when the last one begins."""
    transient: int = 0
    """Temporaries of the optimizer's step."""
    states: States = NO_STATES
    communication: int = 0
    """Buffers that stay between steps."""
    reference: int = 0
    """Weights of a reference model."""
    engine: int = 0
    """What an inference engine on the same GPU holds while others train."""
    total_parameters: int
    trainable_parameters: int

    @property
    def step_bytes(self) -> int:
        """Everything alive in the optimizer's step except the workspace."""
        step = self.weights + self.adapters + self.gradients + self.transient + self.communication
        return step + self.reference + self.engine + self.states.resident_bytes

    def sizes(self, workspace: int) -> dict[Component, int]:
        """By component, before the first moment, without gradients."""
        return {
            **dict.fromkeys(COMPONENTS, 0),
            Component.WEIGHTS: self.weights,
            Component.ADAPTERS: self.adapters,
            Component.REFERENCE_MODEL: self.reference,
            Component.INFERENCE_ENGINE: self.engine,
            Component.OPTIMIZER_STATES: self.states.resident_bytes,
            Component.COMMUNICATION: self.communication,
            Component.WORKSPACE: workspace,
        }


def unsharded(model: Model, structure: TrainingSetup) -> Resident:
    """What a GPU keeps if nothing is sharded.

    Source: derived, from the bytes of each tensor.
    """
    return whole(
        model,
        structure,
        weight_bytes(model, structure),
        adapter_bytes(model, structure),
        trainable_tensors(model, structure),
    )


def whole(
    model: Model,
    structure: TrainingSetup,
    weights: int,
    adapters: int,
    tensors: Sequence[Trainable],
) -> Resident:
    """What a GPU keeps that holds these trained tensors unsharded, in addition to weights and adapters.

    Source: derived, from ``gradient_bytes`` and the optimizer's rules.
    """
    gradients, step = gradient_bytes(tensors), stepped(tensors, structure.optimisation)
    if structure.optimisation.optimizer_in_bwd:  # each is freed, and stepped, in backward
        gradients, step["transient"] = 0, 0
    return Resident(
        weights=weights,
        adapters=adapters,
        gradients=gradients,
        accumulated=gradients,
        **step,
        **counts(model, structure.adapters),
    )


class Stepped(TypedDict):
    """What the optimizer adds to some tensors."""

    transient: int
    states: States


class Counts(TypedDict):
    """Parameters of a model, including adapters, and how many are trained."""

    total_parameters: int
    trainable_parameters: int


def stepped(tensors: Sequence[Trainable], optimisation: Optimisation) -> Stepped:
    """Bytes of the optimizer's states, and of its step's temporaries.

    Source: derived, from ``optimizer_states`` and ``step_transient``.
    """
    rule = optimisation.optim, optimisation.optim_state_dtype
    return {
        "transient": step_transient(tensors, *rule),
        "states": optimizer_states(tensors, *rule),
    }


def counts(model: Model, adapters: Adapters) -> Counts:
    """Parameters of the whole model (a count), regardless of what one GPU holds.

    Source: derived, from the tables of modules.
    """
    return {
        "total_parameters": total_parameters(model)
        + tower_parameters(model, adapters)
        + adapter_parameters(model, adapters),
        "trainable_parameters": trainable_parameters(model, adapters),
    }
