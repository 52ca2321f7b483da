"""Writes the `config.json` of a catalogued model: the inverse of `hf_config.py`.

Only what sets shapes and memory is written; the rest (token ids, rotary bases, norms' epsilons) is the class's own.
A test reads every catalogued model back, and `tests/verify` counts the real classes' parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from estimator.values.specs import Model

Config = dict[str, object]


def _delta_net(model: Model) -> Config:
    sizes = model.delta_net
    if sizes is None:
        return {}
    return {
        "linear_num_key_heads": sizes.key_heads,
        "linear_num_value_heads": sizes.value_heads,
        "linear_key_head_dim": sizes.key_dim,
        "linear_value_head_dim": sizes.value_dim,
    }


def _state_space(model: Model) -> Config:
    """Mamba 2's sizes with the key names of Granite and Falcon-H1."""
    sizes = model.state_space
    if sizes is None:
        return {}
    falcons: Config = {
        "projectors_bias": sizes.out_bias,
        "mamba_rms_norm": sizes.is_normed,
        "mamba_norm_before_gate": sizes.norm_before_gate,
    }
    return {
        **(falcons if model.model_type == "falcon_h1" else {}),
        "mamba_n_heads": sizes.heads,
        "mamba_d_head": sizes.head_dim,
        "mamba_expand": max(1, sizes.width // model.hidden_size),
        "mamba_d_state": sizes.state_size,
        "mamba_n_groups": sizes.groups,
        "mamba_d_conv": sizes.conv_kernel,
        "mamba_chunk_size": sizes.chunk_size,
        "mamba_conv_bias": sizes.conv_bias,
        "mamba_proj_bias": sizes.in_bias,
    }


def _nemotron_h(model: Model) -> Config:
    """Mamba 2's and the experts' sizes with Nemotron-H's key names."""
    sizes = model.state_space
    experts: Config = {
        "n_routed_experts": model.num_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "moe_intermediate_size": model.moe_intermediate_size,
        "moe_shared_expert_intermediate_size": model.shared_expert_intermediate_size,
        "n_group": model.expert_groups,
        "topk_group": 1,
        "norm_topk_prob": model.norm_topk_prob,
    }
    mixers: Config = {}
    if sizes is not None:
        mixers = {
            "mamba_num_heads": sizes.heads,
            "mamba_head_dim": sizes.head_dim,
            "ssm_state_size": sizes.state_size,
            "n_groups": sizes.groups,
            "conv_kernel": sizes.conv_kernel,
            "chunk_size": sizes.chunk_size,
            "use_conv_bias": sizes.conv_bias,
            "use_bias": sizes.in_bias,
        }
    return {**(experts if model.num_experts else {}), **mixers}


# Families whose config class takes a bias, a switch or a share by a key of its own; the value is the spec's.
_SHARED: Mapping[str, Callable[[Model], Config]] = {
    "cohere": lambda model: {"use_qk_norm": model.qk_norm},
    "ernie4_5": lambda model: {"use_bias": model.attention_bias},
    "ernie4_5_moe": lambda model: {
        "use_bias": model.attention_bias,
        "moe_num_experts": model.num_experts,
        "moe_k": model.num_experts_per_tok,
        "moe_num_shared_experts": model.shared_expert_intermediate_size
        // model.moe_intermediate_size,
        "moe_layer_start_index": sum(kind == "dense" for kind in model.mlp_layer_types),
    },
    "exaone4": lambda model: {
        "layer_types": list(model.layer_types) or ["full_attention"] * model.num_hidden_layers
    },
    "falcon_h1": lambda model: {
        "mamba_d_ssm": model.state_space and model.state_space.width,
        **_state_space(model),
    },
    "gemma2": lambda model: {
        "attn_logit_softcapping": 50.0 if model.attn_logit_softcapping else None,
        "final_logit_softcapping": 30.0 if model.final_logit_softcapping else None,
    },
    "gemma3n_text": lambda model: {
        "final_logit_softcapping": 30.0 if model.final_logit_softcapping else None,
        "num_kv_shared_layers": model.num_kv_shared_layers,
        "hidden_size_per_layer_input": model.hidden_size_per_layer_input,
        "vocab_size_per_layer_input": model.vocab_size_per_layer_input,
        "altup_num_inputs": model.altup_num_inputs,
        "laurel_rank": model.laurel_rank,
        "activation_sparsity_pattern": [
            0.95 * (layer < model.cut_layers) for layer in range(model.num_hidden_layers)
        ],
    },
    "gemma4_text": lambda model: {
        "final_logit_softcapping": 30.0 if model.final_logit_softcapping else None,
        "global_head_dim": model.global_head_dim or model.head_dim,
        "num_global_key_value_heads": model.num_global_key_value_heads or None,
        "attention_k_eq_v": model.attention_k_eq_v,
        "num_kv_shared_layers": model.num_kv_shared_layers,
        "use_double_wide_mlp": model.use_double_wide_mlp,
        "hidden_size_per_layer_input": model.hidden_size_per_layer_input,
        "vocab_size_per_layer_input": model.vocab_size_per_layer_input or 1,
        "enable_moe_block": bool(model.num_experts),
        "top_k_experts": model.num_experts_per_tok or None,
    },
    "granitemoehybrid": lambda model: {
        "shared_intermediate_size": model.intermediate_size,
        "intermediate_size": model.moe_intermediate_size or model.intermediate_size,
        "layer_types": list(model.layer_types) or ["full_attention"] * model.num_hidden_layers,
        "position_embedding_type": "nope" if model.no_rope_layers else "rope",
        "num_local_experts": model.num_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        **_state_space(model),
    },
    "gpt_neox": lambda model: {
        "use_parallel_residual": model.parallel_residual,
        "hidden_dropout": model.resid_pdrop,
    },
    "internlm3": lambda model: {"qkv_bias": model.attention_bias, "bias": model.mlp_bias},
    "lfm2": lambda model: {"block_auto_adjust_ff_dim": False},
    "llama4_text": lambda model: {
        "intermediate_size": model.moe_intermediate_size,
        "intermediate_size_mlp": model.intermediate_size,
        "use_qk_norm": model.qk_norm,
        "attention_chunk_size": model.sliding_window,
        "layer_types": [kind.replace("sliding", "chunked") for kind in model.layer_types],
        "no_rope_layers": [int(not without) for without in model.no_rope_layers],
        "moe_layers": [
            index
            for index in range(model.num_hidden_layers)
            if not model.mlp_layer_types or model.mlp_layer_types[index] != "dense"
        ],
    },
    "nemotron_h": _nemotron_h,
    "phi": lambda model: {
        "qk_layernorm": model.qk_norm,
        "embd_pdrop": model.embd_pdrop,
        "resid_pdrop": model.resid_pdrop,
    },
    "phimoe": lambda model: {
        "intermediate_size": model.moe_intermediate_size,
        "lm_head_bias": model.lm_head_bias,
        "input_jitter_noise": 0.01 * model.jitters_input,
    },
    "phi3": lambda model: {"resid_pdrop": model.resid_pdrop},
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), _delta_net),
    "seed_oss": lambda model: {
        "attention_out_bias": model.attention_output_bias,
        "residual_dropout": model.resid_pdrop,
    },
    "smollm3": lambda model: {
        "no_rope_layers": [int(not without) for without in model.no_rope_layers]
        or [1] * model.num_hidden_layers,
        "use_sliding_window": bool(model.sliding_window),
    },
    "stablelm": lambda model: {
        "use_qkv_bias": model.attention_bias,
        "qk_layernorm": model.qk_norm,
        "use_parallel_residual": model.parallel_residual,
        "hidden_dropout": model.resid_pdrop,
    },
    "starcoder2": lambda model: {
        "use_bias": model.attention_bias,
        "embedding_dropout": model.embd_pdrop,
        "residual_dropout": model.resid_pdrop,
    },
}


_ACTIVATION_KEYS = {
    "nemotron_h": "mlp_hidden_act",
    **dict.fromkeys(("gemma2", "gemma3_text", "gemma3n_text", "gemma4_text"), "hidden_activation"),
}
_SWITCHED_WINDOW = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})


def config_of(model: Model) -> Config:
    """The `config.json` object with this model's dimensions and switches."""
    match model.model_type:
        case "gpt2" | "gpt_bigcode" | "gptj":
            family = _gpt2(model)
        case "bloom":
            family = _bloom(model)
        case "mpt":
            family = _mpt(model)
        case "falcon":
            family = _falcon(model)
        case "opt":
            family = _opt(model)
        case _:
            family = _llama_like(model)
    return {
        "model_type": model.model_type,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_word_embeddings,
        # ids within the smallest vocabulary; no padding row, which no memory depends on
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        **family,
    }


def _llama_like(model: Model) -> Config:
    config: Config = {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_position_embeddings,
        _ACTIVATION_KEYS.get(model.model_type, "hidden_act"): model.hidden_act,
        "attention_bias": model.attention_bias,
        "mlp_bias": model.mlp_bias,
        "attention_dropout": model.attn_pdrop,
        "sliding_window": model.sliding_window or None,
    }
    if model.partial_rotary_factor != 1:
        config["partial_rotary_factor"] = model.partial_rotary_factor
    if model.layer_types:
        config["layer_types"] = list(model.layer_types)
    if model.model_type in _SWITCHED_WINDOW:
        config["use_sliding_window"] = bool(model.sliding_window)
    if model.model_type in {"deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite"}:
        return config | _partly_dense(model)
    extra = _SHARED.get(model.model_type)
    return config | (extra(model) if extra else {}) | _experts(model)


def _partly_dense(model: Model) -> Config:
    """DeepSeek and GLM-4.5: dense layers before those with experts; latent attention if the model has it."""
    dense = sum(kind == "dense" for kind in model.mlp_layer_types)
    groups = model.expert_groups
    config: Config = {
        "n_routed_experts": model.num_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "moe_intermediate_size": model.moe_intermediate_size,
        "n_shared_experts": model.shared_expert_intermediate_size // model.moe_intermediate_size,
        "first_k_dense_replace": dense,
        "mlp_layer_types": list(model.mlp_layer_types) or ["sparse"] * model.num_hidden_layers,
        "norm_topk_prob": model.norm_topk_prob,
        "output_router_logits": model.output_router_logits,
        "topk_method": "group_limited_greedy" if groups else "greedy",
        "n_group": groups or None,
        "topk_group": max(1, groups // 2) if groups else None,
    }
    if not model.kv_lora_rank:
        return config | {"use_qk_norm": model.qk_norm}
    return config | {
        "q_lora_rank": model.q_lora_rank or None,
        "kv_lora_rank": model.kv_lora_rank,
        "qk_nope_head_dim": model.qk_nope_head_dim,
        "qk_rope_head_dim": model.qk_rope_head_dim,
        "v_head_dim": model.v_head_dim,
        # glm4_moe_lite: another name for the rotary width; the others do not read it
        "head_dim": model.qk_rope_head_dim,
    }


def _experts(model: Model) -> Config:
    """The keys of a mixture of experts; a family's class ignores those that it does not know."""
    if not model.num_experts:
        return {}
    is_local = model.model_type in {"granitemoe", "llama4_text", "mixtral", "phimoe"}
    return {
        "num_local_experts" if is_local else "num_experts": model.num_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "moe_intermediate_size": model.moe_intermediate_size,
        "shared_expert_intermediate_size": model.shared_expert_intermediate_size,
        "norm_topk_prob": model.norm_topk_prob,
        "output_router_logits": model.output_router_logits,
        "qkv_bias": model.attention_bias,
    }


def _gpt2(model: Model) -> Config:
    config: Config = {
        "n_embd": model.hidden_size,
        "n_layer": model.num_hidden_layers,
        "n_head": model.num_attention_heads,
        "n_positions": model.max_position_embeddings,
        "n_inner": model.intermediate_size,
        "activation_function": model.hidden_act,
        "embd_pdrop": model.embd_pdrop,
        "attn_pdrop": model.attn_pdrop,
        "resid_pdrop": model.resid_pdrop,
    }
    if model.model_type == "gptj":
        config["rotary_dim"] = round(model.partial_rotary_factor * model.head_dim)
    if model.model_type == "gpt_bigcode":
        config["multi_query"] = model.num_key_value_heads == 1
    return config


def _bloom(model: Model) -> Config:
    return {
        "hidden_size": model.hidden_size,
        "n_layer": model.num_hidden_layers,
        "n_head": model.num_attention_heads,
        "seq_length": model.max_position_embeddings,
        "attention_dropout": model.attn_pdrop,
        "hidden_dropout": model.resid_pdrop,
    }


def _mpt(model: Model) -> Config:
    return {
        "d_model": model.hidden_size,
        "n_layers": model.num_hidden_layers,
        "n_heads": model.num_attention_heads,
        "expansion_ratio": model.intermediate_size // model.hidden_size,
        "max_seq_len": model.max_position_embeddings,
        "attn_config": {"attn_pdrop": model.attn_pdrop or 0},  # the class takes no 0.0
    }


def _falcon(model: Model) -> Config:
    config: Config = {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_kv_heads": model.num_key_value_heads,
        "ffn_hidden_size": model.intermediate_size,
        "max_position_embeddings": model.max_position_embeddings,
        "activation": model.hidden_act,
        "multi_query": model.num_key_value_heads == 1,
        "new_decoder_architecture": model.new_decoder_architecture,
        "parallel_attn": model.parallel_residual,
        "bias": model.attention_bias,
        "alibi": bool(model.no_rope_layers),
        "attention_dropout": model.attn_pdrop,
        "hidden_dropout": model.resid_pdrop,
    }
    if (
        model.new_decoder_architecture
    ):  # the older design reads the key, too, and would get a norm more
        config["num_ln_in_parallel_attn"] = model.num_ln_in_parallel_attn
    return config


def _opt(model: Model) -> Config:
    return {
        "hidden_size": model.hidden_size,
        "ffn_dim": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "max_position_embeddings": model.max_position_embeddings,
        "word_embed_proj_dim": model.word_embed_proj_dim or model.hidden_size,
        "do_layer_norm_before": model.do_layer_norm_before,
        "enable_bias": model.attention_bias,
        "layer_norm_elementwise_affine": not model.norms_without_weight,
        "activation_function": model.hidden_act,
        "attention_dropout": model.attn_pdrop,
        "dropout": model.resid_pdrop,
    }
