"""OLMo, OLMo 2 and 3, and OLMoE.

Source: transformers 5.23, models/olmo, models/olmo2, models/olmo3, models/olmoe, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import parts
from estimator.families.config_class import ConfigClass, ExpertKeys, Fields, WindowKeys
from estimator.families.experts import QWEN_SPARSE
from estimator.families.family import Family, Kernels, NormKind, Rotary
from estimator.families.known.llama import LLAMA_LAYER
from estimator.families.layer_kinds import LAST
from estimator.families.layers import (
    ATTENTION,
    GATED_MLP,
    WIDELY_NORMED_ATTENTION,
    decoder_layer,
)
from estimator.families.modules import Tree, extended
from estimator.families.reader import Config
from estimator.values.specs import Model

AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
"""No norm before: attention, norm, add; MLP, norm, add. OLMo 2 and 3, EXAONE 4."""


def _last_mlp(model: Model) -> Tree:
    """If the head is tied, the last linear of all is taken for it."""
    down = parts.linear(model.intermediate_size, model.hidden_size)
    return extended(GATED_MLP.tree(model), down_proj=replace(down, is_last=True))


def _kind(model: Model, index: int) -> str:
    """The last layer, where the head is tied."""
    return LAST if model.tie_word_embeddings and index == model.num_hidden_layers - 1 else ""


def _clips(read: Config, fields: Fields) -> Fields:
    """Whether queries, keys and values are clamped; by 0, too."""
    return {"clip_qkv": read.cap("clip_qkv", None)}


_OLMO2 = Family(
    model_type="olmo2",
    prefix="Olmo2",
    layer=decoder_layer(WIDELY_NORMED_ATTENTION, GATED_MLP, before=("", ""), after=AFTER),
    norm=NormKind.RMS_CAST_LAST,
    rotary=Rotary.CAST_BACK,
    liger=Kernels(in_place=False, head_norms=False),
)
FAMILIES = (
    Family(
        model_type="olmo",
        config=ConfigClass(fixed={"norms_without_weight": True}, own=_clips),
        prefix="Olmo",
        layer=LLAMA_LAYER,
        others={LAST: decoder_layer(ATTENTION, GATED_MLP._replace(tree=_last_mlp))},
        kind=_kind,
        norm=NormKind.LAYER_NORM_FLOAT32,
        rotary=Rotary.CAST_BACK,
    ),
    _OLMO2,
    replace(
        _OLMO2,
        model_type="olmo3",
        config=ConfigClass(windows=WindowKeys(default=4096, pattern=4, pattern_is_fixed=True)),
        prefix="Olmo3",
        root=parts.decoder(rotary_emb=parts.rotary_by_kind),
        tables_by_kind=True,
    ),
    Family(
        model_type="olmoe",
        config=ConfigClass(experts=ExpertKeys(), own=_clips),
        prefix="Olmoe",
        layer=decoder_layer(WIDELY_NORMED_ATTENTION, QWEN_SPARSE),
        like="llama",
        merges_experts=True,
    ),
)
