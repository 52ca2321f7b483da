"""Arcee: Llama's layer with an MLP of two matrices.

Source: transformers 5.23, models/arcee, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from functools import partial

from estimator.families import parts
from estimator.families.config_rules import attention_biases
from estimator.families.family import Architecture, ConfigClass, Family, ModelTree
from estimator.families.layers import decoder_layer, plain_mlp, separate_attention
from estimator.families.modules import Tree
from estimator.values.specs import Model


def _mlp(model: Model) -> Tree:
    return parts.plain_mlp(model, bias=model.mlp_bias)


arcee = decoder_layer(
    separate_attention, partial(plain_mlp, up="mlp.up_proj", down="mlp.down_proj")
)
"""Llama with an MLP of two matrices: Arcee, Nemotron."""


FAMILIES = (
    Family(
        model_type="arcee",
        config=ConfigClass(hidden_act="relu2", biases=attention_biases(has_mlp_key=True)),
        tree=ModelTree("Arcee", parts.decoder_layer(parts.attention, _mlp)),
        architecture=Architecture(arcee),
    ),
)
