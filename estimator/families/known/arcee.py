"""Arcee: Llama's layer with an MLP of two matrices.

Source: transformers 5.23, models/arcee, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_rules import attention_biases
from estimator.families.family import Architecture, ConfigClass, Family, ModelTree
from estimator.families.layers import plain_mlp, separate_attention
from estimator.families.modules import Tree
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _mlp(model: Model) -> Tree:
    return parts.plain_mlp(model, bias=model.mlp_bias)


def arcee(b: Block, x: Tensor) -> Tensor:
    """Llama with an MLP of two matrices: Arcee, Nemotron."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = separate_attention(b, x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = plain_mlp(b, x, "mlp.up_proj", "mlp.down_proj")
    return op.add(b.tape, residual, x)


FAMILIES = (
    Family(
        model_type="arcee",
        config=ConfigClass(hidden_act="relu2", biases=attention_biases(has_mlp_key=True)),
        tree=ModelTree("Arcee", parts.decoder_layer(parts.attention, _mlp)),
        architecture=Architecture(arcee),
    ),
)
