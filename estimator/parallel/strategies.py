"""Each strategy by its name: what it hooks onto a model's modules, and what a GPU keeps under it."""

from __future__ import annotations

from functools import lru_cache

from estimator.families.block import Block
from estimator.parallel.ddp import DdpHooks, replica
from estimator.parallel.device_map_hooks import DeviceMapHooks
from estimator.parallel.fsdp1_hooks import Fsdp1Hooks, fsdp1_shards
from estimator.parallel.fsdp2_hooks import Fsdp2Hooks, fsdp2_shards
from estimator.parallel.hooks import Hooks
from estimator.parallel.module_devices import ModuleDevices
from estimator.parallel.zero_hooks import ZeroHooks, zero_part
from estimator.resident.model import Resident, undivided
from estimator.tape.tape import Tape
from estimator.values.specs import Model, Strategy, TrainingSetup


def hooks(
    tape: Tape,
    model: Model,
    setup: TrainingSetup,
    outer: Block,
    ranks: int,
    devices: ModuleDevices | None,
) -> Hooks:
    """The hooks of a setup's strategy on a model; ``devices``: where its modules are, under a device map."""
    if devices is not None:
        return DeviceMapHooks(tape, devices)
    if setup.uses_fsdp1:
        return Fsdp1Hooks(tape, model, setup, outer, ranks)
    if setup.strategy.is_fsdp:
        return Fsdp2Hooks(tape, model, setup, outer, ranks)
    if setup.strategy.is_zero:
        return ZeroHooks(tape, model, setup, outer, ranks)
    if setup.strategy is Strategy.DDP:
        return DdpHooks(tape, setup)
    return Hooks(tape)


@lru_cache(maxsize=1024)
def resident_memory(model: Model, structure: TrainingSetup) -> Resident:
    """Bytes of weights, adapters, gradients and optimizer states on the fullest GPU, whatever the batch and length."""
    if structure.uses_fsdp1:
        return fsdp1_shards(model, structure)
    if structure.strategy.is_fsdp:
        return fsdp2_shards(model, structure)
    if structure.strategy.is_zero:
        return zero_part(model, structure)
    if structure.strategy is Strategy.DDP:
        return replica(model, structure)
    return undivided(model, structure)
