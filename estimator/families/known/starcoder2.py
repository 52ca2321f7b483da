"""StarCoder 2: Llama's layer with LayerNorms, biases and an MLP of two matrices.

Source: transformers 5.23, models/starcoder2, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from functools import partial

from estimator.families import parts
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
from estimator.families.layers import decoder_layer, dropped_attention, plain_mlp
from estimator.families.modules import LEAF, Tree, tree
from estimator.values.specs import Model


def _mlp(model: Model) -> Tree:
    up, down = parts.up_and_down(model, bias=model.mlp_bias)
    return tree("@MLP", c_fc=up, c_proj=down, act=LEAF)


starcoder2 = decoder_layer(dropped_attention, partial(plain_mlp, up="mlp.c_fc", down="mlp.c_proj"))
"""Llama with LayerNorms, biases and an MLP of two matrices."""


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
