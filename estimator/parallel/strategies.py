"""Each strategy's hooks on a model's modules, and its resident memory per GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from estimator.families.block import Block
from estimator.parallel.ddp import DdpHooks, replica
from estimator.parallel.device_map_hooks import DeviceMapHooks
from estimator.parallel.frozen import frozen_hooks, reference_bytes
from estimator.parallel.fsdp1_hooks import Fsdp1Hooks, fsdp1_shards
from estimator.parallel.fsdp2_hooks import Fsdp2Hooks, fsdp2_shards
from estimator.parallel.hooks import Hooks
from estimator.parallel.module_devices import ModuleDevices
from estimator.parallel.parameter_order import stepped_in_order
from estimator.parallel.tensor_parallel import TensorParallelHooks, divided
from estimator.parallel.zero_hooks import ZeroHooks, zero_part
from estimator.resident.model import Resident, unsharded
from estimator.resident.optimizer import LOW_RANK_OPTIMIZERS, step_transient
from estimator.tape.tape import Tape
from estimator.values.facets.computation import Computation
from estimator.values.facets.mesh import Mesh
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model, Optimizer
from estimator.values.strategies import Strategy


class StrategyRule(NamedTuple):
    """The hooks and the resident memory of one strategy."""

    hooks: Callable[[Tape, Model, TrainingSetup, Block, int], Hooks]
    """From a tape, the model, its setup, the modules outside its layers, and the number of ranks."""
    resident: Callable[[Model, TrainingSetup], Resident]
    """Resident memory of the fullest GPU."""


ALONE = StrategyRule(Hooks, unsharded)
FSDP1 = StrategyRule(Fsdp1Hooks, fsdp1_shards)
FSDP2 = StrategyRule(Fsdp2Hooks, fsdp2_shards)
ZERO = StrategyRule(ZeroHooks, zero_part)
RULES: dict[Strategy, StrategyRule] = {
    Strategy.NONE: ALONE,
    Strategy.DEVICE_MAP: ALONE,  # its hooks need to know where the modules are
    Strategy.DDP: StrategyRule(DdpHooks, replica),
    Strategy.ZERO1: ZERO,
    Strategy.ZERO2: ZERO,
    Strategy.ZERO3: ZERO,
    Strategy.FSDP: FSDP2,
    Strategy.FSDP_GRAD_OP: FSDP2,
    Strategy.HSDP: FSDP2,
}
"""One row per strategy."""


TENSOR_PARALLEL = StrategyRule(TensorParallelHooks, divided)


def _rule(mesh: Mesh) -> StrategyRule:
    if mesh.tp_size > 1:
        return TENSOR_PARALLEL
    return FSDP1 if mesh.uses_fsdp1 else RULES[mesh.strategy]


def hooks(
    tape: Tape,
    model: Model,
    setup: TrainingSetup,
    outer: Block,
    ranks: int,
    devices: ModuleDevices | None,
    *,
    trained: bool = True,
) -> Hooks:
    """The hooks of a setup's strategy on a model; ``devices``: where its modules are, under a device map.

    Not ``trained``: a second model of the step, in a setup from ``as_frozen``.
    """
    if devices is not None:
        return DeviceMapHooks(tape, devices)
    if not trained:
        return frozen_hooks(tape, model, setup, outer, ranks)
    return _rule(setup.mesh).hooks(tape, model, setup, outer, ranks)


@lru_cache(maxsize=1024)
def at_rest(structure: TrainingSetup) -> TrainingSetup:
    """The setup with the default kernels and no checkpointing: they change what a step computes, not what it trains."""
    return replace(structure, computation=Computation())


def resident_memory(model: Model, structure: TrainingSetup) -> Resident:
    """Bytes of weights, adapters, gradients and states on the fullest GPU, independent of batch and length."""
    return _resident(model, at_rest(structure))


@lru_cache(maxsize=1024)
def _resident(model: Model, structure: TrainingSetup) -> Resident:
    resident = _rule(structure.mesh).resident(model, structure)
    if (
        resident.transient
        and structure.optimisation.optim in {Optimizer.ADAFACTOR, *LOW_RANK_OPTIMIZERS}
        and structure.mesh.strategy.keeps_whole
    ):
        tensors = [*chain(*stepped_in_order(model, structure))]
        resident = replace(
            resident, transient=step_transient(tensors, structure.optimisation.optim, None)
        )
    return replace(resident, reference=reference_bytes(model, structure))
