"""Every family's tables of modules with weights: those of a layer, and those around the layers.

Read in transformers 5.23, ``models/*/modeling_*.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial

from estimator.families.layer_kinds import (
    CONVOLUTION,
    DELTA,
    DELTA_FILTER,
    DENSE,
    EXPERTS,
    GLOBAL,
    LAST,
    MAMBA,
    MLP,
    REUSING,
    SHORT_FILTER,
    UNTURNED,
)
from estimator.families.modules import OPT_POSITION_OFFSET, Bare, Embedding, Linear, Module, Norm
from estimator.values.refusals import NOT_MODELLED, InputError, Refusal, RefusedError
from estimator.values.specs import Model


def _separate_attention(
    model: Model, *, bias: bool, output_bias: bool, block: str = "self_attn", output: str = "o_proj"
) -> tuple[Linear, ...]:
    return (
        Linear(f"{block}.q_proj", model.hidden_size, model.query_size, bias),
        Linear(f"{block}.k_proj", model.hidden_size, model.key_value_size, bias),
        Linear(f"{block}.v_proj", model.hidden_size, model.key_value_size, bias),
        Linear(f"{block}.{output}", model.query_size, model.hidden_size, output_bias),
    )


def _configured_attention(model: Model) -> tuple[Linear, ...]:
    return _separate_attention(
        model, bias=model.attention_bias, output_bias=model.attention_output_bias
    )


def _fused_attention(
    model: Model, fused: str, output: str, *, bias: bool, output_bias: bool, conv1d: bool = False
) -> tuple[Linear, ...]:
    return (
        Linear(fused, model.hidden_size, model.query_size + 2 * model.key_value_size, bias, conv1d),
        Linear(output, model.query_size, model.hidden_size, output_bias, conv1d),
    )


def _gated_mlp(model: Model, *, bias: bool = False) -> tuple[Linear, ...]:
    return (
        Linear("mlp.gate_proj", model.hidden_size, model.intermediate_size, bias),
        Linear("mlp.up_proj", model.hidden_size, model.intermediate_size, bias),
        Linear("mlp.down_proj", model.intermediate_size, model.hidden_size, bias),
    )


def _fused_gated_mlp(model: Model) -> tuple[Linear, ...]:
    return (
        Linear("mlp.gate_up_proj", model.hidden_size, 2 * model.intermediate_size),
        Linear("mlp.down_proj", model.intermediate_size, model.hidden_size),
    )


def _plain_mlp(
    model: Model, up: str, down: str, *, bias: bool, conv1d: bool = False
) -> tuple[Linear, ...]:
    return (
        Linear(up, model.hidden_size, model.intermediate_size, bias, conv1d),
        Linear(down, model.intermediate_size, model.hidden_size, bias, conv1d),
    )


def _experts(
    model: Model,
    block: str,
    *,
    router: str = "gate",
    former: tuple[str, str, str, str] | None = None,
) -> tuple[Bare, Bare, Bare]:
    """A router, and the experts' gates and ups as one stack, downs as another.

    ``former``: what router, gate, up and down were called, where PEFT still takes these names.
    Source: transformers 5.23, models/mixtral/modeling_mixtral.py, ``MixtralTopKRouter`` and ``MixtralExperts``.
    """
    hidden, width, experts = model.hidden_size, model.moe_intermediate_size, model.num_experts
    was_router, was_gate, was_up, was_down = ((name,) for name in former) if former else ((),) * 4
    return (
        Bare(f"{block}.{router}", hidden, experts, former_names=was_router),
        Bare(f"{block}.experts.gate_up_proj", hidden, 2 * width, experts, was_gate + was_up),
        Bare(f"{block}.experts.down_proj", width, hidden, experts, was_down),
    )


def _norms(model: Model, *names: str, bias: bool = False) -> tuple[Norm, ...]:
    weight = not model.norms_without_weight
    return tuple(Norm(name, model.hidden_size, weight, bias and weight) for name in names)


def _head_norms(model: Model, query: str, key: str) -> tuple[Norm, ...]:
    """Norms over one head, with one weight for all heads."""
    return (Norm(f"self_attn.{query}", model.head_dim), Norm(f"self_attn.{key}", model.head_dim))


def _wide_norms(model: Model) -> tuple[Norm, ...]:
    """Norms with a weight for every head: OLMo 2 normalises across the heads, Cohere within each."""
    return (
        Norm("self_attn.q_norm", model.query_size),
        Norm("self_attn.k_norm", model.key_value_size),
    )


def _llama(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model, bias=model.mlp_bias),
    )


def _qwen2(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_separate_attention(model, bias=True, output_bias=False),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model),
    )


def _qwen3(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_head_norms(model, "q_norm", "k_norm"),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model),
    )


# PEFT 0.21, utils/transformers_weight_conversion.py, _MOE_TARGET_MODULE_MAPPING, for the model types that transformers
# 5.23, conversion_mapping.py, _MODEL_TO_CONVERSION_PATTERN, maps to "mixtral" or to "qwen2_moe" (which itself is not).
_MIXTRAL_NAMES = ("gate", "w1", "w3", "w2")
_QWEN_NAMES = ("gate", "gate_proj", "up_proj", "down_proj")


def _mixtral(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "mlp", former=_MIXTRAL_NAMES),
    )


def _qwen3_moe(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_head_norms(model, "q_norm", "k_norm"),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "mlp", former=_QWEN_NAMES),
    )


def _phimoe(model: Model) -> tuple[Module, ...]:
    _, gates_and_ups, downs = _experts(model, "mlp")
    router = Linear("mlp.router", model.hidden_size, model.num_experts)
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm", bias=True),
        replace(router, own_class=True, routes=True),
        gates_and_ups,
        downs,
    )


def _phimoe_outer(model: Model) -> tuple[Module, ...]:
    return _outer("embed_tokens", "norm", norm_bias=True, head_bias=model.lm_head_bias)(model)


def _olmoe(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_wide_norms(model),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "mlp", former=_QWEN_NAMES),
    )


def _qwen2_moe(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_experts_and_shared(model),
    )


def _experts_and_shared(
    model: Model, former: tuple[str, str, str, str] | None = None
) -> tuple[Module, ...]:
    """Experts, and one that sees every token, times a gate of its own."""
    hidden, width = model.hidden_size, model.shared_expert_intermediate_size
    shadowed = former is not None
    return (
        *_experts(model, "mlp", former=former),
        Linear("mlp.shared_expert.gate_proj", hidden, width, shadowed=shadowed),
        Linear("mlp.shared_expert.up_proj", hidden, width, shadowed=shadowed),
        Linear("mlp.shared_expert.down_proj", width, hidden, shadowed=shadowed),
        Linear("mlp.shared_expert_gate", hidden, 1),
    )


def _granitemoe(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "block_sparse_moe", router="router"),
    )


def _gpt_oss(model: Model) -> tuple[Module, ...]:
    router, gates_and_ups, downs = _experts(model, "mlp", router="router")
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        Norm("self_attn.sinks", model.num_attention_heads),
        *_norms(model, "post_attention_layernorm"),
        replace(router, bias=True),
        replace(gates_and_ups, bias=True, transposed=True),
        replace(downs, bias=True, transposed=True),
    )


def _shared_experts(model: Model) -> tuple[Linear, ...]:
    hidden, width = model.hidden_size, model.shared_expert_intermediate_size
    bias = model.mlp_bias
    if not width:
        return ()
    return (
        Linear("mlp.shared_experts.gate_proj", hidden, width, bias, shadowed=True),
        Linear("mlp.shared_experts.up_proj", hidden, width, bias, shadowed=True),
        Linear("mlp.shared_experts.down_proj", width, hidden, bias, shadowed=True),
    )


def _shadowed_mlp(model: Model) -> tuple[Linear, ...]:
    """The MLP of a layer without experts."""
    return tuple(replace(it, shadowed=True) for it in _gated_mlp(model, bias=model.mlp_bias))


def _latent_attention(model: Model) -> tuple[Module, ...]:
    hidden, rank, bias = model.hidden_size, model.kv_lora_rank, model.attention_bias
    heads, rope = model.num_attention_heads, model.qk_rope_head_dim
    keys_and_values = heads * (model.qk_nope_head_dim + model.v_head_dim)
    if model.q_lora_rank:
        queries: tuple[Module, ...] = (
            Linear("self_attn.q_a_proj", hidden, model.q_lora_rank, bias),
            Norm("self_attn.q_a_layernorm", model.q_lora_rank),
            Linear("self_attn.q_b_proj", model.q_lora_rank, model.query_size),
        )
    else:
        queries = (Linear("self_attn.q_proj", hidden, model.query_size),)
    return (
        *queries,
        Linear("self_attn.kv_a_proj_with_mqa", hidden, rank + rope, bias),
        Norm("self_attn.kv_a_layernorm", rank),
        Linear("self_attn.kv_b_proj", rank, keys_and_values),
        Linear("self_attn.o_proj", model.value_size, hidden, bias),
    )


def _deepseek(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_latent_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "mlp", former=_QWEN_NAMES),
        *_shared_experts(model),
    )


def _deepseek_dense(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_latent_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_shadowed_mlp(model),
    )


def _glm4_moe(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *(_head_norms(model, "q_norm", "k_norm") if model.qk_norm else ()),
        *_norms(model, "post_attention_layernorm"),
        *_experts(model, "mlp", former=_QWEN_NAMES),
        *_shared_experts(model),
    )


def _glm4_moe_dense(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *(_head_norms(model, "q_norm", "k_norm") if model.qk_norm else ()),
        *_norms(model, "post_attention_layernorm"),
        *_shadowed_mlp(model),
    )


def _ernie_moe(model: Model) -> tuple[Module, ...]:
    """GLM-4.5's modules, with a router in float32; its correction bias is a parameter that is never trained."""
    modules = _glm4_moe(model)
    return tuple(
        replace(it, float32=True) if isinstance(it, Bare) and not it.stack else it for it in modules
    )


def _llama4_attention(model: Model, *, turned: bool = True) -> tuple[Module, ...]:
    normed = model.qk_norm and turned
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *((Norm("self_attn.qk_norm", model.head_dim, weight=False),) if normed else ()),
        *_norms(model, "post_attention_layernorm"),
    )


def _llama4(model: Model, *, turned: bool = True) -> tuple[Module, ...]:
    _, gates_and_ups, downs = _experts(model, "feed_forward")
    router = Linear("feed_forward.router", model.hidden_size, model.num_experts)
    shared = _gated(model, "feed_forward.shared_expert", model.shared_expert_intermediate_size)
    return (
        *_llama4_attention(model, turned=turned),
        replace(gates_and_ups, transposed=True),
        replace(downs, transposed=True),
        replace(router, own_class=True, routes=True),
        *shared,
    )


def _llama4_dense(model: Model, *, turned: bool = True) -> tuple[Module, ...]:
    mlp = _gated(model, "feed_forward", model.intermediate_size)
    return (*_llama4_attention(model, turned=turned), *mlp)


def _gated(model: Model, block: str, width: int) -> tuple[Linear, ...]:
    return (
        Linear(f"{block}.gate_proj", model.hidden_size, width),
        Linear(f"{block}.up_proj", model.hidden_size, width),
        Linear(f"{block}.down_proj", width, model.hidden_size),
    )


def _lfm2(model: Model) -> tuple[Module, ...]:
    return (
        *_separate_attention(model, bias=False, output_bias=False, output="out_proj"),
        *_head_norms(model, "q_layernorm", "k_layernorm"),
        *_lfm2_mlp(model),
    )


def _lfm2_convolution(model: Model) -> tuple[Module, ...]:
    hidden = model.hidden_size
    return (
        Norm("conv.conv", hidden, taps=SHORT_FILTER),
        Linear("conv.in_proj", hidden, 3 * hidden),
        Linear("conv.out_proj", hidden, hidden),
        *_lfm2_mlp(model),
    )


def _lfm2_mlp(model: Model) -> tuple[Module, ...]:
    hidden, width = model.hidden_size, model.intermediate_size
    return (
        Linear("feed_forward.w1", hidden, width),
        Linear("feed_forward.w3", hidden, width),
        Linear("feed_forward.w2", width, hidden),
        *_norms(model, "operator_norm", "ffn_norm"),
    )


def _mamba(model: Model, block: str, *, unadaptable: bool = False) -> tuple[Module, ...]:
    """Mamba 2's mixer: three numbers a head, filters, and two projections around the scan."""
    sizes = model.state_space
    assert sizes is not None
    return (
        *(Norm(f"{block}.{name}", sizes.heads) for name in ("dt_bias", "A_log", "D")),
        Norm(f"{block}.conv1d", sizes.conv_width, bias=sizes.conv_bias, taps=sizes.conv_kernel),
        Linear(f"{block}.in_proj", model.hidden_size, sizes.projected_width, sizes.in_bias),
        *([Norm(f"{block}.norm", sizes.width)] if sizes.is_normed else []),
        Linear(
            f"{block}.out_proj",
            sizes.width,
            model.hidden_size,
            sizes.out_bias,
            unadaptable=unadaptable,
        ),
    )


def _output_gated_attention(model: Model) -> tuple[Module, ...]:
    """The projection of queries makes a gate of the output beside them."""
    hidden, bias = model.hidden_size, model.attention_bias
    return (
        Linear("self_attn.q_proj", hidden, 2 * model.query_size, bias),
        Linear("self_attn.k_proj", hidden, model.key_value_size, bias),
        Linear("self_attn.v_proj", hidden, model.key_value_size, bias),
        Linear("self_attn.o_proj", model.query_size, hidden, model.attention_output_bias),
        *_head_norms(model, "q_norm", "k_norm"),
    )


def _delta_net(model: Model, *, fused: bool = False) -> tuple[Module, ...]:
    """``fused``: one projection for queries, keys, values and gates, one for learning rate and decay (Qwen3-Next)."""
    assert model.delta_net is not None
    hidden, heads = model.hidden_size, model.delta_net.value_heads
    keys, values = model.delta_net.key_width, model.delta_net.value_width
    projections = (
        (("in_proj_qkvz", 2 * (keys + values)), ("in_proj_ba", 2 * heads))
        if fused
        else (
            ("in_proj_qkv", 2 * keys + values),
            ("in_proj_z", values),
            ("in_proj_b", heads),
            ("in_proj_a", heads),
        )
    )
    return (
        Norm("linear_attn.dt_bias", heads),
        Norm("linear_attn.A_log", heads),
        Norm("linear_attn.conv1d", 2 * keys + values, taps=DELTA_FILTER),
        Norm("linear_attn.norm", model.delta_net.value_dim),
        Linear("linear_attn.out_proj", values, hidden),
        *(Linear(f"linear_attn.{name}", hidden, width) for name, width in projections),
    )


Mixer = Callable[[Model], tuple[Module, ...]]


def _qwen3_5(model: Model, *, mixer: Mixer = _output_gated_attention) -> tuple[Module, ...]:
    norms = _norms(model, "input_layernorm", "post_attention_layernorm")
    return (*mixer(model), *_gated_mlp(model), *norms)


def _qwen3_5_moe(model: Model, *, mixer: Mixer = _output_gated_attention) -> tuple[Module, ...]:
    norms = _norms(model, "input_layernorm", "post_attention_layernorm")
    return (*mixer(model), *_experts_and_shared(model), *norms)


def _qwen3_next(model: Model, *, mixer: Mixer = _output_gated_attention) -> tuple[Module, ...]:
    norms = _norms(model, "input_layernorm", "post_attention_layernorm")
    return (*mixer(model), *_experts_and_shared(model, _QWEN_NAMES), *norms)


def _granite_hybrid(model: Model) -> tuple[Module, ...]:
    """Granite 4.0: what is called shared is the only MLP where there are no experts."""
    return (*_granite_mlp(model), *_configured_attention(model))


def _granite_mamba(model: Model) -> tuple[Module, ...]:
    return (*_granite_mlp(model), *_mamba(model, "mamba"))


def _falcon_h1(model: Model) -> tuple[Module, ...]:
    """Both in every layer: a mixer and attention."""
    hidden, width, bias = model.hidden_size, model.intermediate_size, model.mlp_bias
    return (
        Linear("feed_forward.gate_proj", hidden, width, bias),
        Linear("feed_forward.up_proj", hidden, width, bias),
        Linear("feed_forward.down_proj", width, hidden, bias),
        *_mamba(model, "mamba", unadaptable=True),
        *_configured_attention(model),
        *_norms(model, "input_layernorm", "pre_ff_layernorm"),
    )


def _nemotron_h(model: Model) -> tuple[Module, ...]:
    """One mixer a layer: attention, or one of those below."""
    attention = _separate_attention(model, bias=False, output_bias=False, block="mixer")
    return (*_norms(model, "norm"), *attention)


def _nemotron_h_mamba(model: Model) -> tuple[Module, ...]:
    return (*_norms(model, "norm"), *_mamba(model, "mixer", unadaptable=True))


def _nemotron_h_mlp(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "norm"),
        *_plain_mlp(model, "mixer.up_proj", "mixer.down_proj", bias=model.mlp_bias),
    )


def _nemotron_h_experts(model: Model) -> tuple[Module, ...]:
    """Experts of two matrices each, and a shared one."""
    hidden, width, experts = model.hidden_size, model.moe_intermediate_size, model.num_experts
    shared, bias = model.shared_expert_intermediate_size, model.mlp_bias
    return (
        *_norms(model, "norm"),
        Bare("mixer.experts.up_proj", hidden, width, experts),
        Bare("mixer.experts.down_proj", width, hidden, experts),
        Bare("mixer.gate", hidden, experts),
        Linear("mixer.shared_experts.up_proj", hidden, shared, bias),
        Linear("mixer.shared_experts.down_proj", shared, hidden, bias),
    )


def _granite_mlp(model: Model) -> tuple[Module, ...]:
    hidden, width = model.hidden_size, model.intermediate_size
    experts = _experts(model, "block_sparse_moe", router="router") if model.num_experts else ()
    return (
        *_norms(model, "input_layernorm", "post_attention_layernorm"),
        *experts,
        Linear("shared_mlp.input_linear", hidden, 2 * width),
        Linear("shared_mlp.output_linear", width, hidden),
    )


def _hunyuan(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_head_norms(model, "query_layernorm", "key_layernorm"),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model),
    )


def _arcee(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm"),
        *_plain_mlp(model, "mlp.up_proj", "mlp.down_proj", bias=model.mlp_bias),
    )


def _nemotron(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm", bias=True),
        *_plain_mlp(model, "mlp.up_proj", "mlp.down_proj", bias=model.mlp_bias),
    )


def _apertus(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "attention_layernorm"),
        *_configured_attention(model),
        *_head_norms(model, "q_norm", "k_norm"),
        *_norms(model, "feedforward_layernorm"),
        *_plain_mlp(model, "mlp.up_proj", "mlp.down_proj", bias=False),
        Norm(
            "mlp.act_fn", 1, bias=True
        ),  # xIELU's alpha_p and alpha_n, transformers 5.23 activations.py
    )


def _gemma2(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm", "pre_feedforward_layernorm"),
        *_gated_mlp(model),
        *_norms(model, "post_feedforward_layernorm"),
    )


def _gemma3(model: Model) -> tuple[Module, ...]:
    return (*_gemma2(model), *_head_norms(model, "q_norm", "k_norm"))


def _gemma4(model: Model, *, is_global: bool = False, reuses: bool = False) -> tuple[Module, ...]:
    """``model`` as this layer sees it, by ``layer_model``."""
    hidden, bias = model.hidden_size, model.attention_bias
    own = (
        Norm("self_attn.k_norm", model.head_dim),
        Norm("self_attn.v_norm", model.head_dim, weight=False),
        Linear("self_attn.k_proj", hidden, model.key_value_size, bias),
        *(
            ()
            if is_global and model.attention_k_eq_v
            else (Linear("self_attn.v_proj", hidden, model.key_value_size, bias),)
        ),
    )
    return (
        Linear("self_attn.q_proj", hidden, model.query_size, bias),
        Norm("self_attn.q_norm", model.head_dim),
        *(() if reuses else own),
        Linear("self_attn.o_proj", model.query_size, hidden, bias),
        *_gated_mlp(model),
        *_norms(model, "input_layernorm", "post_attention_layernorm"),
        *_norms(model, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        *_layer_input(model),
        *(_gemma4_experts(model) if model.num_experts else ()),
    )


def _layer_input(model: Model) -> tuple[Module, ...]:
    """What brings a layer's own embedding in."""
    hidden, width = model.hidden_size, model.hidden_size_per_layer_input
    if not width:
        return ()
    return (
        Linear("per_layer_input_gate", hidden, width),
        Linear("per_layer_projection", width, hidden),
        *_norms(model, "post_per_layer_input_norm"),
    )


def _gemma3n(model: Model, *, reuses: bool = False) -> tuple[Module, ...]:
    hidden, streams, rank = model.hidden_size, model.altup_num_inputs, model.laurel_rank
    return (
        *_gemma4(model, reuses=reuses),
        Norm("altup.correct_output_scale", hidden),
        Linear("altup.correction_coefs", streams, streams),
        Linear("altup.prediction_coefs", streams, streams**2),
        Linear("altup.modality_router", hidden, streams),
        *_norms(model, "altup.router_norm"),
        Linear("laurel.linear_left", hidden, rank),
        Linear("laurel.linear_right", rank, hidden),
        *_norms(model, "laurel.post_laurel_norm"),
    )


def _gemma3n_outer(model: Model) -> tuple[Module, ...]:
    hidden = model.hidden_size
    projections = (
        Linear(f"{block}.{index}", hidden, hidden)
        for block in ("altup_projections", "altup_unembed_projections")
        for index in range(model.altup_num_inputs - 1)
    )
    return (*_gemma4_outer(model), *projections)


def _gemma4_experts(model: Model) -> tuple[Module, ...]:
    """A mixture beside the MLP; the router scales its input and each expert's share."""
    hidden, experts = model.hidden_size, model.num_experts
    _, gates_and_ups, downs = _experts(model, "")
    return (
        Norm("router.scale", hidden),
        Norm("router.per_expert_scale", experts),
        Norm("router.norm", hidden, weight=False),
        Linear("router.proj", hidden, experts),
        replace(gates_and_ups, name="experts.gate_up_proj"),
        replace(downs, name="experts.down_proj"),
        *_norms(model, "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"),
        *_norms(model, "pre_feedforward_layernorm_2"),
    )


def _gemma4_outer(model: Model) -> tuple[Module, ...]:
    embedding, norm, *head = _LLAMA_OUTER(model)
    width = model.hidden_size_per_layer_input
    of_all_layers = model.num_hidden_layers * width
    of_layers = (
        Embedding("embed_tokens_per_layer", model.vocab_size_per_layer_input, of_all_layers),
        Linear("per_layer_model_projection", model.hidden_size, of_all_layers),
        Norm("per_layer_projection_norm", width),
    )
    return (embedding, norm, *(of_layers if width else ()), *head)


def _phi3(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_fused_attention(
            model, "self_attn.qkv_proj", "self_attn.o_proj", bias=False, output_bias=False
        ),
        *_norms(model, "post_attention_layernorm"),
        *_fused_gated_mlp(model),
    )


def _phi(model: Model) -> tuple[Module, ...]:
    head_norms = (
        Norm("self_attn.q_layernorm", model.head_dim, bias=True),
        Norm("self_attn.k_layernorm", model.head_dim, bias=True),
    )
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_separate_attention(model, bias=True, output_bias=True, output="dense"),
        *(head_norms if model.qk_norm else ()),
        *_plain_mlp(model, "mlp.fc1", "mlp.fc2", bias=True),
    )


def _olmo(model: Model) -> tuple[Module, ...]:
    return (
        Norm("input_layernorm", model.hidden_size, weight=False),
        *_configured_attention(model),
        Norm("post_attention_layernorm", model.hidden_size, weight=False),
        *_gated_mlp(model),
    )


def _olmo_last(model: Model) -> tuple[Module, ...]:
    *rest, down = _olmo(model)
    assert isinstance(down, Linear)
    return (*rest, replace(down, is_last=True))


def _olmo2(model: Model) -> tuple[Module, ...]:
    return (
        *_configured_attention(model),
        *_wide_norms(model),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model),
        *_norms(model, "post_feedforward_layernorm"),
    )


def _exaone4(model: Model) -> tuple[Module, ...]:
    return (
        *_separate_attention(model, bias=False, output_bias=False),
        *_head_norms(model, "q_norm", "k_norm"),
        *_norms(model, "post_attention_layernorm"),
        *_gated_mlp(model),
        *_norms(model, "post_feedforward_layernorm"),
    )


def _gpt2(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "ln_1", bias=True),
        *_fused_attention(
            model, "attn.c_attn", "attn.c_proj", bias=True, output_bias=True, conv1d=True
        ),
        *_norms(model, "ln_2", bias=True),
        *_plain_mlp(model, "mlp.c_fc", "mlp.c_proj", bias=True, conv1d=True),
    )


def _gpt_bigcode(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "ln_1", bias=True),
        *_fused_attention(model, "attn.c_attn", "attn.c_proj", bias=True, output_bias=True),
        *_norms(model, "ln_2", bias=True),
        *_plain_mlp(model, "mlp.c_fc", "mlp.c_proj", bias=True),
    )


def _gptj(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "ln_1", bias=True),
        *_separate_attention(model, bias=False, output_bias=False, block="attn", output="out_proj"),
        *_plain_mlp(model, "mlp.fc_in", "mlp.fc_out", bias=True),
    )


def _gpt_neox(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_fused_attention(
            model,
            "attention.query_key_value",
            "attention.dense",
            bias=model.attention_bias,
            output_bias=model.attention_output_bias,
        ),
        *_norms(model, "post_attention_layernorm", bias=True),
        *_plain_mlp(model, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
    )


def _bloom(model: Model) -> tuple[Module, ...]:
    fused, output = "self_attention.query_key_value", "self_attention.dense"
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_fused_attention(model, fused, output, bias=True, output_bias=True),
        *_norms(model, "post_attention_layernorm", bias=True),
        *_plain_mlp(model, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
    )


def _falcon(model: Model) -> tuple[Module, ...]:
    linears = (
        *_fused_attention(
            model,
            "self_attention.query_key_value",
            "self_attention.dense",
            bias=model.attention_bias,
            output_bias=model.attention_output_bias,
        ),
        *_plain_mlp(model, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=model.mlp_bias),
    )
    return (
        *_norms(model, *falcon_norm_names(model), bias=True),
        *(replace(linear, own_class=True) for linear in linears),
    )


def falcon_norm_names(model: Model) -> tuple[str, ...]:
    """Names of one Falcon layer's norms (no unit; per layer).

    One for Falcon 7B and 11B, whose attention and MLP read the same norm; two of its own kind for 40B and 180B; the
    classic two for RefinedWeb models without a parallel residual.

    Source: transformers 5.23 models/falcon/modeling_falcon.py, FalconDecoderLayer.__init__.

    >>> from dataclasses import replace
    >>> falcon_7b = Model(model_type="falcon", vocab_size=65024, hidden_size=4544, intermediate_size=18176,
    ...                   num_hidden_layers=32, num_attention_heads=71, num_key_value_heads=1, head_dim=64,
    ...                   parallel_residual=True)
    >>> falcon_norm_names(falcon_7b)
    ('input_layernorm',)
    >>> falcon_norm_names(replace(falcon_7b, new_decoder_architecture=True))
    ('ln_attn', 'ln_mlp')
    """
    if model.new_decoder_architecture and model.num_ln_in_parallel_attn == 2:
        return ("ln_attn", "ln_mlp")
    if model.parallel_residual or model.new_decoder_architecture:
        return ("input_layernorm",)
    return ("input_layernorm", "post_attention_layernorm")


def _mpt(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "norm_1"),
        *_fused_attention(model, "attn.Wqkv", "attn.out_proj", bias=False, output_bias=False),
        *_norms(model, "norm_2"),
        *_plain_mlp(model, "ffn.up_proj", "ffn.down_proj", bias=False),
    )


def _opt(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "self_attn_layer_norm", bias=True),
        *_separate_attention(
            model,
            bias=model.attention_bias,
            output_bias=model.attention_output_bias,
            output="out_proj",
        ),
        *_norms(model, "final_layer_norm", bias=True),
        *_plain_mlp(model, "fc1", "fc2", bias=model.mlp_bias),
    )


def _starcoder2(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_configured_attention(model),
        *_norms(model, "post_attention_layernorm", bias=True),
        *_plain_mlp(model, "mlp.c_fc", "mlp.c_proj", bias=model.mlp_bias),
    )


def _stablelm(model: Model) -> tuple[Module, ...]:
    heads = (("q", model.num_attention_heads), ("k", model.num_key_value_heads))
    head_norms = tuple(
        Norm(f"self_attn.{side}_layernorm.norms.{head}", model.head_dim)
        for side, count in heads
        for head in range(count)
    )
    return (
        *_norms(model, "input_layernorm", bias=True),
        *_separate_attention(model, bias=model.attention_bias, output_bias=False),
        *(head_norms if model.qk_norm else ()),
        *(() if model.parallel_residual else _norms(model, "post_attention_layernorm", bias=True)),
        *_gated_mlp(model),
    )


def _cohere(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_configured_attention(model),
        *(_wide_norms(model) if model.qk_norm else ()),
        *_gated_mlp(model),
    )


def _glm(model: Model) -> tuple[Module, ...]:
    return (
        *_norms(model, "input_layernorm"),
        *_separate_attention(model, bias=model.attention_bias, output_bias=False),
        *_norms(model, "post_attention_layernorm"),
        *_fused_gated_mlp(model),
    )


def _glm4(model: Model) -> tuple[Module, ...]:
    return (*_glm(model), *_norms(model, "post_self_attn_layernorm", "post_mlp_layernorm"))


def _outer(
    embedding: str,
    norm: str,
    *,
    norm_weight: bool = True,
    norm_bias: bool = False,
    head_bias: bool = False,
) -> Callable[[Model], tuple[Module, ...]]:
    def modules(model: Model) -> tuple[Module, ...]:
        return (
            Embedding(embedding, model.vocab_size, model.hidden_size),
            Norm(norm, model.hidden_size, norm_weight, norm_bias),
            *_head(model, model.hidden_size, bias=head_bias),
        )

    return modules


def _head(model: Model, width: int, *, bias: bool = False) -> tuple[Linear, ...]:
    return () if model.tie_word_embeddings else (Linear("lm_head", width, model.vocab_size, bias),)


def _learned_positions(model: Model, offset: int = 0) -> int:
    rows = model.learned_positions or (
        model.max_position_embeddings and model.max_position_embeddings + offset
    )
    if not rows:
        raise InputError(f"{model.model_type} learns its positions; give max_position_embeddings.")
    return rows


def _gpt2_outer(model: Model) -> tuple[Module, ...]:
    return (
        Embedding("wte", model.vocab_size, model.hidden_size),
        Embedding("wpe", _learned_positions(model), model.hidden_size),
        Norm("ln_f", model.hidden_size, bias=True),
        *_head(model, model.hidden_size),
    )


def _bloom_outer(model: Model) -> tuple[Module, ...]:
    embedding, *rest = _outer("word_embeddings", "ln_f", norm_bias=True)(model)
    return (embedding, Norm("word_embeddings_layernorm", model.hidden_size, bias=True), *rest)


def _opt_outer(model: Model) -> tuple[Module, ...]:
    width = model.word_embed_proj_dim or model.hidden_size
    projected = width != model.hidden_size
    return (
        Embedding("embed_tokens", model.vocab_size, width),
        Embedding(
            "embed_positions", _learned_positions(model, OPT_POSITION_OFFSET), model.hidden_size
        ),
        *((Linear("project_in", width, model.hidden_size),) if projected else ()),
        *(_norms(model, "final_layer_norm", bias=True) if model.do_layer_norm_before else ()),
        *((Linear("project_out", model.hidden_size, width),) if projected else ()),
        *_head(model, width),
    )


_LLAMA_OUTER = _outer("embed_tokens", "norm")


@dataclass(frozen=True, slots=True)
class _Family:
    layer: Callable[[Model], tuple[Module, ...]]
    outer: Callable[[Model], tuple[Module, ...]] = _LLAMA_OUTER
    others: Mapping[str, Callable[[Model], tuple[Module, ...]]] = field(default_factory=dict)
    """Layers that hold other modules, by what ``layer_kind`` calls them."""


_LLAMA = _Family(_llama)
_FAMILIES = {
    "apertus": _Family(_apertus),
    "arcee": _Family(_arcee),
    "bloom": _Family(_bloom, _bloom_outer),
    "cohere": _Family(_cohere),
    "cohere2": _Family(_cohere),
    "deepseek_v2": _Family(_deepseek, others={DENSE: _deepseek_dense}),
    "deepseek_v3": _Family(_deepseek, others={DENSE: _deepseek_dense}),
    "ernie4_5": _LLAMA,
    "ernie4_5_moe": _Family(_ernie_moe, others={DENSE: _glm4_moe_dense}),
    "exaone4": _Family(_exaone4),
    "falcon": _Family(_falcon, _outer("word_embeddings", "ln_f", norm_bias=True)),
    "falcon_h1": _Family(_falcon_h1, _outer("embed_tokens", "final_layernorm")),
    "gemma": _LLAMA,
    "gemma2": _Family(_gemma2),
    "gemma3_text": _Family(_gemma3),
    "gemma3n_text": _Family(
        _gemma3n, _gemma3n_outer, others={REUSING: partial(_gemma3n, reuses=True)}
    ),
    "gemma4_text": _Family(
        _gemma4,
        _gemma4_outer,
        others={
            GLOBAL: partial(_gemma4, is_global=True),
            REUSING: partial(_gemma4, reuses=True),
            f"{GLOBAL}-{REUSING}": partial(_gemma4, is_global=True, reuses=True),
        },
    ),
    "glm": _Family(_glm),
    "glm4": _Family(_glm4),
    "glm4_moe": _Family(_glm4_moe, others={DENSE: _glm4_moe_dense}),
    "glm4_moe_lite": _Family(_deepseek, others={DENSE: _deepseek_dense}),
    "gpt2": _Family(_gpt2, _gpt2_outer),
    "gpt_bigcode": _Family(_gpt_bigcode, _gpt2_outer),
    "gpt_oss": _Family(_gpt_oss),
    "gpt_neox": _Family(_gpt_neox, _outer("embed_in", "final_layer_norm", norm_bias=True)),
    "gptj": _Family(_gptj, _outer("wte", "ln_f", norm_bias=True, head_bias=True)),
    "granite": _LLAMA,
    "granitemoe": _Family(_granitemoe),
    "granitemoehybrid": _Family(_granite_hybrid, others={MAMBA: _granite_mamba}),
    "hunyuan_v1_dense": _Family(_hunyuan),
    "internlm3": _LLAMA,
    "lfm2": _Family(
        _lfm2, _outer("embed_tokens", "embedding_norm"), others={CONVOLUTION: _lfm2_convolution}
    ),
    "llama": _LLAMA,
    "llama4_text": _Family(
        _llama4,
        others={
            DENSE: _llama4_dense,
            UNTURNED: partial(_llama4, turned=False),
            f"{DENSE}-{UNTURNED}": partial(_llama4_dense, turned=False),
        },
    ),
    "ministral3": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _Family(_mixtral),
    "mpt": _Family(_mpt, _outer("wte", "norm_f")),
    "nemotron": _Family(_nemotron, _outer("embed_tokens", "norm", norm_bias=True)),
    "nemotron_h": _Family(
        _nemotron_h,
        _outer("embeddings", "norm_f"),
        others={MAMBA: _nemotron_h_mamba, MLP: _nemotron_h_mlp, EXPERTS: _nemotron_h_experts},
    ),
    "olmo": _Family(
        _olmo, _outer("embed_tokens", "norm", norm_weight=False), others={LAST: _olmo_last}
    ),
    "olmo2": _Family(_olmo2),
    "olmo3": _Family(_olmo2),
    "olmoe": _Family(_olmoe),
    "opt": _Family(_opt, _opt_outer),
    "phi": _Family(_phi, _outer("embed_tokens", "final_layernorm", norm_bias=True, head_bias=True)),
    "phi3": _Family(_phi3),
    "phimoe": _Family(_phimoe, _phimoe_outer),
    "qwen2": _Family(_qwen2),
    "qwen2_moe": _Family(_qwen2_moe),
    "qwen3": _Family(_qwen3),
    "qwen3_5_moe_text": _Family(
        _qwen3_5_moe, others={DELTA: partial(_qwen3_5_moe, mixer=_delta_net)}
    ),
    "qwen3_5_text": _Family(_qwen3_5, others={DELTA: partial(_qwen3_5, mixer=_delta_net)}),
    "qwen3_moe": _Family(_qwen3_moe),
    "qwen3_next": _Family(
        _qwen3_next,
        others={DELTA: partial(_qwen3_next, mixer=partial(_delta_net, fused=True))},
    ),
    "seed_oss": _LLAMA,
    "smollm3": _LLAMA,
    "stablelm": _Family(_stablelm, _outer("embed_tokens", "norm", norm_bias=True)),
    "starcoder2": _Family(_starcoder2, _outer("embed_tokens", "norm", norm_bias=True)),
}

MODELLED = frozenset(_FAMILIES)
"""The values of ``model_type`` that have a table."""


_STATE_SPACE = (
    "its state-space layers train by kernels of mamba-ssm and causal-conv1d, "
    "whose memory differs from that of the PyTorch code"
)
_LINEAR_ATTENTION = (
    "its linear attention trains by kernels of flash-linear-attention, "
    "whose memory differs from that of the PyTorch code"
)
BEYOND: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "bamba",
            "falcon_mamba",
            "jamba",
            "mamba",
            "mamba2",
            "zamba",
            "zamba2",
        ),
        _STATE_SPACE,
    ),
    **dict.fromkeys(
        (
            "kimi_linear",
            "minimax",
            "olmo_hybrid",
        ),
        _LINEAR_ATTENTION,
    ),
    "mllama": "some of its layers attend to the image",
    "mllama_text_model": "some of its layers attend to the image",
    "recurrent_gemma": "two of three layers are recurrent",
    "rwkv": "its layers are recurrent",
    "xlstm": "its layers are recurrent",
}
"""Architectures that people ask for and that have no table, each with the reason."""


UNKNOWN_ARCHITECTURE = Refusal(
    "architecture {model_type} is not modelled{hint}; modelled are: {names}; choose one of those.",
    NOT_MODELLED,
)
BEYOND_US = Refusal(
    "architecture {model_type} is not modelled: {why}; choose a model of another one.", NOT_MODELLED
)


class NotModelledError(RefusedError):
    """The architecture has no table here."""


def beyond(model_type: str) -> NotModelledError:
    """The sentence that refuses one of ``BEYOND`` (no unit; per model).

    Source: BEYOND, this module.

    >>> str(beyond("rwkv"))
    "architecture 'rwkv' is not modelled: its layers are recurrent; choose a model of another one."
    """
    return NotModelledError(BEYOND_US, model_type=repr(model_type), why=BEYOND[model_type])


def check_modelled(model_type: str) -> None:
    """Refuse an architecture without a table, with the reason or the near ones (no unit; per model).

    Source: MODELLED, this module.

    >>> check_modelled("llama")
    >>> check_modelled("bert")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    estimator.families.parameters.NotModelledError: architecture 'bert' is not modelled; ...; choose one of those.
    """
    if model_type in MODELLED:
        return
    if model_type in BEYOND:
        raise beyond(model_type)
    near = get_close_matches(model_type, sorted(MODELLED))
    hint = f" (near: {', '.join(near)})" if near else ""
    names = ", ".join(sorted(MODELLED))
    raise NotModelledError(
        UNKNOWN_ARCHITECTURE, model_type=repr(model_type), hint=hint, names=names
    )


def _family(model: Model) -> _Family:
    check_modelled(model.model_type)
    return _FAMILIES[model.model_type]
