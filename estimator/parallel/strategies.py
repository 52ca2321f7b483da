"""Each strategy's hooks on a model's modules, and its resident memory per GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from estimator.families.block import Block
from estimator.parallel.computed import as_frozen, computed
from estimator.parallel.ddp import DdpHooks, replica
from estimator.parallel.device_map_hooks import DeviceMapHooks
from estimator.parallel.fsdp1 import frozen_flat_bytes, fsdp1_shards
from estimator.parallel.fsdp1_hooks import FrozenFsdp1Hooks, Fsdp1Hooks
from estimator.parallel.fsdp2_hooks import (
    Fsdp2Hooks,
    Fsdp2OfPartsHooks,
    frozen_fsdp2,
    frozen_shards_bytes,
    sharded_parts,
)
from estimator.parallel.hooks import Hooks
from estimator.parallel.module_devices import ModuleDevices
from estimator.parallel.placements import AS_LOADED, unsharded, weight_bytes
from estimator.parallel.sharding import fsdp2_shards
from estimator.parallel.tensor_parallel import TensorParallelHooks, divided
from estimator.parallel.tensors import trained_in_order
from estimator.parallel.zero import partitioned_bytes, zero_part
from estimator.parallel.zero_hooks import ZeroHooks
from estimator.resident.model import Resident
from estimator.resident.optimizer import LOW_RANK_OPTIMIZERS, Trainable, step_transient
from estimator.resident.optimizer import RULES as RULES_OF_OPTIMIZERS
from estimator.tape.tape import Tape
from estimator.values.facets.computation import Computation
from estimator.values.facets.mesh import Mesh
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model
from estimator.values.strategies import Strategy


def _whole(model: Model, setup: TrainingSetup) -> int:
    return weight_bytes(model, computed(setup))


MadeHooks = Callable[[Tape, Model, TrainingSetup, Block, int], Hooks]
"""From a tape, a model, its setup, the modules outside its layers, and the number of ranks."""


class StrategyRule(NamedTuple):
    """The hooks and the resident memory of one strategy."""

    hooks: MadeHooks
    resident: Callable[[Model, TrainingSetup], Resident]
    """Resident memory of the fullest GPU."""
    frozen_hooks: MadeHooks = Hooks
    """Of a second model, of which nothing is trained, in a setup from ``as_frozen``."""
    frozen_bytes: Callable[[Model, TrainingSetup], int] = _whole
    """Bytes of that model that stay on a GPU between the steps."""


ALONE = StrategyRule(Hooks, unsharded)
FSDP1 = StrategyRule(Fsdp1Hooks, fsdp1_shards, FrozenFsdp1Hooks, frozen_flat_bytes)
FSDP2 = StrategyRule(Fsdp2Hooks, fsdp2_shards, frozen_fsdp2, frozen_shards_bytes)
ZERO = StrategyRule(ZeroHooks, zero_part)
RULES: dict[Strategy, StrategyRule] = {
    Strategy.NONE: ALONE,
    Strategy.DEVICE_MAP: ALONE,  # its hooks need to know where the modules are
    Strategy.DDP: StrategyRule(DdpHooks, replica),
    Strategy.ZERO1: ZERO,
    Strategy.ZERO2: ZERO,
    Strategy.ZERO3: StrategyRule(ZeroHooks, zero_part, ZeroHooks, partitioned_bytes),
    Strategy.FSDP: FSDP2,
    Strategy.FSDP_GRAD_OP: FSDP2,
    Strategy.HSDP: FSDP2,
}
"""One row per strategy."""


TENSOR_PARALLEL = StrategyRule(TensorParallelHooks, divided)
FSDP2_OF_PARTS = StrategyRule(Fsdp2OfPartsHooks, sharded_parts)


def rule(mesh: Mesh) -> StrategyRule:
    """The record of a mesh's strategy."""
    if mesh.tp_size > 1:
        return FSDP2_OF_PARTS if mesh.strategy.is_fsdp else TENSOR_PARALLEL
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
    of = rule(setup.mesh)
    return (of.hooks if trained else of.frozen_hooks)(tape, model, setup, outer, ranks)


def reference_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of a reference model of its own, per GPU; 0 where the loss asks none, or the policy without its adapters.

    It is loaded by the policy's name and in the policy's dtype.

    Source: trl 1.16, trainer/dpo_trainer.py:909-927 (``setdefault("dtype", self.model.dtype)``).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> reference_bytes(TINY_LLAMA, TrainingSetup(objective="dpo")) == weight_bytes(TINY_LLAMA, TrainingSetup())
    True
    """
    return frozen_bytes(model, as_frozen(setup)) if setup.keeps_reference else 0


def frozen_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of a second model that stay on a GPU between the steps; ``setup`` as ``as_frozen`` gives it."""
    return rule(setup.mesh).frozen_bytes(model, setup)


@lru_cache(maxsize=1024)
def at_rest(structure: TrainingSetup) -> TrainingSetup:
    """The setup with the default kernels and no checkpointing: they change what a step computes, not what it trains."""
    return replace(structure, computation=Computation())


def resident_memory(model: Model, structure: TrainingSetup) -> Resident:
    """Bytes of weights, adapters, gradients and states on the fullest GPU, independent of batch and length."""
    return _resident(model, at_rest(structure))


@lru_cache(maxsize=1024)
def _resident(model: Model, structure: TrainingSetup) -> Resident:
    resident = rule(structure.mesh).resident(model, structure)
    optimizer = RULES_OF_OPTIMIZERS[structure.optimisation.optim]
    if (
        resident.transient
        and (optimizer.sums_rows or optimizer.projects)
        and structure.mesh.strategy.keeps_whole
    ):
        tensors = [*chain(*stepped_in_order(model, structure))]
        resident = replace(
            resident, transient=step_transient(tensors, structure.optimisation.optim, None)
        )
    return replace(resident, reference=reference_bytes(model, structure))


def stepped_in_order(model: Model, setup: TrainingSetup) -> tuple[list[Trainable], list[Trainable]]:
    """The two groups of trained tensors that Trainer's optimizer steps: with weight decay, and without.

    GaLore and APOLLO: what they do not project, and what they do.

    Source: transformers 5.23, trainer.py, ``create_optimizer``, trainer_optimizer.py, ``_setup_low_rank_optimizer``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> with_decay, without = stepped_in_order(TINY_LLAMA, TrainingSetup())
    >>> [tensor.shape for tensor in with_decay][-2:], {tensor.shape for tensor in without}
    ([(8, 16), (10, 8)], {(8,)})
    """
    projects = setup.optimisation.optim in LOW_RANK_OPTIMIZERS
    groups: tuple[list[Trainable], list[Trainable]] = [], []
    for trained in trained_in_order(model, setup.adapters):
        tensor = AS_LOADED.held(trained.tensor, setup)
        groups[tensor.is_linear if projects else not trained.decays].append(tensor)
    return groups
