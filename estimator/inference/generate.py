"""What transformers' own ``generate`` takes beside the trainer: gathered weights, its cache, logits."""

from __future__ import annotations

from estimator.families.adapters import is_trained_whole
from estimator.families.model_tree import modules_with_counts
from estimator.families.modules import Linear, module_parameters
from estimator.families.weights import unquantized_width, weight_width
from estimator.inference.kv_cache import layer_caches
from estimator.inference.pushing import largest_group
from estimator.inference.rows import row_tokens, rows_at_once
from estimator.parallel.placements import weight_bytes
from estimator.resident.model import Resident
from estimator.values.setup import TrainingSetup
from estimator.values.specs import MixedPrecision, Model

MAX_LIVE_PARAMETERS = 10**9
"""DeepSpeed 0.19, runtime/zero/config.py, ``stage3_max_live_parameters``."""
SAMPLED_BYTES = 8
"""Bytes per row and word beside the logits: a float32 copy and its softmax. transformers 5.23, generation/utils.py,
``_sample``."""


def compute_width(setup: TrainingSetup) -> int:
    """Bytes of an element that the model computes: 2 under autocast or in 16 bits."""
    if setup.precision.mixed_precision is not MixedPrecision.NO:
        return 2
    return unquantized_width(setup)


def gathered_bytes(model: Model, setup: TrainingSetup, resident: Resident) -> int:
    """Bytes of the weights that are gathered for the whole generation, beyond a GPU's own.

    Source: trl 1.16, models/utils.py:202, ``unwrap_model_for_generation`` (stage 3: ``GatheredParameters`` of all);
    distributed.py:74, ``summon_full_params`` (FSDP 1: the root's own; FSDP 2: nothing); torch 2.13,
    distributed/fsdp/_fully_shard (one group is gathered while another computes).
    """
    rest = weight_bytes(model, setup) - resident.weights
    if setup.mesh.strategy.gathers_modules:
        if setup.generation.ds3_gather_for_generation:
            return rest
        return min(rest, MAX_LIVE_PARAMETERS * unquantized_width(setup))
    return 2 * largest_group(model, setup) if setup.mesh.strategy.is_fsdp else 0


def cast_bytes(model: Model, setup: TrainingSetup) -> int:
    """Bytes of autocast's cached copies of trained float32 linears, which live for one forward call.

    Source: torch 2.13, aten/src/ATen/autocast_mode.cpp, ``cached_cast`` (leaves that require gradients, also under
    ``no_grad``).
    """
    if setup.precision.mixed_precision is MixedPrecision.NO:
        return 0
    return sum(
        2 * count * module_parameters(module)
        for module, count in modules_with_counts(model)
        if isinstance(module, Linear)
        and weight_width(module, setup) == 4
        and is_trained_whole(module, setup.adapters)
    )


def generate_bytes(model: Model, setup: TrainingSetup, resident: Resident) -> int:
    """Temporaries of the last token, in bytes per GPU: gathered weights, casts, logits, and one layer's new cache.

        a cache grows by concatenation: for a moment one layer's keys exist twice

    Source: transformers 5.23, cache_utils.py, ``DynamicLayer.update`` (``torch.cat``).
    """
    rows = rows_at_once(setup)
    logits = rows * model.vocab_size * (compute_width(setup) + SAMPLED_BYTES)
    layer = max((cache.token_bytes for cache, _ in layer_caches(model)), default=0)
    grown = rows * row_tokens(setup) * layer * compute_width(setup) // 2 // 2
    return gathered_bytes(model, setup, resident) + cast_bytes(model, setup) + max(logits, grown)


def prompt_bytes(model: Model, setup: TrainingSetup) -> int:
    """Temporaries of the prompts' pass: the widest layer, without gradients; the head sees the last token alone."""
    tokens = rows_at_once(setup) * setup.prompt_tokens
    wide = model.intermediate_size
    if model.num_experts:
        wide = max(
            wide * (model.moe_intermediate_size == 0),
            model.num_experts_per_tok * model.moe_intermediate_size,
        )
    return tokens * compute_width(setup) * (2 * model.hidden_size + 3 * wide)
