"""Links: the URL that opens a setup."""

from __future__ import annotations

from estimator import ALL_LINEAR, Estimate, Model, TrainingSetup, contract, default_targets


def query(of: Estimate) -> str:
    """The query of a URL, without the question mark: every key that differs from the contract's defaults."""
    return contract.write_link(of.model, of.gpu, of.setup)


def targets_as_chosen(model: Model, setup: TrainingSetup) -> str | tuple[str, ...]:
    """LoRA's targets as stored in the session.

    A model's default targets are stored as ``ALL_LINEAR``, so that another model gets its own defaults.
    """
    targets = setup.adapters.lora_target_modules
    return ALL_LINEAR if targets == default_targets(model, setup.adapters) else targets
