"""Gemma, Gemma 2 and Gemma 3: norms of 1 + weight, an embedding that is multiplied, four norms a layer.

Source: transformers 5.23, models/gemma, models/gemma2, models/gemma3, modeling_*.py. A name that is bound here keeps
its tensor alive exactly as long as the same name does there.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import layouts, parts
from estimator.families.block import Block
from estimator.families.family import (
    NORMS_BESIDE,
    Architecture,
    Classes,
    Family,
    FamilyModules,
    Kernels,
    NormKind,
    TreeLayout,
    Why,
)
from estimator.families.known.llama import llama, llama_modules
from estimator.families.layers import gated_mlp, late_norm_attention, separate_attention
from estimator.families.layouts import embed_scale
from estimator.families.modules import Module
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _gemma2_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "input_layernorm"),
        *parts.configured_attention(model),
        *parts.norms(model, "post_attention_layernorm", "pre_feedforward_layernorm"),
        *parts.gated_mlp(model),
        *parts.norms(model, "post_feedforward_layernorm"),
    )


def _gemma3_modules(model: Model) -> tuple[Module, ...]:
    return (*_gemma2_modules(model), *parts.head_norms(model, "q_norm", "k_norm"))


def gemma2(b: Block, x: Tensor) -> Tensor:
    """Four norms: before and after attention, before and after the MLP."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = late_norm_attention(b, x) if b.has("self_attn.q_norm") else separate_attention(b, x)
    x = b.norm("post_attention_layernorm", x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("pre_feedforward_layernorm", x)
    x = gated_mlp(b, x)
    x = b.norm("post_feedforward_layernorm", x)
    return op.add(b.tape, residual, x)


GEMMA_STEP = Architecture(
    gemma2, NormKind.RMS_ONE_PLUS, scales_embedding=True, scales_in_module=True
)


FAMILIES = (
    Family(
        model_type="gemma",
        modules=FamilyModules(llama_modules),
        tree=TreeLayout("Gemma", layouts.LLAMA, buffers={"embed_tokens": embed_scale}),
        architecture=replace(GEMMA_STEP, layer=llama),
        liger=Kernels(),
        unread={Why.SAME_BYTES: "use_bidirectional_attention"},
    ),
    Family(
        model_type="gemma2",
        modules=FamilyModules(_gemma2_modules),
        tree=TreeLayout(
            "Gemma2",
            layouts.decoder(f"{layouts.ATTENTION} {layouts.GATED} {layouts.FOUR_NORMS}"),
            buffers={"embed_tokens": embed_scale},
        ),
        architecture=replace(GEMMA_STEP, eager_only=True),
        liger=NORMS_BESIDE,
        unread={
            Why.NUMBERS: "query_pre_attn_scalar",
            Why.SAME_BYTES: "use_bidirectional_attention",
            Why.UNREAD: "hidden_act sliding_window_size",
        },
    ),
    Family(
        model_type="gemma3_text",
        modules=FamilyModules(_gemma3_modules),
        tree=TreeLayout(
            "Gemma3",
            layouts.decoder(
                f"{layouts.ATTENTION} {layouts.GATED} {layouts.FOUR_NORMS}", model="@TextModel"
            ),
            buffers={"embed_tokens": embed_scale},
        ),
        architecture=replace(GEMMA_STEP, tables_by_kind=True),
        liger=NORMS_BESIDE,
        unread={
            Why.UNREAD: "hidden_act",
            Why.NUMBERS: "query_pre_attn_scalar rope_local_base_freq",
            Why.OFF: "_sliding_window_pattern sliding_window_pattern",
        },
        with_towers=Classes("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"),
    ),
)
