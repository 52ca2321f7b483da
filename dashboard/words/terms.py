"""Labels of phases, methods, precisions, verdicts and models."""

from __future__ import annotations

from collections.abc import Mapping

from dashboard import theme
from dashboard.words import units
from estimator import (
    Dtype,
    Estimate,
    Gpu,
    MixedPrecision,
    Moment,
    Phase,
    TrainingSetup,
    Verdict,
    catalog,
)


def proposed_name(of: Estimate) -> str:
    """The default name of a setup."""
    where = f" on {card(of.gpu)}" if of.gpu else ""
    return f"{short_name(of.model.hub_id)[:28]}, {of.setup.adapters.method.label}{where}"[:60]


def card(gpu: Gpu) -> str:
    """Label of a card: its name, and its memory if it is a custom card.

    >>> card(Gpu(name="own GPU", memory_bytes=24 * units.GIB))
    'own GPU, 24.0 GiB'
    """
    known = {**catalog.gpus(), **catalog.slices()}.get(gpu.name)
    parts = [gpu.name]
    if known is None:
        like = f" like {gpu.like}"
        parts = [gpu.name.removesuffix(like), units.gib(gpu.memory_bytes) + like * bool(gpu.like)]
    if known is not None and known.network_gb_per_s != gpu.network_gb_per_s:
        parts.append(f"{gpu.network_gb_per_s:g} GB/s between machines")
    return ", ".join(parts)


PHASES: Mapping[Phase, str] = {
    Phase.FORWARD: "Forward",
    Phase.LOSS: "Loss",
    Phase.REFERENCE: "Reference",
    Phase.SCORING: "Scoring",
    Phase.PUSH_WEIGHTS: "Pushing weights",
    Phase.GENERATION: "Generation",
    Phase.BACKWARD: "Backward",
    Phase.OPTIMIZER_STEP: "Optimizer step",
    Phase.LOAD: "Loading",
    Phase.EVALUATION: "Evaluation",
    Phase.SAVE: "Save",
}
PRECISIONS: Mapping[str, tuple[Dtype, MixedPrecision]] = {
    "bfloat16": (Dtype.BFLOAT16, MixedPrecision.NO),
    "bfloat16 with autocast": (Dtype.BFLOAT16, MixedPrecision.BF16),
    "float32 with bfloat16 autocast": (Dtype.FLOAT32, MixedPrecision.BF16),
    "float32": (Dtype.FLOAT32, MixedPrecision.NO),
    "bfloat16 with FP8": (Dtype.BFLOAT16, MixedPrecision.FP8),
    "float32 with FP8": (Dtype.FLOAT32, MixedPrecision.FP8),
    "float16": (Dtype.FLOAT16, MixedPrecision.NO),
}
SIGNS: Mapping[Verdict, str] = {Verdict.FITS: "✓", Verdict.TIGHT: "≈", Verdict.DOES_NOT_FIT: "✕"}


def short_name(hub_id: str) -> str:
    """The model's name without its owner."""
    return hub_id.rpartition("/")[2] or "this model"


def precision(setup: TrainingSetup) -> str:
    """The name of the pair of weights and autocast."""
    for name, pair in PRECISIONS.items():
        if pair == (setup.precision.dtype, setup.precision.mixed_precision):
            return name
    return f"{setup.precision.dtype} with {setup.precision.mixed_precision} autocast"


def moment(m: Moment) -> str:
    """A moment in words: ``backward (gradients of layer 3)``."""
    return f"{PHASES[m.phase].lower()} ({m.name})"


def sign(verdict: Verdict) -> str:
    """The verdict's symbol and word: ``✓ fits``."""
    return f"{SIGNS[verdict]} {theme.VERDICTS[verdict].label.lower()}"
