"""Heights of steps, for tests that compare some with others."""

from __future__ import annotations

from dataclasses import replace

from estimator import Component, Estimate, Model, Phase, TrainingSetup, estimate
from estimator.values.specs import STEP_PHASES


def heights(of: Estimate) -> list[int]:
    """Peaks of the step's phases without cuBLAS's workspace, which a trace lacks."""
    workspace = of.peak.resident[Component.WORKSPACE]
    return [of.phases[phase].bytes - workspace for phase in STEP_PHASES]


def kept_per_layer(setup: TrainingSetup, model: Model) -> int:
    """What one more layer adds to the height of the loss, excluding its weights and states."""
    found = []
    for layers in (model.num_hidden_layers, model.num_hidden_layers + 1):
        loss = estimate(replace(model, num_hidden_layers=layers), None, setup).phases[Phase.LOSS]
        found.append(loss.resident[Component.ACTIVATIONS])
    return found[1] - found[0]
