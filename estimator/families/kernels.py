"""Which kernels run: the attention kernel, and PyTorch fallbacks for optional packages."""

from __future__ import annotations

from functools import lru_cache

from estimator.families.model_tree import modules_with_counts
from estimator.families.modules import Norm
from estimator.families.registry import family_of
from estimator.values.facets.computation import Computation
from estimator.values.specs import AttnImplementation, Model


@lru_cache(maxsize=256)
def fallback_of(model: Model) -> tuple[str, str] | None:
    """The family's ``fallback``, if the model has such layers, which all begin with a convolution."""
    has_filters = any(
        isinstance(module, Norm) and module.taps for module, _ in modules_with_counts(model)
    )
    return family_of(model).fallback if has_filters else None


def attention_of(model: Model, computation: Computation) -> AttnImplementation:
    """The attention kernel that transformers runs: the setup's, or eager if the family does not support SDPA."""
    wanted = computation.attn_implementation
    if wanted.is_torchs and family_of(model).eager_only:
        return AttnImplementation.EAGER
    return wanted
