"""One line about a setup or its run."""

from __future__ import annotations

from dashboard.words import terms, units
from estimator import Estimate, Model, TrainingSetup, Verdict, offloads


def run(estimate: Estimate) -> str:
    """Time and cost of the run: ``3.1 to 6.9 hours, $8 to 19``; empty if unknown or if it cannot run."""
    if estimate.time is None or not estimate.can_run:
        return ""
    words = units.duration(*estimate.time.total_hours)
    if estimate.cost is not None:
        words += f", {units.dollars(*estimate.cost.cost_usd)}"
    return words


def run_sentence(estimate: Estimate) -> str:
    """Hours and dollars of the whole run; empty if unknown or if it cannot run."""
    time, cost = estimate.time, estimate.cost
    if time is None or not estimate.can_run:
        return ""
    setup = estimate.setup
    would = "takes" if estimate.verdict is Verdict.FITS else "would take"
    run = setup.run
    epochs = f"{run.num_train_epochs:g} epoch{'s' * (run.num_train_epochs != 1)}"
    sentence = (
        f"The run of {run.num_train_examples:,} example{'s' * (run.num_train_examples != 1)}, {epochs}, {would} "
        f"{units.duration(*time.total_hours)}"
    )
    if cost is None:
        return f"{sentence}."
    at = f"${cost.usd_per_gpu_hour:.2f} per GPU-hour"
    where = f"your {at}"
    if listing := cost.price:
        starts, old = listing.commitment == "marketplace", listing.is_old
        where = (
            f"{'starting at ' * starts}{at} at {listing.provider}, {listing.date}{', old' * old}"
        )
    return f"{sentence} and {units.dollars(*cost.cost_usd)} ({where})."


def setup_line(estimate: Estimate) -> str:
    """The setup in one line, for readers who do not see the controls."""
    return setup_words(estimate.model, estimate.setup)


def setup_words(model: Model, setup: TrainingSetup) -> str:
    """``setup_line`` of a setup that need not be estimated."""
    states = (
        f", {setup.optimisation.optim_state_dtype} states"
        if setup.optimisation.optim_state_dtype
        else ""
    )
    batch = setup.batch
    extras = " · checkpointing" if setup.computation.gradient_checkpointing else ""
    rank = f" r={setup.adapters.lora_r}" if setup.adapters.uses_adapters else ""
    return (
        f"{terms.short_name(model.hub_id)} · {setup.adapters.method.label}{rank} · {terms.precision(setup)} · "
        f"{setup.optimisation.optim}{states} · {batch.per_device_train_batch_size} × {batch.max_length:,} "
        f"tokens{extras}"
    )


def elsewhere(estimate: Estimate) -> str:
    """CPU memory and NVMe space that offload uses on each machine, with a leading space; empty without offload."""
    if not offloads(estimate.setup.mesh):
        return ""
    nvme = f" and {units.gib(estimate.nvme_bytes)} of NVMe" if estimate.nvme_bytes else ""
    return f" Each machine needs {units.gib(estimate.host_bytes)} of CPU memory{nvme}, offloaded tensors included."
