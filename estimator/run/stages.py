"""The stages of a run for a table: loading, a step, evaluation, saving, merging."""

from __future__ import annotations

from typing import NamedTuple

from estimator.parallel.offload import node_bytes, offloads
from estimator.parallel.strategies import resident_memory
from estimator.resident.overhead import workspace_bytes
from estimator.run.checkpoints import checkpoint
from estimator.run.loading import load_host_bytes
from estimator.run.saving import (
    FILE_BYTES,
    in_16_bits,
    merge_moment,
    merged_bytes,
)
from estimator.step.timeline import structure
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import SHARDED_STATE_DICT, Offload, Phase
from estimator.values.strategies import Strategy


class Stage(NamedTuple):
    """One stage of a run; peak bytes, None where nothing is needed or the amount is unknown.

    Host bytes of a step are what all processes of a machine offload; for other stages, those of one process.
    """

    name: str
    gpu_bytes: int
    host_bytes: int | None
    """For the process of rank 0."""
    disk_bytes: int | None
    other_host_bytes: int | None = None
    """For each other process, with several GPUs."""


def stages(of: Estimate) -> tuple[Stage, ...]:
    """Loading, a step, an evaluation batch, checkpoints with and without states, and merging if there are adapters.

    Evaluation is included even if none is planned. Bytes on the fullest GPU, on the host for one process, and on disk.
    """
    model, setup = of.model, of.setup
    workspace = workspace_bytes(of.gpu)
    host, nvme = node_bytes(model, structure(setup)) if offloads(setup.mesh) else (None, None)
    found = [
        Stage(
            "Load",
            of.phases[Phase.LOAD].bytes,
            load_host_bytes(model, setup),
            None,
        ),
        Stage("Training step", of.peak.bytes, host, nvme or None),
        Stage(
            f"Evaluate {setup.run.per_device_eval_batch_size} × {setup.batch.max_length:,} tokens",
            of.run.evaluation.bytes,
            None,
            None,
        ),
    ]
    return (*found, *_saves(of), *_merges(of, workspace))


def _saves(of: Estimate) -> list[Stage]:
    """A checkpoint with and without optimizer states; only with them if Trainer refuses the other."""
    model, setup = of.model, of.setup
    what = "adapters" if setup.adapters.uses_adapters else "weights"
    ways = {f"Save {what} and optimizer": False, f"Save {what} only": True}
    if setup.mesh.strategy.is_fsdp and setup.run.fsdp_state_dict_type == SHARDED_STATE_DICT:
        del ways[f"Save {what} only"]
    found = []
    for name, only in ways.items():
        _, rank0, others, disk = checkpoint(model, setup.replace(save_only_model=only))
        gpu = of.phases[Phase.SAVE].bytes
        found.append(Stage(name, gpu, rank0, disk, others if setup.mesh.num_gpus > 1 else None))
    return found


def _on_one(setup: TrainingSetup) -> TrainingSetup:
    """Adapters are merged after training, on one GPU."""
    return setup.replace(
        strategy=Strategy.NONE,
        num_gpus=1,
        dp_replicate_size=1,
        offload_optimizer=Offload.NONE,
        offload_param=Offload.NONE,
    )


def _merges(of: Estimate, workspace: int) -> list[Stage]:
    """Merging after training; with a packed base, also into one reloaded in 16 bits."""
    model, setup = of.model, _on_one(of.setup)
    if not setup.adapters.uses_adapters:
        return []
    ways = [("Merge and save", setup)]
    if setup.adapters.has_packed_base:
        whole, bits = in_16_bits(setup), 8 if setup.adapters.has_8bit_base else 4
        ways = [(f"Merge, still in {bits} bits", setup), ("Merge into a 16-bit base", whole)]
    found = []
    for name, way in ways:
        resident = resident_memory(model, structure(way))
        disk = merged_bytes(model, way.adapters, way.precision, resident)
        gpu = merge_moment(model, way, resident, workspace).bytes
        found.append(
            Stage(name, gpu, max(load_host_bytes(model, way), min(disk, FILE_BYTES)), disk)
        )
    return found
