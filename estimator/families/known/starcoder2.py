"""StarCoder 2: Llama's layer with LayerNorms, biases and an MLP of two matrices.

Source: transformers 5.23, models/starcoder2, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.config_class import ConfigClass, Why, WindowKeys
from estimator.families.config_rules import one_bias
from estimator.families.family import Family, NormKind
from estimator.families.layers import ATTENTION, decoder_layer, plain_mlp

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
        prefix="Starcoder2",
        layer=decoder_layer(ATTENTION, plain_mlp("c_fc", "c_proj", "up down act"), bias=True),
        root=parts.decoder(final_norm=parts.biased_norm),
        norm=NormKind.LAYER_NORM,
        unread={
            Why.UNREAD: """
            activation_function attention_softmax_in_fp32 mlp_type norm_type scale_attention_softmax_in_fp32
            scale_attn_weights""",
        },
    ),
)
