"""GLM and GLM-4; GLM-4.5 and 4.7 Flash, whose layers are DeepSeek's with other modules.

Source: transformers 5.23, models/glm, models/glm4, models/glm4_moe, models/glm4_moe_lite, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from estimator.families.config_class import ConfigClass, ExpertKeys, Fields, Why
from estimator.families.config_rules import (
    expert_groups,
    first_dense,
    input_biases,
    latent_attention,
    several_shared,
)
from estimator.families.family import NORMS_BESIDE, Family, ModuleClass, Rotary
from estimator.families.known.deepseek import (
    DEEPSEEK_UNREAD,
    DENSE_MLP,
    LATENT_ATTENTION,
    MIXTURE,
    check_interleaved,
)
from estimator.families.layer_kinds import DENSE
from estimator.families.layers import (
    ATTENTION,
    FUSED_GATED_MLP,
    attention_tree,
    decoder_layer,
    late_norm_attention,
    normed_tree,
)
from estimator.families.modules import Tree
from estimator.families.reader import Config, kinds_in
from estimator.values.specs import Model

_GLM = decoder_layer(ATTENTION, FUSED_GATED_MLP)
"""Llama with a fused gate and up."""
_GLM4 = decoder_layer(
    ATTENTION,
    FUSED_GATED_MLP,
    after=("post_self_attn_layernorm", "post_mlp_layernorm"),
    order="""self_attn mlp input_layernorm post_attention_layernorm
    post_self_attn_layernorm post_mlp_layernorm""",
)
"""GLM-4 normalises what it adds as well."""


def _moe_attention_tree(model: Model) -> Tree:
    """With norms of queries and keys if the config has them."""
    return normed_tree(model) if model.qk_norm else attention_tree(model)


_MOE_ATTENTION = ModuleClass(
    "self_attn", _moe_attention_tree, partial(late_norm_attention, keeps_parts=False)
)


def _latent(read: Config, fields: Fields) -> Fields:
    check_interleaved(read)
    widths = (768, 512, 192, 64, 256)
    return latent_attention(read, fields, widths, turned_key="head_dim")


def _listed_mlps(read: Config, layers: int) -> tuple[str, ...]:
    """GLM-4.7 Flash names each; by its class's default the first has one MLP."""
    listed = read.items("mlp_layer_types", layers) or (DENSE, *["sparse"] * (layers - 1))
    return kinds_in(read, "mlp_layer_types", listed, (DENSE, "sparse"))


_DENSE = ConfigClass(
    key_value_heads=2,
    head_dim=128,
    partial_rotary_factor=0.5,
    biases=input_biases("attention_bias", default=True),
)
_EXPERTS = ExpertKeys(
    have_own_width=True,
    shared_width=several_shared("n_shared_experts", 1),
    normed=True,
    groups=expert_groups(1),
    layer_types=first_dense(1),
)
FAMILIES = (
    Family(
        model_type="glm",
        config=_DENSE,
        prefix="Glm",
        layer=_GLM,
        rotary=Rotary.PAIRS,
        unread={Why.OFF: "head_dim"},
    ),
    Family(
        model_type="glm4",
        config=replace(
            _DENSE,
            wrappers=("glm4v",),
            aliases=("glm4v_text",),
            alias_rotary_factors={"glm4v_text": 1.0},  # modeling_glm4v.py, Glm4vTextRotaryEmbedding
        ),
        prefix="Glm4",
        layer=_GLM4,
        rotary=Rotary.PAIRS,
        liger=replace(NORMS_BESIDE, rotary=False),
    ),
    Family(
        model_type="glm4_moe",
        config=ConfigClass(
            key_value_heads=8,
            partial_rotary_factor=0.5,
            biases=input_biases("attention_bias", default=False),
            experts=_EXPERTS,
            wrappers=("glm4v_moe",),
            aliases=("glm4v_moe_text",),
            flags={"qk_norm": ("use_qk_norm", False)},
        ),
        prefix="Glm4Moe",
        layer=decoder_layer(_MOE_ATTENTION, MIXTURE),
        others={DENSE: decoder_layer(_MOE_ATTENTION, DENSE_MLP)},
        unread=DEEPSEEK_UNREAD,
        merges_experts=True,
    ),
    Family(
        model_type="glm4_moe_lite",
        config=ConfigClass(
            head_dim=64,
            experts=replace(_EXPERTS, layer_types=_listed_mlps),
            own=_latent,
        ),
        prefix="Glm4MoeLite",
        layer=decoder_layer(LATENT_ATTENTION, MIXTURE),
        others={DENSE: decoder_layer(LATENT_ATTENTION, DENSE_MLP)},
        rotary=Rotary.SPLIT_PAIRS,
        unread={**DEEPSEEK_UNREAD, Why.OFF: f"{DEEPSEEK_UNREAD[Why.OFF]} head_dim mlp_layer_types"},
        merges_experts=True,
    ),
)
