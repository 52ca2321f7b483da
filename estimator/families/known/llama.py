"""Llama, whose layer most families share.

Source: transformers 5.23, models/llama, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_rules import attention_biases
from estimator.families.experts import mixture
from estimator.families.family import Architecture, ConfigClass, Family, Kernels, ModelTree
from estimator.families.layers import decoder_layer, dropped_attention, gated_mlp
from estimator.families.modules import Tree
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _mlp(model: Model) -> Tree:
    return parts.gated_mlp(model, bias=model.mlp_bias)


llama_layer = parts.decoder_layer(parts.attention, _mlp)
"""Llama's layer."""


def _mlp_or_experts(b: Block, x: Tensor) -> Tensor:
    return gated_mlp(b, x) if b.has("mlp.gate_proj") else mixture(b, x)


llama = decoder_layer(dropped_attention, _mlp_or_experts)
"""Norm, attention, add; norm, MLP or experts, add. Llama, Mistral, Qwen2, Qwen3, Mixtral, Granite and many more."""
LLAMA_STEP = Architecture(llama)


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
        has_tp_plan=True,
        tree=ModelTree("Llama", llama_layer),
        architecture=LLAMA_STEP,
        liger=Kernels(),
    ),
)
