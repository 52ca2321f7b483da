"""Nemotron: Arcee's layer with LayerNorms of 1 + weight.

Source: transformers 5.23, models/nemotron, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import parts
from estimator.families.config_rules import attention_biases
from estimator.families.family import (
    NO_KERNELS,
    Architecture,
    ConfigClass,
    Family,
    ModelTree,
    NormKind,
)
from estimator.families.known.arcee import arcee
from estimator.families.modules import Tree
from estimator.values.specs import Model


def _mlp(model: Model) -> Tree:
    return parts.plain_mlp(model, bias=model.mlp_bias)


FAMILIES = (
    Family(
        model_type="nemotron",
        config=ConfigClass(
            hidden_act="relu2", partial_rotary_factor=0.5, biases=attention_biases(has_mlp_key=True)
        ),
        tree=ModelTree(
            "Nemotron",
            parts.decoder_layer(parts.attention, _mlp, bias=True),
            parts.with_biased_norm,
        ),
        architecture=Architecture(arcee, NormKind.LAYER_NORM_PLUS_ONE),
        liger=replace(NO_KERNELS, fuses_head=True, relu_squared=True),
    ),
)
