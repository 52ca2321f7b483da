"""What a run does beside its steps, side by side: loading, evaluating, saving, merging; for a table."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from estimator.evaluation import evaluation_moment
from estimator.loading import load_host_bytes, load_moment
from estimator.memory.offload import node_bytes, offloads
from estimator.memory.overhead import workspace_bytes
from estimator.moments import resident, structure
from estimator.results import Estimate
from estimator.saving import (
    FILE_BYTES,
    checkpoint_bytes,
    in_16_bits,
    merge_moment,
    merged_bytes,
    save_host_bytes,
    save_moment,
)


class Act(NamedTuple):
    """One thing that a run does; bytes at its highest, None where it needs none or nobody can say.

    The host of a step is what all processes of a machine have offloaded; of all else it is one process.
    """

    name: str
    gpu_bytes: int
    host_bytes: int | None
    disk_bytes: int | None


def acts(of: Estimate) -> tuple[Act, ...]:
    """Loading, a step, an evaluation batch, checkpoints with and without states, and merging if there are adapters.

    The evaluation is given whether one is planned or not. Bytes on one GPU, on the host for one process, on the disk.
    """
    model, setup = of.model, of.setup
    workspace = workspace_bytes(of.gpu)
    lying = resident(model, structure(setup))
    saving = save_moment(model, setup, lying, workspace).bytes
    host, nvme = node_bytes(model, structure(setup)) if offloads(setup) else (None, None)
    found = [
        Act(
            "Load",
            load_moment(model, setup, workspace).bytes,
            load_host_bytes(model, setup),
            None,
        ),
        Act("Training step", of.peak.bytes, host, nvme or None),
        Act(
            f"Evaluate {setup.per_device_eval_batch_size} × {setup.max_length:,} tokens",
            evaluation_moment(model, setup, workspace).bytes,
            None,
            None,
        ),
    ]
    what = "adapters" if setup.uses_adapters else "weights"
    for only, name in ((False, f"Save {what} and optimizer"), (True, f"Save {what} only")):
        saved = replace(setup, save_only_model=only)
        host, disk = save_host_bytes(model, saved, lying), checkpoint_bytes(lying, saved)
        found.append(Act(name, saving, host, disk))
    return (*found, *_merges(of, workspace))


def _merges(of: Estimate, workspace: int) -> list[Act]:
    """Merging after training; over a packed base also into one that is loaded anew in 16 bits."""
    model, setup = of.model, of.setup
    if not setup.uses_adapters:
        return []
    ways = [("Merge and save", setup)]
    if setup.has_packed_base:
        whole, bits = in_16_bits(setup), 8 if setup.has_8bit_base else 4
        ways = [(f"Merge, still in {bits} bits", setup), ("Merge into a 16-bit base", whole)]
    found = []
    for name, way in ways:
        lying = resident(model, structure(way))
        disk = merged_bytes(model, way, lying)
        gpu = merge_moment(model, way, lying, workspace).bytes
        found.append(Act(name, gpu, max(load_host_bytes(model, way), min(disk, FILE_BYTES)), disk))
    return found
