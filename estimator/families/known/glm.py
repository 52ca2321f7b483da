"""GLM and GLM-4; GLM-4.5 and 4.7 Flash, whose layers are DeepSeek's with other modules.

Source: transformers 5.23, models/glm, models/glm4, models/glm4_moe, models/glm4_moe_lite, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from estimator.families import parts
from estimator.families.config_rules import (
    first_dense,
    input_biases,
    latent_attention,
    several_shared,
)
from estimator.families.family import (
    NORMS_BESIDE,
    Architecture,
    ConfigClass,
    ExpertKeys,
    Family,
    ModelTree,
    Rotary,
    Why,
)
from estimator.families.known.deepseek import (
    DEEPSEEK_UNREAD,
    check_interleaved,
    deepseek_v3,
    dense_mlp,
    latent_attention_tree,
    mixture,
)
from estimator.families.layer_kinds import DENSE
from estimator.families.layers import decoder_layer, fused_gated_mlp, separate_attention
from estimator.families.modules import Tree, extended, tree
from estimator.families.reader import Config, kinds_in
from estimator.values.specs import Model


def glm_attention(model: Model) -> Tree:
    """With norms of queries and keys if the config has them."""
    return parts.normed_attention(model) if model.qk_norm else parts.attention(model)


def _glm_layer(model: Model) -> Tree:
    linears = parts.projections(model, bias=model.attention_bias, output_bias=False)
    return tree(
        "@DecoderLayer",
        self_attn=tree("@Attention", **linears),
        mlp=parts.fused_gated_mlp(model),
        input_layernorm=parts.norm(model),
        post_attention_layernorm=parts.norm(model),
    )


def _glm4_layer(model: Model) -> Tree:
    return extended(
        _glm_layer(model),
        post_self_attn_layernorm=parts.norm(model),
        post_mlp_layernorm=parts.norm(model),
    )


glm = decoder_layer(
    separate_attention, fused_gated_mlp, after=("post_self_attn_layernorm", "post_mlp_layernorm")
)
"""Llama with a fused gate and up; GLM-4 normalises what it adds as well."""


_GLM = Architecture(glm, rotary=Rotary.PAIRS)


def _own(read: Config, fields: dict[str, Any]) -> dict[str, Any]:
    return {"qk_norm": read.flag("use_qk_norm", default=False)}


def _latent(read: Config, fields: dict[str, Any]) -> dict[str, Any]:
    check_interleaved(read)
    widths = (768, 512, 192, 64, 256)
    return latent_attention(read, fields, widths, turned_key="head_dim")


def _groups(read: Config) -> int:
    return read.whole("n_group", default=1)


def _listed_mlps(read: Config, layers: int) -> tuple[str, ...]:
    """GLM-4.7 Flash names each; by its class's default the first has one MLP."""
    listed = read.items("mlp_layer_types", layers) or (DENSE, *["sparse"] * (layers - 1))
    kinds = kinds_in(read, "mlp_layer_types", listed, (DENSE, "sparse"))
    return kinds if DENSE in kinds else ()


FAMILIES = (
    Family(
        model_type="glm",
        config=ConfigClass(
            key_value_heads=2,
            head_dim=128,
            partial_rotary_factor=0.5,
            biases=input_biases("attention_bias", default=True),
        ),
        tree=ModelTree("Glm", _glm_layer),
        architecture=_GLM,
        unread={Why.OFF: "head_dim"},
    ),
    Family(
        model_type="glm4",
        config=ConfigClass(
            key_value_heads=2,
            head_dim=128,
            partial_rotary_factor=0.5,
            biases=input_biases("attention_bias", default=True),
            wrappers=("glm4v",),
            aliases=("glm4v_text",),
            alias_rotary_factors={"glm4v_text": 1.0},  # modeling_glm4v.py, Glm4vTextRotaryEmbedding
        ),
        tree=ModelTree("Glm4", _glm4_layer),
        architecture=_GLM,
        liger=replace(NORMS_BESIDE, rotary=False),
    ),
    Family(
        model_type="glm4_moe",
        config=ConfigClass(
            key_value_heads=8,
            partial_rotary_factor=0.5,
            biases=input_biases("attention_bias", default=False),
            experts=ExpertKeys(
                have_own_width=True,
                shared_width=several_shared("n_shared_experts", 1),
                normed=True,
                groups=_groups,
                layer_types=first_dense(1),
            ),
            wrappers=("glm4v_moe",),
            aliases=("glm4v_moe_text",),
            own=_own,
        ),
        tree=ModelTree(
            "Glm4Moe",
            parts.decoder_layer(glm_attention, mixture),
            others={DENSE: parts.decoder_layer(glm_attention, dense_mlp)},
        ),
        architecture=Architecture(deepseek_v3),
        unread=DEEPSEEK_UNREAD,
        merges_experts=True,
    ),
    Family(
        model_type="glm4_moe_lite",
        config=ConfigClass(
            head_dim=64,
            experts=ExpertKeys(
                have_own_width=True,
                shared_width=several_shared("n_shared_experts", 1),
                normed=True,
                groups=_groups,
                layer_types=_listed_mlps,
            ),
            own=_latent,
        ),
        tree=ModelTree(
            "Glm4MoeLite",
            parts.decoder_layer(latent_attention_tree, mixture),
            others={DENSE: parts.decoder_layer(latent_attention_tree, dense_mlp)},
        ),
        architecture=Architecture(deepseek_v3, rotary=Rotary.SPLIT_PAIRS),
        unread={**DEEPSEEK_UNREAD, Why.OFF: f"{DEEPSEEK_UNREAD[Why.OFF]} head_dim mlp_layer_types"},
        merges_experts=True,
    ),
)
