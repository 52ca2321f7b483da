"""ms-swift's flags and YAML: transformers' arguments with its own.

Source: ms-swift 4.6.0; the lines of its defaults stand in data/tool_defaults.csv.
"""

from __future__ import annotations

from estimator.tools.known import allocator, images, llamafactory, parallel, transformers
from estimator.tools.known.parallel import is_on, positive, rounded, whole
from estimator.tools.known.peft import (
    all_linear,
    dtype_word,
    four_bits,
    modules_to_save_from,
    targets_from,
)
from estimator.tools.known.trl import USUAL_PROMPT, whole_logits
from estimator.tools.later import EITHER, LESS, MORE, not_modelled
from estimator.tools.lists import listed, under
from estimator.tools.rules import Rule, SoFar, Theirs, Tool, Value, Values, alike, row, same, words
from estimator.values.arithmetic import ceil_div

VERSION = "ms-swift 4.6.0"
OBJECTIVES = {"reward": "rm"}
"""Ours that have another name there."""


def _objective(theirs: Theirs, so_far: SoFar) -> Values:
    word = theirs["args.rlhf_type"]
    if isinstance(word, str):
        return {
            "objective": next((ours for ours, name in OBJECTIVES.items() if name == word), word)
        }
    if theirs["args.task_type"] == "seq_cls":
        return {"objective": "sequence_classification"}
    return {"objective": "embedding"} if theirs["args.task_type"] == "embedding" else {}


def _write_objective(values: Values) -> Values:
    objective = values["objective"]
    if objective in ("sequence_classification", "embedding"):
        return {
            "args.task_type": "seq_cls" if objective == "sequence_classification" else objective
        }
    return {} if objective == "sft" else {"args.rlhf_type": OBJECTIVES.get(objective, objective)}


def _beta(theirs: Theirs, so_far: SoFar) -> Values:
    given = theirs["args.beta"]
    if given is None and so_far["objective"] == "grpo":
        return {"beta": 0.04}
    return {} if given is None else {"beta": given}


def _generated(theirs: Theirs, so_far: SoFar) -> Values:
    """GRPO's ``max_length`` is the prompt's: swift/rlhf_trainers/rollout_mixin.py:1826."""
    if so_far["objective"] != "grpo":
        return {}
    completion = whole(theirs["args.max_completion_length"]) or 512
    prompt = whole(theirs["args.max_length"]) or USUAL_PROMPT
    return {
        "max_length": prompt + completion,
        "max_prompt_length": prompt,
        "max_completion_length": completion,
    }


def _write_generated(values: Values) -> Values:
    if values["max_prompt_length"] is None:  # of an objective that generates nothing
        return {}
    return {
        "args.max_length": values["max_prompt_length"],
        "args.max_completion_length": values["max_completion_length"],
    }


def _of_engine(ours: str, usual: Value, says: str, line: int, none: Value = None) -> Rule:
    """A key of vLLM's that has a default of its own; ``none``: how ms-swift writes that there is no limit."""
    theirs = f"args.{ours}"

    def read(given: Theirs, so_far: SoFar) -> Values:
        value = given[theirs]
        if value is None and not is_on(given["args.use_vllm"]):
            return {}
        return {ours: usual if value is None else None if value == none else value}

    def write(values: Values) -> Values:
        return {theirs: none if values[ours] is None else values[ours]}

    source = f"{VERSION}, swift/rlhf_trainers/args_mixin.py:{line}"
    return row(f"{theirs} args.use_vllm", ours, read, write, says=says, source=source)


def _precision(theirs: Theirs, so_far: SoFar) -> Values:
    dtype = dtype_word(theirs["args.torch_dtype"]) or transformers.checkpoint_dtype(so_far)
    autocast = "bf16" if dtype == "bfloat16" else "fp16"
    if is_on(theirs["args.bf16"]):
        autocast = "bf16"
    elif is_on(theirs["args.fp16"]):
        autocast = "fp16"
    elif theirs["args.bf16"] is False and theirs["args.fp16"] in (None, False):
        autocast = "no"
    trained_in_16 = so_far["method"] == "full" and dtype == "float16"
    return {"dtype": "float32" if trained_in_16 else dtype, "mixed_precision": autocast}


def _write_precision(values: Values) -> Values:
    return {"args.torch_dtype": values["dtype"], **transformers.write_autocast(values)}


def _accumulation(theirs: Theirs, so_far: SoFar) -> Values:
    asked = whole(theirs["args.gradient_accumulation_steps"])
    each = so_far["per_device_train_batch_size"] * so_far["num_gpus"]
    return {"gradient_accumulation_steps": asked or ceil_div(16, max(1, each))}


def _tokens_of_images(theirs: Theirs, so_far: SoFar) -> Values:
    found: dict[str, Value] = {}
    for ours, key in (("max_pixels", "image_max_token_num"), ("min_pixels", "image_min_token_num")):
        if not theirs.is_given(f"args.{key}") or not images.has_setting(so_far.model, ours):
            continue
        area = images.area_of_tokens(so_far.model, whole(theirs[f"args.{key}"]) or 0)
        found |= {ours: area} if area else {}
    return found


def _tower_checkpoints(theirs: Theirs, so_far: SoFar) -> Values:
    own = theirs["args.vit_gradient_checkpointing"]
    if own is None or so_far.model is None or so_far.model.vision is None:
        return {}
    return {"vision_gradient_checkpointing": is_on(own)}


FRAMES = {"video_max_pixels": 602_112, "video_min_pixels": 100_352, "cap_pixels_per_frame": True}
"""qwen-vl-utils' limits: 768 and 128 tokens of a frame, QwenLM/Qwen3-VL, qwen-vl-utils/src/qwen_vl_utils/
vision_process.py, ``VIDEO_MAX_TOKEN_NUM``, ``VIDEO_MIN_TOKEN_NUM``, ``fetch_video``; ms-swift logs them."""

RULES = (
    row("args.rlhf_type args.task_type", "objective", _objective, _write_objective),
    same("args.model", "model", "args.model_id_or_path"),
    llamafactory.by_bits(
        "args.quant_bits",
        *("args.tuner_type", "args.train_type", "args.sft_type"),
        adapters=("lora", "longlora"),
        beside={"args.quant_method": "bnb"},
    ),
    *parallel.RULES,
    allocator.RULE,
    row(
        "args.torch_dtype args.bf16 args.fp16",
        "dtype mixed_precision",
        _precision,
        _write_precision,
        says="the checkpoint's dtype decides weights and autocast",
        source=f"{VERSION}, swift/arguments/base_args/model_args.py:130",
    ),
    transformers.BATCH[0],
    row(
        "args.gradient_accumulation_steps",
        "gradient_accumulation_steps",
        _accumulation,
        "args.gradient_accumulation_steps",
        says="as many as make 16 examples over all GPUs",
        source=f"{VERSION}, swift/trainers/arguments.py:291",
    ),
    *transformers.OPTIMISER,
    transformers.CHECKPOINTING,
    transformers.attention_from(
        "args.attn_impl",
        "args.attn_implementation",
        words={"flash_attn": "flash_attention_2", "sdp": "sdpa"},
    ),
    same("args.use_liger_kernel"),
    transformers.COMPILED,
    whole_logits(
        "its own trainers of preferences keep the completions' logits whole",
        f"{VERSION}, swift/rlhf_trainers/rlhf_mixin.py:147",
        "selective",
        ("dpo", "kto", "grpo"),
    ),
    *alike("args", "packing padding_free"),
    transformers.PADDED,
    same("args.max_length", as_=positive),
    same("args.lora_rank", "lora_r"),
    same("args.lora_alpha", as_=rounded),
    same("args.lora_dropout"),
    targets_from(
        *("args.target_modules", "all-linear", "all_linear"),
        instead=all_linear,
        says="all linear layers get an adapter",
    ),
    modules_to_save_from("args.modules_to_save"),
    same("args.use_dora"),
    same("args.lora_bias", "bias"),
    same("args.target_parameters"),
    four_bits(
        *("args.bnb_4bit_quant_type", "args.bnb_4bit_use_double_quant"),
        "args.bnb_4bit_quant_storage",
        "it packs with double quantisation",
    ),
    images.frozen("args.freeze_vit", "args.freeze_aligner", "args.freeze_llm"),
    row(
        "args.vit_gradient_checkpointing",
        "vision_gradient_checkpointing",
        _tower_checkpoints,
        "args.vit_gradient_checkpointing",
    ),
    images.setting("max_pixels", "args.max_pixels"),
    images.setting("min_pixels", "args.min_pixels"),
    images.setting("max_patches", "args.max_num"),
    row(
        "args.image_max_token_num args.image_min_token_num",
        "max_pixels min_pixels",
        _tokens_of_images,
    ),
    images.area_of_frames("args.video_max_pixels", "args.video_min_pixels", FRAMES),
    images.most_frames("args.nframes", "args.fps_max_frames"),
    row(
        "args.beta",
        "beta",
        _beta,
        "args.beta",
        says="GRPO weighs a reference by 0.04",
        source=f"{VERSION}, swift/arguments/rlhf_args.py:357",
    ),
    row(
        "args.max_completion_length args.max_length",
        "max_length max_prompt_length max_completion_length",
        _generated,
        _write_generated,
        says=f"GRPO writes 512 tokens after {USUAL_PROMPT} of the prompt: set max_length to the longest prompt",
        source=f"{VERSION}, swift/arguments/rlhf_args.py:242",
    ),
    *alike(
        "args",
        """num_generations steps_per_generation num_iterations use_vllm vllm_mode
        vllm_tensor_parallel_size vllm_data_parallel_size ds3_gather_for_generation num_labels""",
    ),
    _of_engine("vllm_gpu_memory_utilization", 0.9, "vLLM takes 0.9 of the GPU", 37),
    same("args.vllm_max_model_len", "vllm_max_model_length"),
    _of_engine("vllm_max_num_seqs", 256, "vLLM runs 256 rows at once", 41, none=0),
    same("args.offload_model", "generation_offload_model"),
    same("args.offload_optimizer", "generation_offload_optimizer"),
    words("args.sleep_level", "vllm_enable_sleep_mode", {0: False, 1: True, 2: True}),
    *transformers.RUN,
)


LATER = (
    *allocator.LATER,
    *llamafactory.LATER,
    *not_modelled(
        "args",
        ("move_model_batches", "Weights go to vLLM in parts", LESS),
        ("vllm_max_lora_rank vllm_enable_lora", "The engine keeps adapters", MORE),
        ("vllm_enforce_eager", "vLLM captures no CUDA graphs", LESS),
        ("vllm_limit_mm_per_prompt", "The engine keeps room for images", EITHER),
        ("sequence_parallel_size", "Rows are divided (Ulysses)", LESS, 1),
        ("deepspeed_autotp_size", "DeepSpeed divides the layers' matrices (AutoTP)", LESS, 1),
        ("zero_hpz_partition_size", "ZeRO++ keeps a second copy inside each machine", MORE),
        ("lora_ga_batch_size", "LoRA-GA begins from gradients of the data", MORE),
        ("to_cached_dataset", "Rows are made beforehand", EITHER),
        ("chord_sft_per_device_train_batch_size", "A supervised loss is added", MORE),
        ("gkd_logits_topk", "A teacher's logits are kept beside", MORE),
        ("freeze_parameters_ratio", "The first layers are frozen", LESS, 0, 0.0),
        ("freeze_parameters freeze_parameters_regex", "These parameters are frozen", LESS),
        ("trainable_parameters trainable_parameters_regex", "These parameters are trained", MORE),
        ("target_regex", "A pattern chooses the modules with an adapter", EITHER),
        ("lora_dtype", "The adapters' dtype", EITHER, "AUTO"),
        ("quant_method", "Another quantiser than bitsandbytes", EITHER, "bnb"),
        ("lisa_activated_layers", "Only so many layers are trained at a time", LESS, 0),
        ("use_galore", "GaLore projects the optimizer's states", LESS),
        ("galore_rank", "GaLore projects to this rank", EITHER),
        ("galore_quantization", "GaLore quantises its projections", LESS),
        ("optimizer", "An optimizer of its own", EITHER),
        (
            "init_weights",
            "The adapters begin from a decomposition of the weights",
            MORE,
            "true",
            True,
            "gaussian",
        ),
        ("tuner_backend", "Another library makes the adapters", EITHER, "peft"),
        ("use_logits_to_keep", "Only the scored tokens' logits are computed", LESS),
        ("enable_dft_loss", "Dynamic fine-tuning keeps the probabilities", MORE),
        ("enable_channel_loss", "A loss for each channel", EITHER),
        ("loss_type", "Another loss", EITHER),
        ("router_aux_loss_coef", "The routers' scores are kept for a second loss", MORE, 0, 0.0),
        ("experts_impl", "Experts are computed another way", EITHER),
        ("ref_model", "The reference is a model of its own", MORE),
        ("ref_adapters", "The reference is an adapter", LESS),
        ("teacher_model", "A teacher is kept", MORE),
        ("offload_teacher_model", "The teacher rests on the CPU", LESS),
        ("teacher_deepspeed", "The teacher is divided", LESS),
        ("sft_alpha", "A supervised loss is added", EITHER, 0),
        ("rpo_alpha", "A supervised loss is added", EITHER),
        ("cached_dataset", "Rows are as long as they were made", EITHER),
        ("packing_length", "Rows are packed to this length", EITHER),
        ("resume_only_model", "Training goes on without its optimizer", EITHER),
        ("adapters", "Training goes on from these adapters", EITHER),
        ("async_generate", "Generation runs beside training", MORE),
        ("overlong_filter", "Rows that are cut are not scored", LESS),
        ("dynamic_sample", "More is generated until rewards differ", MORE),
        ("device_map", "Layers lie on different devices", LESS, "auto"),
        ("max_memory", "Each device takes no more than this", EITHER),
        ("interleave_prob", "Data sets are mixed", EITHER),
        ("use_flash_ckpt", "Checkpoints are kept in the host's memory first", MORE),
    ),
)

NO_EFFECT = (
    parallel.NO_EFFECT
    | allocator.NO_EFFECT
    | transformers.ARGS_WITHOUT_EFFECT
    | under(
        "args",
        """lora_ga_iters lora_ga_direction lora_ga_scale lora_ga_stable_gamma lora_ga_max_length tau_pos tau_neg
        teacher_model_server command config dataset val_dataset cached_val_dataset split_dataset_ratio
        dataset_num_proc load_from_cache_file dataset_shuffle val_dataset_shuffle streaming stopping_strategy
        shuffle_buffer_size download_mode columns.* strict disable_auto_column_mapping model_name model_author
        custom_dataset_info template system truncation_strategy agent_template norm_bbox use_chat_template
        padding_side loss_scale is_binary_loss_scale template_backend response_prefix enable_thinking
        preserve_thinking add_non_thinking_prefix max_new_tokens temperature top_k top_p repetition_penalty
        num_beams stream stop_words logprobs top_logprobs external_plugins custom_register_path custom_register
        model_kwargs.* load_args load_data_args packing_num_proc packing_strategy lazy_tokenize use_hf
        ignore_args_error use_swift_lora hqq_axis bnb_4bit_compute_dtype swanlab_token swanlab_project
        swanlab_workspace swanlab_exp_name swanlab_mode add_version create_checkpoint_symlink lorap_lr_ratio
        use_rslora model_type model_revision problem_type rope_scaling.* rope_scaling max_model_len
        local_repo_path init_strategy check_model acc_strategy train_dataloader_shuffle max_epochs aligner_lr
        vit_lr eval_metric metric callbacks early_stop_interval eval_use_evalscope eval_dataset eval_limit
        eval_generation_config eval_datasets eval_datasets_args eval_dataset_args extra_eval_args
        galore_target_modules galore_update_proj_gap galore_scale galore_proj_type galore_optim_per_parameter
        galore_with_embedding reward_funcs reward_weights log_completions epsilon epsilon_high
        advantage_estimator kl_in_reward scale_rewards cosine_min_len_value_wrong num_ppo_epochs kl_coef
        cliprange vf_coef gamma lam whiten_rewards missing_eos_penalty label_smoothing cpo_alpha simpo_gamma
        desirable_weight undesirable_weight center_rewards_coefficient lmbda seq_kd vllm_server_host
        vllm_server_port vllm_server_base_url vllm_server_timeout vllm_enable_prefix_caching
        vllm_disable_custom_all_reduce vllm_server_pass_dataset multi_turn_scheduler max_turns delta
        importance_sampling_level max_resample_times cosine_max_len_value_wrong repetition_n_grams
        repetition_max_penalty soft_max_length soft_cache_length lisa_step_interval llamapro_num_new_blocks
        adalora_target_r boft_block_size vera_rank reft_layers reft_rank fourier_n_frequency logprobs_mode
        rollout_importance_sampling_mode rollout_importance_sampling_threshold log_entropy top_entropy_quantile
        use_ray device_groups safe_serialization max_shard_size new_special_tokens logits_to_keep
        enable_npu_model_patch dataset_test_ratio eval_human structured_outputs_regex response_length merge_lora
        infer_backend result_path""",
    )
)

VARIABLES = frozenset(
    listed("""MAX_PIXELS MIN_PIXELS MAX_NUM IMAGE_MAX_TOKEN_NUM IMAGE_MIN_TOKEN_NUM VIDEO_MAX_PIXELS VIDEO_MIN_PIXELS
    FPS_MAX_FRAMES NFRAMES""")
)
"""What ms-swift's templates read from the environment: ms-swift 4.6, swift/model/models/qwen.py,
swift/template/templates/internvl.py."""
TOOL = Tool(
    name="ms_swift",
    label="ms-swift",
    distribution="ms-swift",
    place=7,
    chains={
        **transformers.CHAINS,
        "args": (
            *(
                ("ms-swift", name)
                for name in listed("""SftArguments TrainArgumentsMixin TunerArguments BaseArguments TemplateArguments
                QuantizeArguments""")
            ),
            ("transformers", "TrainingArguments"),
        ),
    },
    rules=RULES,
    later=LATER,
    no_effect=NO_EFFECT,
    marks=(
        "model dataset",
        *listed("tuner_type train_type tuner_backend split_dataset_ratio rlhf_type lazy_tokenize"),
    ),
    programs=frozenset(["swift"]),
    trains=frozenset(["sft", "pt", "rlhf"]),
    modules=("swift.cli",),
    scripts=((r"swift/cli/(sft|rlhf|pt)\.py$", ""),),
    is_told_prompts=True,
    word_key="args.command",
    variables=VARIABLES,
)
