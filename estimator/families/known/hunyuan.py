"""Hunyuan: Llama whose queries and keys are normalised after the rotation.

Source: transformers 5.23, models/hunyuan_v1_dense, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import Why
from estimator.families.family import Family, Kernels, ModuleClass
from estimator.families.layers import GATED_MLP, decoder_layer
from estimator.families.modules import Tree, tree
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _tree(model: Model) -> Tree:
    names = "q_proj k_proj v_proj o_proj query_layernorm key_layernorm"
    return tree("@Attention", **parts.attention(model, names))


def _attention(b: Block, x: Tensor) -> Tensor:
    q = b.linear("self_attn.q_proj", x)
    k = b.linear("self_attn.k_proj", x)
    v = b.linear("self_attn.v_proj", x)
    q, k = b.rotate(q, k)
    q = b.norm("self_attn.query_layernorm", q, groups=b.model.num_attention_heads)
    k = b.norm("self_attn.key_layernorm", k, groups=b.model.num_key_value_heads)
    out = b.attend(q, k, v)
    return b.linear("self_attn.o_proj", out)


FAMILIES = (
    Family(
        model_type="hunyuan_v1_dense",
        prefix="HunYuanDenseV1",
        layer=decoder_layer(ModuleClass("self_attn", _tree, _attention), GATED_MLP),
        liger=Kernels(head_norms=False),
        unread={
            Why.UNREAD: "add_classification_head attention_head_dim cla_share_factor class_num"
        },
    ),
)
