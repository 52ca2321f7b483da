"""Comparison of our figure with the rule of thumb."""

from __future__ import annotations

from dashboard.words import terms, units
from estimator import MORE_PASSES, STEP_PHASES, Component, Estimate


def sentence(estimate: Estimate) -> str:
    """Compares our figure with the rule of thumb, in the rule's GB and from the same parameter count."""
    setup, peak = estimate.setup, estimate.peak
    if setup.adapters.uses_adapters:
        trained = units.count(estimate.trainable_parameters)
        return (
            "The rule of thumb (2 bytes per parameter for weights, 8 for AdamW, 10 to 20 GB for the rest) is "
            f"for full fine-tuning. Here {trained} of {units.count(estimate.total_parameters)} parameters are trained; "
            "only these have gradients and optimizer states."
        )
    weights = estimate.total_parameters * setup.precision.dtype.bytes
    states = estimate.total_parameters * 8
    low, high = weights + states + 10 * units.GB, weights + states + 20 * units.GB
    rule = (
        f"The rule of thumb says {units.gb(weights)} + {units.gb(states)} + 10 to 20 = "
        f"{units.gb(low)} to {units.gb(high)} GB"
    )
    if setup.mesh.num_gpus > 1 and not setup.mesh.strategy.keeps_whole:
        return (
            f"{rule} for one GPU that holds the whole model. Here {setup.mesh.num_gpus:,} share it under "
            f"{setup.mesh.strategy}, so the rule says nothing about one of them; the fullest peaks at "
            f"{units.gb(peak.bytes)} GB, which is {units.gib(peak.bytes)}."
        )
    gradients = peak.resident.get(Component.GRADIENTS, 0)
    held = (Component.ACTIVATIONS, Component.LOGITS)
    summit = max(
        (m for m in estimate.moments if m.phase in (*STEP_PHASES, *MORE_PASSES)),
        key=lambda m: sum(m.resident.get(c, 0) for c in held),
    )
    highest = sum(summit.resident.get(c, 0) for c in held)
    left = sum(peak.resident.get(c, 0) for c in held)
    remaining = f"{units.gb(left)} GB" if left > units.GB // 20 else "hardly any"
    return (
        f"{rule}: {setup.precision.dtype.bytes} bytes a parameter for weights, 8 for AdamW in float32, and a guess for "
        f"activations. It forgets gradients: {units.gb(gradients)} GB at the peak. And it counts activations at the "
        f"wrong moment: with the logits they reach {units.gb(highest)} GB in {terms.moment(summit)}, but at the peak, "
        f"in {terms.moment(peak)}, {remaining} of them are left. "
        f"Our peak is {units.gb(peak.bytes)} GB, which is {units.gib(peak.bytes)}."
    )
