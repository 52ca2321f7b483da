"""StarCoder 2: Llama's layer with LayerNorms, biases and an MLP of two matrices.

Source: transformers 5.23, models/starcoder2, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_rules import one_bias
from estimator.families.family import (
    Architecture,
    ConfigClass,
    Family,
    ModelTree,
    NormKind,
    Why,
    WindowKeys,
)
from estimator.families.layers import plain_mlp, separate_attention
from estimator.families.modules import LEAF, Tree, tree
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _mlp(model: Model) -> Tree:
    up, down = parts.up_and_down(model, bias=model.mlp_bias)
    return tree("@MLP", c_fc=up, c_proj=down, act=LEAF)


def starcoder2(b: Block, x: Tensor) -> Tensor:
    """Llama with LayerNorms, biases and an MLP of two matrices."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = op.dropout(b.tape, separate_attention(b, x), b.model.resid_pdrop)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = plain_mlp(b, x, "mlp.c_fc", "mlp.c_proj")
    x = op.dropout(b.tape, x, b.model.resid_pdrop)
    return op.add(b.tape, residual, x)


FAMILIES = (
    Family(
        model_type="starcoder2",
        config=ConfigClass(
            tied=True,
            key_value_heads=2,
            hidden_act="gelu_pytorch_tanh",
            biases=one_bias("use_bias", default=True),
            windows=WindowKeys(everywhere=True),
            dropout_modules=(False, False, False),
            dropouts=(
                ("embedding_dropout", 0.0),
                ("attention_dropout", 0.0),
                ("residual_dropout", 0.0),
            ),
        ),
        tree=ModelTree(
            "Starcoder2",
            parts.decoder_layer(parts.attention, _mlp, bias=True),
            parts.with_biased_norm,
        ),
        architecture=Architecture(starcoder2, NormKind.LAYER_NORM),
        unread={
            Why.UNREAD: """
            activation_function attention_softmax_in_fp32 mlp_type norm_type scale_attention_softmax_in_fp32
            scale_attn_weights""",
        },
    ),
)
