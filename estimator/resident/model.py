"""A model's resident memory throughout a step: weights, adapters, gradients and optimizer states, in bytes per GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from estimator.families.adapters import adapter_parameters, trainable_parameters
from estimator.families.loaded import tower_parameters
from estimator.families.model_tree import total_parameters
from estimator.resident.optimizer import States, Trainable, optimizer_states, step_transient
from estimator.tape.tape import COMPONENTS
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.optimisation import Optimisation
from estimator.values.specs import Component, Model

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
