"""Nemotron: Arcee's layer with LayerNorms of 1 + weight.

Source: transformers 5.23, models/nemotron, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import layouts, parts
from estimator.families.config_rules import attention_biases
from estimator.families.family import (
    NO_KERNELS,
    Architecture,
    ConfigClass,
    Family,
    FamilyModules,
    NormKind,
    TreeLayout,
)
from estimator.families.known.arcee import arcee
from estimator.families.modules import Module
from estimator.values.specs import Model


def _nemotron_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "input_layernorm", bias=True),
        *parts.configured_attention(model),
        *parts.norms(model, "post_attention_layernorm", bias=True),
        *parts.plain_mlp(model, "mlp.up_proj", "mlp.down_proj", bias=model.mlp_bias),
    )


FAMILIES = (
    Family(
        model_type="nemotron",
        config=ConfigClass(
            hidden_act="relu2", partial_rotary_factor=0.5, biases=attention_biases(has_mlp_key=True)
        ),
        modules=FamilyModules(
            _nemotron_modules, parts.outer("embed_tokens", "norm", norm_bias=True)
        ),
        tree=TreeLayout(
            "Nemotron", layouts.decoder(f"{layouts.ATTENTION} {layouts.PLAIN} {layouts.TWO_NORMS}")
        ),
        architecture=Architecture(arcee, NormKind.LAYER_NORM_PLUS_ONE),
        liger=replace(NO_KERNELS, fuses_head=True, relu_squared=True),
    ),
)
