"""Hunyuan: Llama whose queries and keys are normalised after the rotation.

Source: transformers 5.23, models/hunyuan_v1_dense, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.family import Architecture, Family, Kernels, ModelTree, NormKind, Why
from estimator.families.layers import decoder_layer, gated_mlp
from estimator.families.modules import Tree
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _attention(model: Model) -> Tree:
    norms = {name: parts.head_norm(model) for name in ("query_layernorm", "key_layernorm")}
    return parts.attention(model, **norms)


def _late_rotated_attention(b: Block, x: Tensor) -> Tensor:
    q = b.linear("self_attn.q_proj", x)
    k = b.linear("self_attn.k_proj", x)
    v = b.linear("self_attn.v_proj", x)
    q, k = b.rotate(q, k)
    q = b.norm(
        "self_attn.query_layernorm", q, groups=b.model.num_attention_heads, kind=NormKind.RMS
    )
    k = b.norm("self_attn.key_layernorm", k, groups=b.model.num_key_value_heads, kind=NormKind.RMS)
    out = b.attend(q, k, v)
    return b.linear("self_attn.o_proj", out)


hunyuan = decoder_layer(_late_rotated_attention, gated_mlp)
"""Llama whose queries and keys are normalised after the rotation."""


FAMILIES = (
    Family(
        model_type="hunyuan_v1_dense",
        tree=ModelTree("HunYuanDenseV1", parts.decoder_layer(_attention, parts.gated_mlp)),
        architecture=Architecture(hunyuan),
        liger=Kernels(head_norms=False),
        unread={
            Why.UNREAD: "add_classification_head attention_head_dim cla_share_factor class_num"
        },
    ),
)
