"""OLMo, OLMo 2 and 3, and OLMoE.

Source: transformers 5.23, models/olmo, models/olmo2, models/olmo3, models/olmoe, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from estimator.families import parts
from estimator.families.family import (
    Architecture,
    ConfigClass,
    ExpertKeys,
    Family,
    Kernels,
    ModelTree,
    NormKind,
    Rotary,
    WindowKeys,
)
from estimator.families.known.llama import LLAMA_STEP, llama
from estimator.families.layer_kinds import LAST
from estimator.families.layers import decoder_layer, gated_mlp, separate_attention
from estimator.families.modules import Tree, extended, tree
from estimator.families.reader import Config
from estimator.values.specs import Model


def _sparse(model: Model) -> Tree:
    return parts.sparse(model, parts.QWEN_NAMES)


_olmo_layer = parts.decoder_layer(parts.attention, parts.gated_mlp)


def _olmo_last_mlp(model: Model) -> Tree:
    """If the head is tied, the last linear of all is taken for it."""
    down = parts.linear(model.intermediate_size, model.hidden_size)
    return extended(parts.gated_mlp(model), down_proj=replace(down, is_last=True))


def _olmo2_layer(model: Model) -> Tree:
    return tree(
        "@DecoderLayer",
        self_attn=parts.widely_normed_attention(model),
        mlp=parts.gated_mlp(model),
        post_attention_layernorm=parts.norm(model),
        post_feedforward_layernorm=parts.norm(model),
    )


def _olmo3_root(model: Model) -> Tree:
    return parts.decoder(model, rotary_emb=parts.rotary_by_kind(model))


def _olmo_kind(model: Model, index: int) -> str:
    """The last layer, where the head is tied."""
    return LAST if model.tie_word_embeddings and index == model.num_hidden_layers - 1 else ""


olmo2 = decoder_layer(
    separate_attention,
    gated_mlp,
    before=("", ""),
    after=("post_attention_layernorm", "post_feedforward_layernorm"),
)
"""No norm before: attention, norm, add; MLP, norm, add. OLMo 2 and 3, EXAONE 4."""


_OLMO2 = Architecture(olmo2, NormKind.RMS_CAST_LAST, Rotary.CAST_BACK)


_OLMO_KERNELS = Kernels(in_place=False, head_norms=False)


def _clips(read: Config, fields: dict[str, Any]) -> dict[str, Any]:
    """Whether queries, keys and values are clamped; by 0, too."""
    return {"clip_qkv": read.cap("clip_qkv", None)}


def _own(read: Config, fields: dict[str, Any]) -> dict[str, Any]:
    return {"norms_without_weight": True, **_clips(read, fields)}


FAMILIES = (
    Family(
        model_type="olmo",
        config=ConfigClass(own=_own),
        tree=ModelTree(
            "Olmo",
            _olmo_layer,
            others={LAST: parts.decoder_layer(parts.attention, _olmo_last_mlp)},
            kind=_olmo_kind,
        ),
        architecture=Architecture(llama, NormKind.LAYER_NORM_FLOAT32, Rotary.CAST_BACK),
    ),
    Family(
        model_type="olmo2",
        tree=ModelTree("Olmo2", _olmo2_layer),
        architecture=_OLMO2,
        liger=_OLMO_KERNELS,
    ),
    Family(
        model_type="olmo3",
        config=ConfigClass(windows=WindowKeys(default=4096, pattern=4, pattern_is_fixed=True)),
        tree=ModelTree("Olmo3", _olmo2_layer, _olmo3_root),
        architecture=replace(_OLMO2, tables_by_kind=True),
        liger=_OLMO_KERNELS,
    ),
    Family(
        model_type="olmoe",
        config=ConfigClass(experts=ExpertKeys(), own=_clips),
        tree=ModelTree("Olmoe", parts.decoder_layer(parts.widely_normed_attention, _sparse)),
        architecture=LLAMA_STEP,
        merges_experts=True,
    ),
)
