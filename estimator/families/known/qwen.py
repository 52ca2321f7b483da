"""Qwen2 and Qwen3, with and without experts: Llama's layer.

Source: transformers 5.23, models/qwen2, models/qwen2_moe, models/qwen3, models/qwen3_moe, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import layouts, parts
from estimator.families.config_keys import WINDOWS
from estimator.families.family import Architecture, Family, FamilyModules, Kernels, TreeLayout, Why
from estimator.families.known.llama import LLAMA_STEP, llama
from estimator.families.modules import Module
from estimator.values.specs import Model


def _qwen2_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "input_layernorm"),
        *parts.separate_attention(model, bias=True, output_bias=False),
        *parts.norms(model, "post_attention_layernorm"),
        *parts.gated_mlp(model),
    )


def _qwen3_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "input_layernorm"),
        *parts.configured_attention(model),
        *parts.head_norms(model, "q_norm", "k_norm"),
        *parts.norms(model, "post_attention_layernorm"),
        *parts.gated_mlp(model),
    )


def _qwen3_moe_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "input_layernorm"),
        *parts.configured_attention(model),
        *parts.head_norms(model, "q_norm", "k_norm"),
        *parts.norms(model, "post_attention_layernorm"),
        *parts.experts(model, "mlp", former=parts.QWEN_NAMES),
    )


def _qwen2_moe_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "input_layernorm"),
        *parts.configured_attention(model),
        *parts.norms(model, "post_attention_layernorm"),
        *parts.experts_and_shared(model),
    )


FAMILIES = (
    Family(
        model_type="qwen2",
        modules=FamilyModules(_qwen2_modules),
        tree=TreeLayout("Qwen2", layouts.LLAMA),
        architecture=LLAMA_STEP,
        liger=Kernels(),
        unread={Why.OFF: WINDOWS, Why.UNREAD: "use_mrope"},
    ),
    Family(
        model_type="qwen2_moe",
        modules=FamilyModules(_qwen2_moe_modules),
        tree=TreeLayout(
            "Qwen2Moe", layouts.decoder(f"{layouts.ATTENTION} {layouts.SHARED} {layouts.TWO_NORMS}")
        ),
        architecture=Architecture(llama, masks_unused_window=True),
        unread={Why.OFF: WINDOWS},
        merges_experts=True,
    ),
    Family(
        model_type="qwen3",
        modules=FamilyModules(_qwen3_modules),
        tree=TreeLayout("Qwen3", layouts.LLAMA),
        architecture=LLAMA_STEP,
        liger=Kernels(),
        unread={Why.OFF: WINDOWS},
    ),
    Family(
        model_type="qwen3_moe",
        modules=FamilyModules(_qwen3_moe_modules),
        tree=TreeLayout(
            "Qwen3Moe",
            layouts.decoder(f"{layouts.ATTENTION} {layouts.SPARSE_GATE_LAST} {layouts.TWO_NORMS}"),
        ),
        architecture=LLAMA_STEP,
        liger=Kernels(experts=True),
        unread={Why.OFF: f"{WINDOWS} num_experts"},
        merges_experts=True,
    ),
)
