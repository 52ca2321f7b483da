"""Keys of a config that nothing here reads, and why each may be left unread.

A key that ``hf_config`` asks for is read. Any other is in one of three places: ``COMMON`` or ``OF_FAMILY`` say why it
matters neither to memory nor to time nor to cost; ``SENSITIVE`` says what it does at other values than the one that is
estimated; and one that stands nowhere is named in the answer. ``tests/verify`` holds the tables against the fields of
every config class of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum


class Why(Enum):
    """Why a key may be left unread."""

    FILE = "says what the file is or who wrote it"
    SETUP = "the setup says it instead: in what the weights are loaded, by which kernel"
    TOKENS = "a token's id or the tokenizer's name"
    GENERATION = "how text is generated"
    CACHE = "the cache of keys and values, which Trainer turns off (TrainingArguments.use_cache)"
    INITIALISATION = "how fresh weights are drawn"
    OTHER_HEADS = "a head for classes, or an encoder's decoder, which is not trained here"
    NUMBERS = "a number that values are multiplied by or compared with: the same operators, the same bytes"
    SAME_BYTES = "other operators, whose traced step has the same height"
    OFF = "read only where another key asks for it"
    TOWERS = "of vision or sound, which is left out"
    UNREAD = "no line of the class's model reads it"


@dataclass(frozen=True, slots=True)
class Sensitive:
    """A key that matters and is estimated at one value only."""

    estimated: tuple[object, ...]
    """The values that it is estimated at."""
    effect: str
    """What it does at others, to end the sentence "The config's <key> is <value>, which …"."""


COMMON: Mapping[Why, str] = {
    Why.FILE: """
        _attn_implementation_autoset _commit_hash _name_or_path architectures auto_map custom_pipelines
        finetuning_task license model_type name_or_path quantization_config task_specific_params transformers_version
        unsloth_fixed unsloth_version""",
    Why.SETUP: """
        _attn_implementation _attn_implementation_internal _experts_implementation _experts_implementation_internal
        _flash_attn_2_enabled attn_implementation dtype experts_implementation torch_dtype use_bfloat16""",
    Why.TOKENS: """
        bos_token_id cls_token_id decoder_start_token_id eod_token_id eos_token_id mask_token_id pad_token_id
        sep_token_id tokenizer_class unk_token_id""",
    Why.GENERATION: """
        bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
        exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length
        max_new_tokens min_length no_repeat_ngram_size num_beam_groups num_beams num_logits_to_keep
        num_return_sequences output_scores prefix remove_invalid_values repetition_penalty return_dict_in_generate
        suppress_tokens temperature top_k top_p typical_p""",
    Why.CACHE: "cache_implementation use_cache",
    Why.INITIALISATION: "init_device init_std initializer_factor initializer_range",
    Why.OTHER_HEADS: """
        classifier_dropout cross_attention_hidden_size id2label is_decoder is_encoder_decoder label2id num_labels
        problem_type pruned_heads summary_activation summary_first_dropout summary_proj_to_labels summary_type
        summary_use_proj tie_encoder_decoder""",
    Why.NUMBERS: """
        layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon original_max_position_embeddings rms_norm_eps
        rope_parameters rope_scaling rope_theta router_aux_loss_coef""",
    Why.TOWERS: """
        image_token_id video_token_id vision_config vision_end_token_id vision_start_token_id vision_token_id""",
    Why.UNREAD: """
        _output_attentions _post_init_done base_model_pp_plan base_model_tp_plan chunk_size_feed_forward
        pretraining_tp return_dict tf_legacy_loss torchscript use_return_dict""",
}
"""Of every family. A step with each kind of ``rope_parameters`` (dynamic, yarn, longrope, llama3) was traced."""

_MULTIPLIERS = "attention_multiplier embedding_multiplier logits_scaling residual_multiplier"
_WINDOWS = "layer_types max_window_layers sliding_window"
_NEXT_TOKENS = "mtp_layers_block_type num_mtp_layers num_nextn_predict_layers"
"""Layers that predict later tokens, which transformers does not build."""
_DEEPSEEK: Mapping[Why, str] = {
    Why.NUMBERS: "qk_head_dim routed_scaling_factor topk_group",
    Why.OFF: """
        attention_bias attention_dropout first_k_dense_replace n_group n_shared_experts norm_topk_prob
        output_router_logits topk_method""",
    Why.UNREAD: f"aux_loss_alpha ep_size moe_layer_freq scoring_func seq_aux {_NEXT_TOKENS}",
}

OF_FAMILY: Mapping[str, Mapping[Why, str]] = {
    "bloom": {
        Why.SAME_BYTES: "apply_residual_connection_post_layernorm pretraining_tp slow_but_exact",
        Why.UNREAD: """
            attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion n_inner offset_alibi skip_bias_add
            skip_bias_add_qkv""",
        Why.OFF: "num_key_value_heads",
    },
    "cohere": {Why.NUMBERS: "logit_scale"},
    "cohere2": {
        Why.NUMBERS: "logit_scale",
        Why.OFF: "_sliding_window_pattern sliding_window_pattern",
        Why.UNREAD: """
            layer_switch order_of_interleaved_layers position_embedding_type rotary_pct use_embedding_sharing
            use_gated_activation use_parallel_block use_parallel_embedding use_qk_norm""",
    },
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "ernie4_5_moe": {
        Why.NUMBERS: "moe_norm_min",
        Why.UNREAD: "moe_aux_loss_lambda moe_capacity moe_gate moe_use_aux_free",
    },
    "exaone4": {Why.OFF: f"{_WINDOWS} sliding_window_pattern"},
    "falcon": {
        Why.OFF: "n_head_kv num_kv_heads num_ln_in_parallel_attn",
        Why.UNREAD: "apply_residual_connection_post_layernorm",
    },
    "falcon_h1": {
        Why.CACHE: "use_mamba_kernels",
        Why.NUMBERS: """
            attention_in_multiplier attention_out_multiplier embedding_multiplier key_multiplier lm_head_multiplier
            mlp_multipliers ssm_in_multiplier ssm_multipliers ssm_out_multiplier time_step_limit time_step_max
            time_step_min time_step_floor""",
        Why.OFF: "layer_types mamba_expand",
        Why.UNREAD: "attn_layer_indices mamba_use_mlp mlp_expansion_factor sliding_window",
    },
    "gemma": {Why.SAME_BYTES: "use_bidirectional_attention"},
    "gemma2": {
        Why.NUMBERS: "query_pre_attn_scalar",
        Why.SAME_BYTES: "use_bidirectional_attention",
        Why.UNREAD: "hidden_act sliding_window_size",
    },
    "gemma3_text": {
        Why.UNREAD: "hidden_act",
        Why.NUMBERS: "query_pre_attn_scalar rope_local_base_freq",
        Why.OFF: "_sliding_window_pattern sliding_window_pattern",
    },
    "gemma3n_text": {Why.NUMBERS: "altup_lr_multiplier rope_local_base_freq"},
    "gemma4_text": {
        Why.OFF: """
            moe_intermediate_size num_experts top_k_experts use_double_wide_mlp vocab_size_per_layer_input
            global_head_dim num_global_key_value_heads""",
    },
    "glm": {Why.OFF: "head_dim"},
    "glm4_moe": _DEEPSEEK,
    "glm4_moe_lite": {**_DEEPSEEK, Why.OFF: f"{_DEEPSEEK[Why.OFF]} head_dim mlp_layer_types"},
    "gpt2": {
        Why.NUMBERS: "scale_attn_by_inverse_layer_idx scale_attn_weights",
        Why.UNREAD: "n_ctx",
    },
    "gpt_bigcode": {
        Why.NUMBERS: "scale_attn_weights",
        Why.SAME_BYTES: "attention_softmax_in_fp32 scale_attention_softmax_in_fp32",
        Why.OFF: "num_key_value_heads",
        Why.UNREAD: """
            inference_runner max_batch_size max_sequence_length pad_key_length pre_allocate_kv_cache
            validate_runner_input""",
    },
    "gpt_neox": {Why.NUMBERS: "rotary_emb_base", Why.OFF: "rotary_pct"},
    "gpt_oss": {
        Why.NUMBERS: "swiglu_alpha swiglu_limit initial_context_length",
        Why.UNREAD: "experts_per_token",
    },
    "gptj": {Why.UNREAD: "n_ctx rotary scale_attn_weights gradient_checkpointing"},
    "granite": {Why.NUMBERS: _MULTIPLIERS},
    "granitemoe": {Why.NUMBERS: _MULTIPLIERS},
    "granitemoehybrid": {
        Why.NUMBERS: f"{_MULTIPLIERS} time_step_limit time_step_max time_step_min",
        Why.OFF: """
            layers_block_type intermediate_size mamba_chunk_size mamba_conv_bias mamba_d_conv mamba_d_head
            mamba_d_state mamba_expand mamba_n_groups mamba_n_heads mamba_proj_bias num_experts_per_tok
            output_router_logits""",
        Why.UNREAD: "init_method normalization_function",
    },
    "hunyuan_v1_dense": {
        Why.UNREAD: "add_classification_head attention_head_dim cla_share_factor class_num"
    },
    "lfm2": {
        Why.OFF: "block_multiple_of full_attn_idxs intermediate_size",
        Why.UNREAD: """
            block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu block_use_xavier_init
            conv_dim conv_dim_out conv_use_xavier_init num_heads use_pos_enc""",
    },
    "llama4_text": {
        Why.NUMBERS: "attn_scale floor_scale",
        Why.OFF: "no_rope_layer_interval interleave_moe_layer_step",
        Why.UNREAD: "for_llm_compressor",
    },
    "mpt": {
        Why.UNREAD: """
            attn_config.alibi attn_config.alibi_bias_max attn_config.attn_impl attn_config.attn_type
            attn_config.attn_uses_sequence_id attn_config.prefix_lm attn_config.qk_gn attn_config.qk_ln emb_pdrop
            embedding_fraction learned_pos_emb logit_scale no_bias norm_type resid_pdrop verbose""",
        Why.NUMBERS: "attn_config.softmax_scale",
        Why.INITIALISATION: "init_config",
    },
    "nemotron_h": {
        Why.CACHE: "mamba_ssm_cache_dtype use_mamba_kernels",
        Why.INITIALISATION: "rescale_prenorm_residual time_step_floor time_step_max time_step_min",
        Why.NUMBERS: "routed_scaling_factor time_step_limit topk_group",
        Why.OFF: """
            hybrid_override_pattern layers_block_type moe_intermediate_size moe_shared_expert_intermediate_size n_group
            n_routed_experts norm_topk_prob num_experts_per_tok num_hidden_layers output_router_logits
            mamba_hidden_act""",
        Why.UNREAD: f"""
            attention_bias expand hidden_dropout mamba_proj_bias moe_shared_expert_overlap n_shared_experts
            residual_in_fp32 sliding_window {_NEXT_TOKENS} mtp_hybrid_override_pattern""",
    },
    "opt": {Why.UNREAD: "activation_dropout"},
    "phi3": {
        Why.UNREAD: "attention_bias embd_pdrop full_attn_mod interpolate_factor lm_head_bias mlp_bias"
    },
    "phimoe": {Why.NUMBERS: "router_jitter_noise"},
    "qwen2": {Why.OFF: _WINDOWS, Why.UNREAD: "use_mrope"},
    "qwen2_moe": {Why.OFF: _WINDOWS},
    "qwen3": {Why.OFF: _WINDOWS},
    "qwen3_5_moe_text": {
        Why.OFF: "full_attention_interval intermediate_size",
        Why.UNREAD: "attn_output_gate mamba_ssm_dtype mlp_only_layers mtp_num_hidden_layers",
    },
    "qwen3_5_text": {
        Why.OFF: "full_attention_interval",
        Why.UNREAD: "attn_output_gate mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings",
    },
    "qwen3_moe": {Why.OFF: f"{_WINDOWS} num_experts"},
    "qwen3_next": {Why.OFF: "full_attention_interval"},
    "smollm3": {Why.OFF: f"{_WINDOWS} no_rope_layer_interval"},
    "stablelm": {Why.UNREAD: "rotary_scaling_factor"},
    "starcoder2": {
        Why.UNREAD: """
            activation_function attention_softmax_in_fp32 mlp_type norm_type scale_attention_softmax_in_fp32
            scale_attn_weights""",
    },
}
"""Beside what is common, family by family."""

_TO_THE_END = "to the end of the forward pass, in float32 under autocast, and is not modelled"
SENSITIVE: Mapping[str, Sensitive] = {
    "output_hidden_states": Sensitive((False,), f"keeps every layer's output {_TO_THE_END}"),
    "output_attentions": Sensitive(
        (False,), f"keeps every layer's weights of attention {_TO_THE_END}"
    ),
    "is_causal": Sensitive(
        (True,), "asks for attention that is not causal; its time is counted as causal"
    ),
    "add_cross_attention": Sensitive(
        (False,), "adds layers that attend to an encoder, and is not modelled"
    ),
    "layerdrop": Sensitive((0,), "skips layers at random in training, and is not modelled"),
}
"""Keys that are estimated at one value. ``layerdrop`` and ``add_cross_attention`` are of some families."""
_SENSITIVE_IN = {
    "layerdrop": {"opt"},
    "add_cross_attention": {"gpt2", "gpt_bigcode"},
}


def reasons(model_type: str) -> Mapping[str, Why]:
    """Why each key that is known of a family may be left unread."""
    tables = (COMMON, OF_FAMILY.get(model_type, {}))
    return {key: why for table in tables for why, keys in table.items() for key in keys.split()}


def is_sensitive(key: str, model_type: str) -> bool:
    """Whether a key matters to a family and is estimated at one value only."""
    return key in SENSITIVE and model_type in _SENSITIVE_IN.get(key, {model_type})


def unread(config: Mapping[str, object], asked: Collection[str], model_type: str) -> list[str]:
    """Keys of a config that say something, were not asked for, and matter or are not known; in its order."""
    known = reasons(model_type)
    return [
        key
        for key, value in config.items()
        if value is not None
        and key not in asked
        and key not in known
        and not (is_sensitive(key, model_type) and value in SENSITIVE[key].estimated)
    ]
