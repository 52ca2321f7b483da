"""Widgets of a single objective, drawn if that objective is chosen."""

from __future__ import annotations

from dashboard.widgets import boxes
from estimator import Objective, TrainingSetup


def _asks_reference(setup: TrainingSetup) -> bool:
    return setup.objective.has_reference


UNUSUAL = {
    **dict.fromkeys(
        ("completion_fraction", "label_smoothing_factor"),
        boxes.Unusual(where=lambda setup: setup.objective is Objective.SFT),
    ),
    "max_prompt_length": boxes.Unusual(where=_asks_reference),
    "precompute_ref_log_probs": boxes.Unusual(
        where=lambda setup: setup.objective in (Objective.DPO, Objective.KTO)
    ),
    **dict.fromkeys(
        (
            *("beta", "max_completion_length", "num_generations", "steps_per_generation"),
            "num_iterations",
        ),
        boxes.Unusual(where=lambda setup: setup.objective.generates),
    ),
    "loss_type": boxes.Unusual(where=_asks_reference),
    "num_labels": boxes.Unusual(
        where=lambda setup: setup.objective is Objective.SEQUENCE_CLASSIFICATION
    ),
    "mini_batch_size": boxes.Unusual(where=lambda setup: setup.objective is Objective.EMBEDDING),
}
