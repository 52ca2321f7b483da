"""OLMo, OLMo 2 and 3, and OLMoE.

Source: transformers 5.23, models/olmo, models/olmo2, models/olmo3, models/olmoe, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from estimator.families import layouts, parts
from estimator.families.block import Block
from estimator.families.family import (
    Architecture,
    ConfigClass,
    ExpertKeys,
    Family,
    FamilyModules,
    Kernels,
    NormKind,
    TreeLayout,
    WindowKeys,
)
from estimator.families.known.llama import LLAMA_STEP, llama
from estimator.families.layer_kinds import LAST
from estimator.families.layers import gated_mlp, separate_attention
from estimator.families.modules import Linear, Module, Norm
from estimator.families.reader import Config
from estimator.families.rotary import Rotary
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _olmoe_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "input_layernorm"),
        *parts.configured_attention(model),
        *parts.wide_norms(model),
        *parts.norms(model, "post_attention_layernorm"),
        *parts.experts(model, "mlp", former=parts.QWEN_NAMES),
    )


def _olmo_modules(model: Model) -> tuple[Module, ...]:
    return (
        Norm("input_layernorm", model.hidden_size, weight=False),
        *parts.configured_attention(model),
        Norm("post_attention_layernorm", model.hidden_size, weight=False),
        *parts.gated_mlp(model),
    )


def _olmo_last_modules(model: Model) -> tuple[Module, ...]:
    *rest, down = _olmo_modules(model)
    assert isinstance(down, Linear)
    return (*rest, replace(down, is_last=True))


def _olmo2_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.configured_attention(model),
        *parts.wide_norms(model),
        *parts.norms(model, "post_attention_layernorm"),
        *parts.gated_mlp(model),
        *parts.norms(model, "post_feedforward_layernorm"),
    )


def _olmo_tree() -> str:
    """Llama's tree, with a separate entry for the last layer if the head is tied."""
    layer = f"@DecoderLayer({layouts.ATTENTION} {layouts.GATED} {layouts.TWO_NORMS})"
    return f"model:@Model(embed_tokens layers:ModuleList(*:{layer} last*:{layer}) norm rotary_emb) lm_head"


def _olmo_kind(model: Model, index: int) -> str:
    """The last layer, where the head is tied."""
    return LAST if model.tie_word_embeddings and index == model.num_hidden_layers - 1 else ""


def olmo2(b: Block, x: Tensor) -> Tensor:
    """No norm before: attention, norm, add; MLP, norm, add. OLMo 2 and 3, EXAONE 4."""
    residual = x
    x = separate_attention(b, x)
    x = b.norm("post_attention_layernorm", x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = gated_mlp(b, x)
    x = b.norm("post_feedforward_layernorm", x)
    return op.add(b.tape, residual, x)


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
        modules=FamilyModules(
            _olmo_modules,
            parts.outer("embed_tokens", "norm", norm_weight=False),
            others={LAST: _olmo_last_modules},
            kind=_olmo_kind,
        ),
        tree=TreeLayout("Olmo", _olmo_tree()),
        architecture=Architecture(llama, NormKind.LAYER_NORM_FLOAT32, Rotary.CAST_BACK),
    ),
    Family(
        model_type="olmo2",
        modules=FamilyModules(_olmo2_modules),
        tree=TreeLayout(
            "Olmo2",
            layouts.decoder(
                f"{layouts.ATTENTION} {layouts.GATED} post_attention_layernorm post_feedforward_layernorm"
            ),
        ),
        architecture=_OLMO2,
        liger=_OLMO_KERNELS,
    ),
    Family(
        model_type="olmo3",
        config=ConfigClass(windows=WindowKeys(default=4096, pattern=4, pattern_is_fixed=True)),
        modules=FamilyModules(_olmo2_modules),
        tree=TreeLayout(
            "Olmo3",
            layouts.decoder(
                f"{layouts.ATTENTION} {layouts.GATED} post_attention_layernorm post_feedforward_layernorm"
            ),
        ),
        architecture=replace(_OLMO2, tables_by_kind=True),
        liger=_OLMO_KERNELS,
    ),
    Family(
        model_type="olmoe",
        config=ConfigClass(experts=ExpertKeys(), own=_clips),
        modules=FamilyModules(_olmoe_modules),
        tree=TreeLayout(
            "Olmoe", layouts.decoder(f"{layouts.ATTENTION} {layouts.SPARSE} {layouts.TWO_NORMS}")
        ),
        architecture=LLAMA_STEP,
        merges_experts=True,
    ),
)
