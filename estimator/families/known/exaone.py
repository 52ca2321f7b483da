"""EXAONE 4: norms behind attention and MLP, as OLMo 2 has them.

Source: transformers 5.23, models/exaone4, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import layouts, parts
from estimator.families.config_keys import WINDOWS
from estimator.families.family import (
    NORMS_BESIDE,
    Architecture,
    Family,
    FamilyModules,
    TreeLayout,
    Why,
)
from estimator.families.known.olmo import olmo2
from estimator.families.modules import Module
from estimator.values.specs import Model


def _exaone4_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.separate_attention(model, bias=False, output_bias=False),
        *parts.head_norms(model, "q_norm", "k_norm"),
        *parts.norms(model, "post_attention_layernorm"),
        *parts.gated_mlp(model),
        *parts.norms(model, "post_feedforward_layernorm"),
    )


FAMILIES = (
    Family(
        model_type="exaone4",
        modules=FamilyModules(_exaone4_modules),
        tree=TreeLayout(
            "Exaone4",
            layouts.decoder(
                f"{layouts.ATTENTION} {layouts.GATED} post_attention_layernorm post_feedforward_layernorm"
            ),
        ),
        architecture=Architecture(olmo2),
        liger=replace(NORMS_BESIDE, heads_first=True),
        unread={Why.OFF: f"{WINDOWS} sliding_window_pattern"},
    ),
)
