"""Config keys that are not read, and why each can be ignored.

Keys that ``hf_config`` does not read are of three kinds. ``COMMON`` and the family's ``unread`` say why a key affects
neither memory nor time nor cost. ``SENSITIVE`` says what a key does at values other than the one estimated. Unknown
keys are named in the answer. ``tests/verify`` compares the tables with the fields of every config class of transformers
5.23.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from estimator.families.config_class import Why
from estimator.families.registry import FAMILIES


@dataclass(frozen=True, slots=True)
class Sensitive:
    """A key that matters but is only estimated at some values."""

    estimated: tuple[object, ...]
    """The values for which it is estimated."""
    effect: str
    """What it does at other values; completes the sentence "The config's <key> is <value>, which …"."""


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
"""For every family. A step with each kind of ``rope_parameters`` (dynamic, yarn, longrope, llama3) was traced."""


WINDOWS = "layer_types max_window_layers sliding_window"
NEXT_TOKENS = "mtp_layers_block_type num_mtp_layers num_nextn_predict_layers"
"""Layers that predict later tokens, which transformers does not build."""


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
"""Keys that are only estimated at some values."""
SENSITIVE_IN_SOME = ("layerdrop", "add_cross_attention")
"""Those that only some families have: ``Family.sensitive``."""


def reasons(model_type: str) -> Mapping[str, Why]:
    """Why each known key of a family can be ignored."""
    tables = (COMMON, FAMILIES[model_type].unread)
    return {key: why for table in tables for why, keys in table.items() for key in keys.split()}


def is_sensitive(key: str, model_type: str) -> bool:
    """Whether a key matters to a family but is only estimated at some values."""
    in_all = key not in SENSITIVE_IN_SOME
    return key in SENSITIVE and (in_all or key in FAMILIES[model_type].sensitive)


def unread(config: Mapping[str, object], asked: Collection[str], model_type: str) -> list[str]:
    """Keys of a config with a value that were not read and that matter or are unknown, in its order."""
    known = reasons(model_type)
    return [
        key
        for key, value in config.items()
        if value is not None
        and key not in asked
        and key not in known
        and not (is_sensitive(key, model_type) and value in SENSITIVE[key].estimated)
    ]
