"""Arcee: Llama's layer with an MLP of two matrices.

Source: transformers 5.23, models/arcee, modeling_*.py.
"""

from __future__ import annotations

from estimator.families.config_class import ConfigClass
from estimator.families.config_rules import attention_biases
from estimator.families.family import Family
from estimator.families.layers import ATTENTION, decoder_layer, plain_mlp

FAMILIES = (
    Family(
        model_type="arcee",
        config=ConfigClass(hidden_act="relu2", biases=attention_biases(has_mlp_key=True)),
        prefix="Arcee",
        layer=decoder_layer(ATTENTION, plain_mlp()),
    ),
)
