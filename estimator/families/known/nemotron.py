"""Nemotron: Arcee's layer with LayerNorms of 1 + weight.

Source: transformers 5.23, models/nemotron, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import parts
from estimator.families.config_class import ConfigClass
from estimator.families.config_rules import attention_biases
from estimator.families.family import NO_KERNELS, Family, NormKind
from estimator.families.layers import ATTENTION, decoder_layer, plain_mlp

FAMILIES = (
    Family(
        model_type="nemotron",
        config=ConfigClass(
            hidden_act="relu2", partial_rotary_factor=0.5, biases=attention_biases(has_mlp_key=True)
        ),
        prefix="Nemotron",
        layer=decoder_layer(ATTENTION, plain_mlp(), bias=True),
        root=parts.decoder(final_norm=parts.biased_norm),
        norm=NormKind.LAYER_NORM_PLUS_ONE,
        liger=replace(NO_KERNELS, fuses_head=True, relu_squared=True),
    ),
)
