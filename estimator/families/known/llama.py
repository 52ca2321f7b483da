"""Llama, whose layer most families share.

Source: transformers 5.23, models/llama, modeling_*.py.
"""

from __future__ import annotations

from estimator.families.config_class import ConfigClass
from estimator.families.config_rules import attention_biases
from estimator.families.family import Family, Kernels
from estimator.families.layers import ATTENTION, GATED_MLP, decoder_layer

LLAMA_LAYER = decoder_layer(ATTENTION, GATED_MLP)
"""Norm, attention, add; norm, MLP, add: Llama, Mistral, Qwen, Granite and many more."""


FAMILIES = (
    Family(
        model_type="llama",
        config=ConfigClass(
            biases=attention_biases(has_mlp_key=True),
            wrappers=(
                "idefics3",
                "llava",
                "llava_next",
                "smolvlm",
                "video_llava",
                "vipllava",
                "voxtral",
            ),
            nested_sizes={
                "vocab_size": 32_000,
                "hidden_size": 4_096,
                "intermediate_size": 11_008,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "max_position_embeddings": 2_048,
            },
        ),
        prefix="Llama",
        layer=LLAMA_LAYER,
        liger=Kernels(),
        has_tp_plan=True,
    ),
)
