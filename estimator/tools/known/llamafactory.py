"""LLaMA-Factory's YAML and flags: transformers' arguments with its own.

Source: llamafactory 0.9.5; the lines of its defaults stand in data/tool_defaults.csv.
"""

from __future__ import annotations

from estimator.tools.known import allocator, images, parallel, transformers
from estimator.tools.known.parallel import is_on, whole
from estimator.tools.known.peft import all_linear, modules_to_save_from, targets_from
from estimator.tools.known.transformers import checkpoint_dtype
from estimator.tools.known.trl import whole_logits
from estimator.tools.later import EITHER, LESS, MORE, not_modelled
from estimator.tools.lists import listed, under
from estimator.tools.rules import (
    NOTHING,
    Rule,
    SoFar,
    Theirs,
    Tool,
    Value,
    Values,
    row,
    same,
    words,
)
from estimator.values.objective import having
from estimator.values.specs import ALL_LINEAR

VERSION = "llamafactory 0.9.5"
PREFERENCES = ("sigmoid", "hinge", "ipo")
"""Of ``pref_loss``, those that TRL has as well: llamafactory 0.9.5, hparams/finetuning_args.py."""
STAGES = {"sft": "sft", "pt": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto", "ppo": "ppo"}


def _objective(theirs: Theirs, so_far: SoFar) -> Values:
    stage = theirs["args.stage"]
    found = STAGES.get(stage, stage) if isinstance(stage, str) else stage
    if found != "dpo":
        return {"objective": found}
    loss = theirs["args.pref_loss"]
    if loss in ("orpo", "simpo"):
        return {"objective": loss}
    return {"objective": found, "loss_type": loss}


def _write_objective(values: Values) -> Values:
    word = values["objective"]
    if word == "orpo":
        return {"args.stage": "dpo", "args.pref_loss": "orpo"}
    stage = {"reward": "rm"}.get(word, word)
    if stage not in ("sft", "rm", "dpo", "kto"):
        return {}
    loss = values.get("loss_type")
    own = {"args.pref_loss": loss} if word == "dpo" and loss in PREFERENCES else {}
    return {"args.stage": stage, **own}


def by_bits(
    bits: str,
    *kinds: str,
    adapters: tuple[str, ...] = ("lora",),
    beside: Values = NOTHING,
) -> Rule:
    """What is trained by a word, and packed by a number of bits; ``beside``: keys that come with the bits."""

    def read(theirs: Theirs, so_far: SoFar) -> Values:
        width, kind = whole(theirs[bits]), theirs.first(*kinds)
        if kind not in adapters:
            return {"method": kind}
        return {"method": "qlora"} if width == 4 else {"method": "lora", "load_in_8bit": width == 8}

    def write(values: Values) -> Values:
        method = values["method"]
        width = 8 if method == "lora" and values.get("load_in_8bit") else None
        width = 4 if method == "qlora" else width
        return {
            kinds[0]: "full" if method == "full" else "lora",
            **(beside if width else {}),
            bits: width,
        }

    return row(" ".join([*kinds, bits]), "method load_in_8bit", read, write)


def _precision(theirs: Theirs, so_far: SoFar) -> Values:
    autocast = transformers.autocast_of(theirs)
    pure = is_on(theirs["args.pure_bf16"])
    cast = so_far["method"] == "full" and not pure and so_far["strategy"] != "zero3"
    return {"mixed_precision": autocast, "dtype": "float32" if cast else checkpoint_dtype(so_far)}


def _write_precision(values: Values) -> Values:
    pure = values["dtype"] == "bfloat16" and values["mixed_precision"] == "no"
    pure = (
        pure and values["strategy"] != "zero3"
    )  # where LLaMA-Factory stops at it, and casts nothing
    return {**transformers.write_autocast(values), "args.pure_bf16": pure}


def _checkpointing(theirs: Theirs, so_far: SoFar) -> Values:
    on = not is_on(theirs["args.disable_gradient_checkpointing"])
    found: dict[str, Value] = {"gradient_checkpointing": on}
    if on:
        fsdp2 = str(so_far["strategy"]).startswith("fsdp") and so_far["fsdp_version"] == 2
        found["use_reentrant"] = is_on(theirs["args.use_reentrant_gc"]) and not fsdp2
    if on and is_on(theirs["args.use_unsloth_gc"]):
        found["offload_checkpoints"] = True
    return found


def _write_checkpointing(values: Values) -> Values:
    on = values["gradient_checkpointing"]
    written: dict[str, Value] = {"args.disable_gradient_checkpointing": not on}
    return written | ({"args.use_reentrant_gc": bool(values.get("use_reentrant"))} if on else {})


def _tower_checkpoints(theirs: Theirs, so_far: SoFar) -> Values:
    """A frozen tower's layers are not checkpointed, and no hook makes their input require a gradient.

    Source: llamafactory 0.9.5, llamafactory/model/model_utils/checkpointing.py,
    ``get_custom_gradient_checkpointing_func``, ``_gradient_checkpointing_enable``.
    """
    model = so_far.model
    if model is None or model.vision is None:
        return {}
    if not (so_far["gradient_checkpointing"] and so_far["freeze_vision"]):
        return {}
    return {"vision_gradient_checkpointing": False}


def _write_targets(values: Values) -> Values:
    named = values["lora_target_modules"]
    return {"args.lora_target": "all" if named == ALL_LINEAR else ",".join(named)}


def _alpha(theirs: Theirs, so_far: SoFar) -> Values:
    asked, rank = theirs["args.lora_alpha"], whole(so_far["lora_r"]) or 0
    return {"lora_alpha": asked or 2 * rank} if asked or rank else {}


def _packing(theirs: Theirs, so_far: SoFar) -> Values:
    """Packed rows stay rows of ``cutoff_len``; neat ones have a mask each, but with FlashAttention.

    Source: github.com/hiyouga/LLaMA-Factory, src/llamafactory/data/processor/supervised.py,
    ``PackedSupervisedDatasetProcessor``; data/collator.py, ``SFTDataCollatorWith4DAttentionMask``,
    ``prepare_4d_attention_mask``.
    """
    neat, asked = is_on(theirs["args.neat_packing"]), theirs["args.packing"]
    packed = neat or (theirs["args.stage"] == "pt" if asked is None else is_on(asked))
    masked = neat and so_far["attn_implementation"] != "flash_attention_2"
    padded = not packed and so_far["per_device_train_batch_size"] > 1
    return {"packing": False, "padded": padded or masked}


def _packed(theirs: Theirs, so_far: SoFar) -> Values:
    autocast = transformers.autocast_of(theirs)
    return {
        "bnb_4bit_quant_type": theirs["args.quantization_type"],
        "bnb_4bit_use_double_quant": is_on(theirs["args.double_quantization"]),
        "bnb_4bit_quant_storage": {"fp16": "float16"}.get(autocast, "bfloat16"),
    }


def _optimizer(theirs: Theirs, so_far: SoFar) -> Values:
    for key, name in {
        "use_galore": "galore_adamw_layerwise"
        if is_on(theirs["args.galore_layerwise"])
        else "galore_adamw",
        "use_apollo": "apollo_adamw_layerwise"
        if is_on(theirs["args.apollo_layerwise"])
        else "apollo_adamw",
        "use_badam": "badam",
        "use_adam_mini": "adam_mini",
        "use_muon": "muon",
    }.items():
        if is_on(theirs[f"args.{key}"]):
            return {"optim": name}
    return transformers.OPTIMISER[0].read(theirs, so_far)


def _beta(theirs: Theirs, so_far: SoFar) -> Values:
    asks = so_far["objective"] in having("is_preference")
    return {"beta": theirs["args.pref_beta"]} if asks else {}


KERNELS = {
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
    "sdpa": "sdpa",
    "disabled": "eager",
}
FRAMES = {"video_max_pixels": 256 * 256, "video_min_pixels": 56 * 56}
"""Its own default beside the least area of the processor, which is larger than its own: hparams/model_args.py."""

RULES = (
    row("args.stage args.pref_loss", "objective loss_type", _objective, _write_objective),
    whole_logits(
        "its own trainers of preferences keep the logits whole, in float32",
        f"{VERSION}, llamafactory/train/dpo/trainer.py, concatenated_forward",
    ),
    same("args.model_name_or_path", "model"),
    by_bits("args.quantization_bit", "args.finetuning_type"),
    *parallel.RULES,
    allocator.RULE,
    row(
        "args.bf16 args.fp16 args.pure_bf16 accelerate.mixed_precision",
        "mixed_precision dtype strategy",
        _precision,
        _write_precision,
        says="every weight that is trained is cast to float32, but under pure_bf16 and ZeRO-3",
        source=f"{VERSION}, llamafactory/model/adapter.py:313",
    ),
    *transformers.BATCH,
    row(
        """args.optim args.optim_args args.use_galore args.galore_layerwise args.use_apollo
        args.apollo_layerwise args.use_badam args.use_adam_mini args.use_muon""",
        "optim optim_args",
        _optimizer,
        "args.optim args.optim_args",
    ),
    *transformers.OPTIMISER[1:],
    row(
        "args.disable_gradient_checkpointing args.use_reentrant_gc args.use_unsloth_gc",
        "gradient_checkpointing use_reentrant offload_checkpoints",
        _checkpointing,
        _write_checkpointing,
        says="LLaMA-Factory checkpoints, the older way, but for FSDP 2",
        source=f"{VERSION}, llamafactory/model/model_utils/checkpointing.py:160",
    ),
    words(
        "args.flash_attn",
        "attn_implementation",
        KERNELS,
        unlisted="sdpa",
        says="auto takes the model's own kernel, sdpa",
    ),
    same("args.enable_liger_kernel", "use_liger_kernel", "args.use_liger_kernel"),
    transformers.COMPILED,
    row(
        "args.packing args.neat_packing",
        "packing padded",
        _packing,
        lambda _: {"args.packing": False},
        says="rows of a batch are padded to its longest, unless they are packed",
    ),
    same("args.cutoff_len", "max_length"),
    same("args.lora_rank", "lora_r"),
    row(
        "args.lora_alpha",
        "lora_alpha",
        _alpha,
        "args.lora_alpha",
        says="twice the rank",
        source=f"{VERSION}, llamafactory/hparams/finetuning_args.py:568",
    ),
    same("args.lora_dropout"),
    targets_from(
        *("args.lora_target", "all"),
        instead=all_linear,
        write=_write_targets,
        says="all linear layers get an adapter",
    ),
    modules_to_save_from("args.additional_target"),
    same("args.use_dora"),
    row(
        "args.quantization_type args.double_quantization",
        "bnb_4bit_quant_type bnb_4bit_use_double_quant bnb_4bit_quant_storage",
        _packed,
        "args.quantization_type args.double_quantization",
        says="it packs with double quantisation",
    ),
    images.frozen(
        "args.freeze_vision_tower",
        "args.freeze_multi_modal_projector",
        "args.freeze_language_model",
    ),
    row(
        "",
        "vision_gradient_checkpointing",
        _tower_checkpoints,
        says="layers that are not trained, as those of a frozen tower, are not checkpointed",
        source=f"{VERSION}, llamafactory/model/model_utils/checkpointing.py:100",
    ),
    images.setting("max_pixels", "args.image_max_pixels"),
    images.setting("min_pixels", "args.image_min_pixels"),
    images.area_of_frames("args.video_max_pixels", "args.video_min_pixels", FRAMES, floor=56 * 56),
    images.most_frames("args.video_maxlen"),
    images.setting("crop_to_patches", "args.crop_to_patches"),
    images.setting("do_pan_and_scan", "args.image_do_pan_and_scan"),
    row("args.pref_beta", "beta", _beta, "args.pref_beta"),
    *transformers.RUN,
)


LATER = (
    *(key for key in transformers.LATER if not key.theirs.startswith(("model.", "peft.", "bnb."))),
    *not_modelled(
        "args",
        ("upcast_layernorm", "Norms are float32", MORE),
        ("upcast_lmhead_output", "The logits are float32", MORE),
        ("shift_attn", "Attention in shifted groups (LongLoRA)", LESS),
        ("mixture_of_depths", "Tokens skip layers", EITHER),
        ("use_unsloth", "Unsloth's kernels train the model", LESS),
        (
            "quantization_method",
            "Another quantiser than bitsandbytes",
            EITHER,
            "bnb",
            "bitsandbytes",
        ),
        ("resize_vocab", "The embedding grows with the tokenizer", MORE),
        ("train_from_scratch", "Weights begin at random", EITHER),
        ("pissa_init", "The adapters begin from a decomposition of the weights", MORE),
        ("create_new_adapter", "Old adapters are merged first", EITHER),
        ("adapter_name_or_path", "Training goes on from these adapters", EITHER),
        ("freeze_trainable_layers", "Only these layers are trained", LESS),
        ("freeze_trainable_modules", "Only these modules are trained", LESS),
        ("freeze_extra_modules", "Some modules more are trained", MORE),
        ("use_llama_pro", "Only the new blocks are trained", LESS),
        ("use_mca", "Megatron-Core trains the model", LESS),
        ("use_kt kt_cpu_activation kt_config", "KTransformers trains experts on the CPU", LESS),
        ("use_hyper_parallel", "HyperParallel trains the model", LESS),
        ("use_dft_loss", "Dynamic fine-tuning keeps the probabilities", MORE),
        ("use_asft_loss", "A reference is kept for the loss", MORE),
        ("use_eaft_loss", "The loss is weighed by entropy", MORE),
        ("pref_ftx", "A supervised loss is added", EITHER, 0, 0.0),
        ("ref_model", "The reference is a model of its own", MORE),
        ("ref_model_quantization_bit", "The reference is packed", LESS),
        ("reward_model", "A reward model is kept", MORE),
        ("reward_model_quantization_bit", "The reward model is packed", LESS),
        ("reward_model_type", "How the reward model is kept", EITHER),
        ("compute_accuracy", "Evaluation keeps predictions", MORE),
        ("predict_with_generate", "Evaluation generates", MORE),
        ("video_fps", "Videos are sampled so often", EITHER),
        ("use_audio_in_video", "Videos have their sound", MORE),
        ("galore_rank", "GaLore projects to this rank", EITHER),
        ("apollo_rank", "APOLLO projects to this rank", EITHER),
        ("fp8", "Matrix products are computed in 8 bits", EITHER),
        ("fp8_enable_fsdp_float8_all_gather", "FSDP gathers in 8 bits", LESS),
        ("train_on_prompt", "Prompts are scored, too; as all tokens are here", EITHER),
        ("mask_history", "Only the last turn is scored", LESS),
        ("tokenized_path", "Rows are as long as they were made", EITHER),
        ("oft_rank oft_block_size oft_target", "Orthogonal adapters", EITHER),
        ("moe_aux_loss_coef", "The routers' scores are kept for a second loss", MORE),
        ("tensor_model_parallel_size", "Layers' matrices are divided (Megatron)", LESS, 1),
        ("pipeline_model_parallel_size", "Layers are divided (Megatron)", LESS, 1),
        ("expert_model_parallel_size", "Experts are divided (Megatron)", LESS, 1),
        ("sequence_parallel", "Rows are divided between norms (Megatron)", LESS),
        ("use_distributed_optimizer", "Optimizer states are divided (Megatron)", LESS),
        ("rope_scaling", "Positions are scaled", EITHER),
    ),
)

NO_EFFECT = (
    parallel.NO_EFFECT
    | allocator.NO_EFFECT
    | transformers.ARGS_WITHOUT_EFFECT
    | under(
        "args",
        """adapter_folder cache_dir use_fast_tokenizer split_special_tokens add_tokens add_special_tokens
        new_special_tokens_config init_special_tokens model_revision low_cpu_mem_usage infer_backend
        offload_folder use_kv_cache use_v1_kernels infer_dtype hf_hub_token ms_hub_token om_hub_token
        print_param_status trust_remote_code quantization_device_map template dataset eval_dataset dataset_dir
        media_dir streaming buffer_size mix_strategy interleave_probs overwrite_cache preprocessing_batch_size
        preprocessing_num_workers max_samples eval_num_beams ignore_pad_token_for_loss val_size
        eval_on_each_dataset tool_format default_system enable_thinking preserve_thinking
        data_shared_file_system loraplus_lr_ratio loraplus_lr_embedding use_rslora pissa_iter pissa_convert
        pref_bco_weight dpo_label_smoothing kto_chosen_weight kto_rejected_weight simpo_gamma ppo_buffer_size
        ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards ref_model_adapters reward_model_adapters
        ld_alpha galore_target galore_update_interval galore_scale galore_proj_type apollo_target
        apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type apollo_scale_front
        badam_mode badam_start_block badam_switch_mode badam_switch_interval badam_update_ratio badam_mask_mode
        badam_verbose use_swanlab swanlab_project swanlab_workspace swanlab_run_name swanlab_mode
        swanlab_api_key swanlab_logdir swanlab_lark_webhook_url swanlab_lark_secret hyper_parallel_args
        asft_alpha eaft_alpha disable_shuffling early_stopping_steps plot_loss
        include_effective_tokens_per_second ray_num_workers ray_init_kwargs.* master_addr master_port
        ray_run_name placement_strategy resources_per_worker.* enable_torch_profiler do_sample temperature top_p
        top_k num_beams max_new_tokens repetition_penalty length_penalty skip_special_tokens vllm_maxlen
        vllm_gpu_util vllm_enforce_eager audio_sampling_rate kt_weight_path kt_expert_checkpoint_path
        kt_use_lora_experts export_dir export_size export_device export_legacy_format export_hub_model_id
        fp8_backend extra_special_tokens version reserved_label_len ray_storage_path ray_storage_filesystem
        fsdp_plugin.* chunk_size cpu_infer kt_optimize_rule kt_mode""",
    )
)

TOOL = Tool(
    name="llamafactory",
    label="LLaMA-Factory",
    distribution="llamafactory",
    place=4,
    chains={
        **transformers.CHAINS,
        "args": (
            *(
                ("llamafactory", name)
                for name in listed("""BaseModelArguments QuantizationArguments ProcessorArguments DataArguments
                LoraArguments FinetuningArguments RLHFArguments""")
            ),
            ("transformers", "TrainingArguments"),
        ),
    },
    rules=RULES,
    later=LATER,
    no_effect=NO_EFFECT,
    marks=listed("finetuning_type cutoff_len stage lora_target dataset_dir template"),
    launches_itself=True,
    programs=frozenset(["llamafactory-cli", "lmf"]),
    trains=frozenset(["train"]),
    modules=("llamafactory.cli", "llamafactory.launcher"),
    scripts=((r"(?:^|/)src/train(?:_bash)?\.py$|llamafactory/launcher\.py$", "train"),),
)
