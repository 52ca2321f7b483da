"""What it takes to give the engine new weights: merged if there are adapters, gathered if they are sharded."""

from __future__ import annotations

from math import prod

from estimator.families.adapters import is_adapted
from estimator.families.model_tree import modules_with_counts
from estimator.families.modules import Linear, weight_shapes
from estimator.families.weights import adapter_width, weight_width
from estimator.parallel.placements import module_bytes, weight_bytes
from estimator.parallel.sharding import fsdp_groups
from estimator.resident.model import Resident
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

VERL_BUCKET = 2048 * 2**20
"""Bytes of verl's buffer of weights: ``update_weights_bucket_megabytes`` 2048, trainer/config/rollout/rollout.yaml."""


def push_bytes(model: Model, setup: TrainingSetup, resident: Resident) -> int:
    """Temporaries while weights are pushed, in bytes per GPU.

        full    the largest parameter, gathered; under FSDP 1 the largest unit; nothing without sharding
        lora    the whole model under zero3; and the largest product of adapters, twice: as computed and scaled

    verl sends them through a bucket on the GPU.

    Source: verl 0.9.1, workers/rollout/vllm_rollout/bucketed_weight_transfer.py:183; trl 1.16,
    generation/vllm_generation.py:387-480 (``_iter_fsdp1_params``, ``_iter_fsdp2_params``,
    ``_iter_named_params``); peft 0.21, tuners/lora/layer.py:1067 (``get_delta_weight``).
    """
    found = VERL_BUCKET if setup.task.given_loss.is_verls else 0
    strategy = setup.mesh.strategy
    if setup.mesh.uses_fsdp1:
        found += largest_group(model, setup)
    elif strategy.is_fsdp or (strategy.gathers_modules and not setup.adapters.uses_adapters):
        found += largest_parameter(model, setup)
    elif strategy.gathers_modules:
        found += weight_bytes(model, setup) - resident.weights
    if setup.adapters.uses_adapters:
        found += (
            2
            * adapter_width(setup)
            * max(
                (
                    prod(weight_shapes(module)[0])
                    for module, _ in modules_with_counts(model)
                    if isinstance(module, Linear) and is_adapted(module, setup.adapters)
                ),
                default=0,
            )
        )
    return found


def largest_group(model: Model, setup: TrainingSetup) -> int:
    """Bytes of the modules that FSDP gathers at once, at most (derived, from ``fsdp_groups``)."""
    return max(
        sum(module_bytes(module, setup) for module in group.modules)
        for group in fsdp_groups(model, setup.adapters)
    )


def largest_parameter(model: Model, setup: TrainingSetup) -> int:
    """Bytes of the largest single parameter, whole (derived, from ``weight_shapes``)."""
    return max(
        prod(shape) * weight_width(module, setup)
        for module, _ in modules_with_counts(model)
        for shape in weight_shapes(module)
    )
