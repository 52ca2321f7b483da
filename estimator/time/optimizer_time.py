"""Seconds of the optimizer and of adding up gradients, derived from the bytes that they move on one GPU."""

from __future__ import annotations

from estimator.families.adapters import trainable_parameters
from estimator.families.packed import FLOAT32_BYTES
from estimator.resident.model import Resident
from estimator.resident.optimizer import RULES, Trainable, optimizer_states
from estimator.time.rates import BANDWIDTH_SHARE, Rates
from estimator.values.arithmetic import ceil_div
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.batch import Batch
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.optimisation import Optimisation
from estimator.values.range import Range
from estimator.values.results import TimePart
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

ADDED_GRADIENTS = 3
"""Memory passes over the gradients in each micro-batch but the first, which adds to them in place: torch 2.13,
torch/csrc/autograd/functions/accumulate_grad.h."""
CLIPPING = Range(1.0, 3.0)
"""Memory passes of clipping: the norm's, and at worst an in-place product, which reads and writes. derived."""
OPTIMIZER_STEP = "optimizer step"
FOREACH_PASSES = 20 / 7
"""Memory passes of foreach AdamW relative to the fused kernel's seven: torch 2.13, optim/adam.py,
``_multi_tensor_adam``: mul 2, lerp 3, mul 2, addcmul 3, sqrt 2, div 2, add 2, addcdiv 4."""
BESIDE_ZERO = Range(46.0, 78.0)
"""Bytes per element of its partition that DeepSpeed moves in a step beside the optimizer, in 16 bits: largest and
smallest gradient 4, cast to float64 and normed 10 + 8, flattened 4, cast to float32 6, scaled 8, weights cast back 6.
Releases that looked for infinities element by element moved 36 instead of 4: cast 6, compared 5 + 13, joined 3, cast 5,
largest 4. DeepSpeed 0.19.6, runtime/utils.py, ``has_inf_or_nan``, whose words say what it replaced;
runtime/zero/stage_1_and_2.py, ``get_grad_norm_direct`` and ``step``; stage3.py, ``_prepare_fp32_grad_for_sub_group``,
``unscale_and_clip_grads`` and ``_reassign_or_swap_out_partitioned_parameters``."""


def accumulation_part(batch: Batch, mesh: Mesh, resident: Resident, rate: Rates) -> TimePart:
    """Gradients of the second and later micro-batches are added to those of the first."""
    ranks = mesh.shard_ranks if mesh.strategy.shards_gradients else 1
    moved = ADDED_GRADIENTS * resident.gradients / ranks
    seconds = (batch.gradient_accumulation_steps - 1) * moved / rate.bandwidth
    return TimePart("gradients added up", seconds / BANDWIDTH_SHARE)


def optimizer_part(
    adapters: Adapters, optimisation: Optimisation, resident: Resident, rate: Rates
) -> TimePart:
    """Gradients read, weights and states read and written; clipping adds a norm and an in-place product."""
    trained = resident.adapters if adapters.uses_adapters else resident.weights
    states = resident.states.resident_bytes + resident.states.paged_bytes
    passes = 1.0 if RULES[optimisation.optim].is_fused else FOREACH_PASSES
    update = passes * (resident.gradients + 2 * trained + 2 * states)
    clipped = resident.gradients if optimisation.max_grad_norm > 0 else 0
    moved = update + CLIPPING * clipped
    return TimePart(OPTIMIZER_STEP, moved / (BANDWIDTH_SHARE * rate.bandwidth))


def zero_optimizer_part(model: Model, setup: TrainingSetup, rate: Rates) -> TimePart:
    """The optimizer's step of one rank under ZeRO: float32 weights, gradients and states of its partition."""
    part = ceil_div(trainable_parameters(model, setup.adapters), setup.mesh.num_gpus)
    of = setup.optimisation
    states = optimizer_states(
        [Trainable((part,), FLOAT32_BYTES, 1)], of.optim, of.optim_state_dtype
    )
    passes = 1.0 if RULES[of.optim].is_fused else FOREACH_PASSES
    held = FLOAT32_BYTES * part + states.resident_bytes + states.paged_bytes
    update = passes * (FLOAT32_BYTES * part + 2 * held)
    moved = BESIDE_ZERO * part + update
    return TimePart(OPTIMIZER_STEP, moved / (BANDWIDTH_SHARE * rate.bandwidth))
