"""Seconds of the optimizer and of adding up gradients, derived from the bytes that they move on one GPU."""

from __future__ import annotations

from estimator.resident.model import Resident
from estimator.time.rates import SLOW_BANDWIDTH_SHARE, Rates
from estimator.values.results import TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Optimizer, Strategy

ADDED_GRADIENTS = 3
"""Memory passes over the gradients in each micro-batch but the first, which adds to them in place: torch 2.13,
torch/csrc/autograd/functions/accumulate_grad.h."""
WHOLE_GRADIENTS = frozenset({Strategy.NONE, Strategy.DDP, Strategy.ZERO1, Strategy.DEVICE_MAP})
"""Strategies under which a GPU adds up the gradients of all its weights, not those of its shard."""
OPTIMIZER_STEP = "optimizer step"
FOREACH_PASSES = 20 / 7
"""Memory passes of foreach AdamW relative to the fused kernel's seven: torch 2.13, optim/adam.py,
``_multi_tensor_adam``: mul 2, lerp 3, mul 2, addcmul 3, sqrt 2, div 2, add 2, addcdiv 4."""
UNFUSED = frozenset({Optimizer.ADAMW_TORCH, Optimizer.ADAFACTOR})


def accumulation_part(setup: TrainingSetup, resident: Resident, rate: Rates) -> TimePart:
    """Gradients of the second and later micro-batches are added to those of the first."""
    ranks = 1 if setup.mesh.strategy in WHOLE_GRADIENTS else setup.mesh.shard_ranks
    moved = ADDED_GRADIENTS * resident.gradients / ranks
    seconds = (setup.batch.gradient_accumulation_steps - 1) * moved / rate.bandwidth
    return TimePart("gradients added up", seconds, seconds / SLOW_BANDWIDTH_SHARE)


def optimizer_part(setup: TrainingSetup, resident: Resident, rate: Rates) -> TimePart:
    """Gradients read, weights and states read and written; clipping adds a norm and an in-place product."""
    trained = resident.adapters if setup.adapters.uses_adapters else resident.weights
    states = resident.states.resident_bytes + resident.states.paged_bytes
    passes = FOREACH_PASSES if setup.optimisation.optim in UNFUSED else 1.0
    update = passes * (resident.gradients + 2 * trained + 2 * states)
    clips = setup.optimisation.max_grad_norm > 0
    low = (update + clips * resident.gradients) / rate.bandwidth
    high = (update + 3 * clips * resident.gradients) / (SLOW_BANDWIDTH_SHARE * rate.bandwidth)
    return TimePart(OPTIMIZER_STEP, low, high)
