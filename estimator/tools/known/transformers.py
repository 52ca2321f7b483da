"""transformers' ``TrainingArguments`` and ``from_pretrained``, as ``Trainer`` runs them.

Source: transformers 5.23.0; the lines of its defaults stand in data/tool_defaults.csv.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator.tools.known import allocator, images, parallel, peft
from estimator.tools.known.parallel import fsdp_checkpoints, is_on, whole
from estimator.tools.known.peft import dtype_word
from estimator.tools.later import EITHER, LESS, MORE, not_modelled
from estimator.tools.lists import listed, under
from estimator.tools.rules import Rule, SoFar, Theirs, Tool, Value, Values, alike, row, same
from estimator.values.keys import LARGEST, default_of

OBJECTIVE_KEY = "trainer.objective"
"""What a script's trainer or a command's word says of the objective."""
OPTIMIZERS = {
    "adamw_hf": "adamw_torch",
    "adamw": "adamw_torch",
    "adamw_apex_fused": "adamw_apex_fused",
}
CLASSES = "sequence_classification"
ATTENTION = {
    "flash_attention": "flash_attention_2",
    "kernels-community/flash-attn2": "flash_attention_2",
    "kernels-community/flash-attn": "flash_attention_2",
    "flash_attention_3": "flash_attention_3",
    "kernels-community/flash-attn3": "flash_attention_3",
    "kernels-community/vllm-flash-attn3": "flash_attention_3",
}


# --- what is trained ----------------------------------------------------------------------------


def objective_named(theirs: Theirs, so_far: SoFar) -> Values:
    """The objective that a script's trainer or a command's word says."""
    word = theirs["trainer.objective"]
    return {"objective": word} if isinstance(word, str) else {}


def _write_objective(values: Values) -> Values:
    word = values["objective"]
    return {"trainer.objective": word} if word in ("sft", CLASSES) else {}


def _model(theirs: Theirs, so_far: SoFar) -> Values:
    name = theirs["model.pretrained_model_name_or_path"]
    return {"model": name} if isinstance(name, str) and name.strip() else {}


def is_4bit(theirs: Theirs) -> bool:
    """Whether bitsandbytes packs the weights into 4 bits."""
    return is_on(theirs["bnb.load_in_4bit"]) or is_on(theirs["model.load_in_4bit"])


def is_8bit(theirs: Theirs) -> bool:
    """Whether bitsandbytes packs the weights into 8 bits."""
    return is_on(theirs["bnb.load_in_8bit"]) or is_on(theirs["model.load_in_8bit"])


def _method(theirs: Theirs, so_far: SoFar) -> Values:
    adapters = theirs.has_part("peft")
    if is_4bit(theirs):
        return {"method": "qlora"}
    found: dict[str, Value] = {"method": "lora" if adapters else "full"}
    return found | ({"load_in_8bit": True} if adapters and is_8bit(theirs) else {})


def checkpoint_dtype(so_far: SoFar) -> str:
    """What the checkpoint's files hold: float32 where they are known to be 4 bytes wide, else bfloat16."""
    return "float32" if so_far.model is not None and so_far.model.stored_width == 4 else "bfloat16"


def _dtype(theirs: Theirs, so_far: SoFar) -> Values:
    said = dtype_word(theirs.first("model.dtype", "model.torch_dtype"))
    cast = dtype_word(theirs["call.to"])
    return {"dtype": cast or said or checkpoint_dtype(so_far)}


def autocast_of(theirs: Theirs) -> str:
    """``TrainingArguments``' bf16 and fp16; else what accelerate's file says.

    Source: transformers 5.23, training_args.py:1614.
    """
    if is_on(theirs["args.fp16"]):
        return "fp16"
    if is_on(theirs["args.bf16"]):
        return "bf16"
    word = theirs["accelerate.mixed_precision"]
    if is_on(theirs["deepspeed.bf16.enabled"]) and theirs["deepspeed.bf16.enabled"] != "auto":
        return "bf16"
    return word if word in ("bf16", "fp16", "fp8") else "no"


def _autocast(theirs: Theirs, so_far: SoFar) -> Values:
    return {"mixed_precision": autocast_of(theirs)}


def write_autocast(values: Values) -> Values:
    """Autocast by the two switches of Trainer's arguments."""
    return {
        "args.bf16": values["mixed_precision"] == "bf16",
        "args.fp16": values["mixed_precision"] == "fp16",
    }


# --- what is kept -------------------------------------------------------------------------------


def checkpointing_options(theirs: Theirs) -> Values:
    """``gradient_checkpointing_kwargs``, by either of its names."""
    return {
        **theirs.below("args.activation_checkpointing_kwargs"),
        **theirs.below("args.gradient_checkpointing_kwargs"),
        **theirs.below("call.gradient_checkpointing_kwargs"),
    }


def _checkpointing(theirs: Theirs, so_far: SoFar) -> Values:
    options = checkpointing_options(theirs)
    on = (
        is_on(theirs.first("args.gradient_checkpointing", "args.activation_checkpointing"))
        or is_on(theirs["call.gradient_checkpointing_enable"])
        or fsdp_checkpoints(theirs)
    )
    if not on:
        return {"gradient_checkpointing": False}
    every = whole(options.get("every_n_layers")) or 1
    return {
        "gradient_checkpointing": True,
        "use_reentrant": is_on(options.get("use_reentrant", False)),
        **({"checkpoint_every_n_layers": every} if every > 1 else {}),
        **{OPTIONS[key]: True for key in ("offload", "selective") if is_on(options.get(key))},
    }


OPTIONS = {
    "use_reentrant": "use_reentrant",
    "every_n_layers": "checkpoint_every_n_layers",
    "offload": "offload_checkpoints",
    "selective": "selective_checkpointing",
}
"""Of ``gradient_checkpointing_kwargs``: transformers 5.23, modeling_utils.py, ``activation_checkpointing_enable``."""


def _write_checkpointing(values: Values) -> Values:
    options = {
        theirs: values[ours]
        for theirs, ours in OPTIONS.items()
        if values.get(ours) not in (None, default_of(ours))
    }
    written: dict[str, Value] = {"args.gradient_checkpointing": values["gradient_checkpointing"]}
    return written | ({"args.gradient_checkpointing_kwargs": options} if options else {})


def attention_from(*keys: str, words: Mapping[str, str] = ATTENTION) -> Rule:
    """The attention kernel by ``attn_implementation``, in a tool's words; without it the model's own, which is sdpa."""

    def read(theirs: Theirs, so_far: SoFar) -> Values:
        word = theirs.first(*keys)
        if is_on(theirs["model.use_flash_attention_2"]):
            word = "flash_attention_2"
        return {"attn_implementation": words.get(word, word) if isinstance(word, str) else "sdpa"}

    return row(
        " ".join([*keys, "model.use_flash_attention_2"]),
        "attn_implementation",
        read,
        keys[0],
        says="transformers takes the model's own kernel, sdpa",
    )


def _optimizer(theirs: Theirs, so_far: SoFar) -> Values:
    name = theirs["args.optim"]
    if not isinstance(name, str):
        return {}
    name = name.removeprefix("OptimizerNames.").lower()
    found: dict[str, Value] = {"optim": OPTIMIZERS.get(name, name)}
    if name == "sgd" and isinstance(extra := theirs["args.optim_args"], str):
        found["optim_args"] = extra
    return found


def _padded(theirs: Theirs, so_far: SoFar) -> Values:
    if so_far["packing"] or so_far["padding_free"]:
        return {"padded": False}
    return {"padded": so_far["per_device_train_batch_size"] > 1}


def epochs_from(epochs: str, steps: str = "args.max_steps") -> Rule:
    """How long a run is: by a number of steps, else by epochs."""

    def read(theirs: Theirs, so_far: SoFar) -> Values:
        number = whole(theirs[steps])
        if number is not None and number > 0:
            each = so_far["per_device_train_batch_size"] * so_far["gradient_accumulation_steps"]
            examples = min(number * each * so_far["num_gpus"], LARGEST["num_train_examples"])
            return {"num_train_examples": examples, "num_train_epochs": 1.0}
        times = theirs[epochs]
        is_number = isinstance(times, int | float) and not isinstance(times, bool)
        return {"num_train_epochs": float(times)} if is_number else {}

    ours = "num_train_epochs num_train_examples"
    return row(f"{steps} {epochs}", ours, read, epochs)


BATCH = (
    same("args.per_device_train_batch_size", as_=whole),
    same("args.gradient_accumulation_steps", as_=whole),
)
PADDED = row(
    "",
    "padded",
    _padded,
    says="rows of a batch are padded to its longest",
    source="transformers 5.23.0, data/data_collator.py",
)
CHECKPOINTING = row(
    """args.gradient_checkpointing args.activation_checkpointing
    args.gradient_checkpointing_kwargs.* args.activation_checkpointing_kwargs.*
    call.gradient_checkpointing_enable call.gradient_checkpointing_kwargs.*""",
    """gradient_checkpointing use_reentrant checkpoint_every_n_layers offload_checkpoints
    selective_checkpointing""",
    _checkpointing,
    _write_checkpointing,
)
RUN = (
    epochs_from("args.num_train_epochs"),
    same("args.eval_strategy", "eval_strategy", "args.evaluation_strategy"),
    same("args.per_device_eval_batch_size", as_=whole),
    same("args.save_strategy"),
    same("args.save_total_limit", as_=whole),
    same("args.save_only_model"),
)
OPTIMISER = (
    row("args.optim args.optim_args", "optim optim_args", _optimizer, "args.optim args.optim_args"),
    *alike("args", "max_grad_norm label_smoothing_factor"),
    same("args.torch_empty_cache_steps", as_=whole),
)
PRECISION = row(
    "args.bf16 args.fp16 accelerate.mixed_precision", "mixed_precision", _autocast, write_autocast
)
OBJECTIVE = row("trainer.objective", "objective", objective_named, _write_objective)
DTYPE = row(
    "model.dtype model.torch_dtype call.to",
    "dtype",
    _dtype,
    "model.dtype",
    says="transformers 5 loads the weights in the checkpoint's own dtype",
    source="transformers 5.23.0, modeling_utils.py",
)
METHOD = row(
    "bnb.load_in_4bit bnb.load_in_8bit model.load_in_4bit model.load_in_8bit peft.r",
    "method load_in_8bit",
    _method,
)
MODEL = row(
    "model.pretrained_model_name_or_path", "model", _model, "model.pretrained_model_name_or_path"
)
PREPARED = row(
    "call.prepare_model_for_kbit_training",
    "prepare_model_for_kbit_training",
    lambda theirs, so_far: {
        "prepare_model_for_kbit_training": is_on(theirs["call.prepare_model_for_kbit_training"])
    },
)
PREPARED_CHECKPOINTS = row(
    "call.use_gradient_checkpointing",
    "gradient_checkpointing use_reentrant",
    lambda theirs, so_far: (
        {"gradient_checkpointing": True}
        if so_far["prepare_model_for_kbit_training"]
        and theirs["call.use_gradient_checkpointing"] is not False
        else {}
    ),
    says="prepare_model_for_kbit_training turns checkpointing on",
    source="peft 0.21.2, utils/other.py",
)


def _compiled(theirs: Theirs, so_far: SoFar) -> Values:
    mode, backend = theirs["args.torch_compile_mode"], theirs["args.torch_compile_backend"]
    if is_on(theirs["args.torch_compile"]) or mode or backend:
        return inductor(mode, backend)
    backend = theirs.first("accelerate.dynamo_config.dynamo_backend", "accelerate.dynamo_backend")
    if backend is None or str(backend).lower() == "no":
        return {}
    return inductor(
        theirs.first("accelerate.dynamo_config.dynamo_mode", "accelerate.dynamo_mode"),
        str(backend).lower(),
    )


def inductor(mode: Value, backend: Value) -> Values:
    """The keys of a compiled model, without what is the default."""
    named = {"torch_compile_mode": mode, "torch_compile_backend": backend}
    usual = {"torch_compile_mode": "default", "torch_compile_backend": "inductor"}
    return {"torch_compile": True} | {
        key: value for key, value in named.items() if value not in (None, usual[key])
    }


def write_compiled(values: Values) -> Values:
    """Trainer's arguments of a compiled model."""
    mode = values["torch_compile_mode"]
    named = {"args.torch_compile_mode": mode} if mode not in (None, "default") else {}
    return {"args.torch_compile": values["torch_compile"], **named}


COMPILED = row(
    # without its own arguments Trainer takes accelerate's: transformers 5.23, trainer.py, TorchDynamoPlugin; accelerate
    # 1.15, utils/dataclasses.py, TorchDynamoPlugin.__post_init__
    """args.torch_compile args.torch_compile_mode args.torch_compile_backend
    accelerate.dynamo_config.dynamo_backend accelerate.dynamo_config.dynamo_mode
    accelerate.dynamo_backend accelerate.dynamo_mode""",
    "torch_compile torch_compile_mode torch_compile_backend",
    _compiled,
    write_compiled,
)

RULES = (
    MODEL,
    METHOD,
    *parallel.RULES,
    allocator.RULE,
    DTYPE,
    PRECISION,
    *BATCH,
    *OPTIMISER,
    PREPARED,
    CHECKPOINTING,
    PREPARED_CHECKPOINTS,
    attention_from("model.attn_implementation"),
    same("args.use_liger_kernel"),
    COMPILED,
    PADDED,
    *peft.LORA,
    *peft.BNB,
    *RUN,
    same("data.max_length", "max_length"),
    same("model.num_labels", "num_labels"),
    *images.from_processor("processor"),
)

LATER = (
    *parallel.LATER,
    *allocator.LATER,
    *peft.LATER,
    *peft.BNB_LATER,
    *not_modelled(
        "args",
        ("neftune_noise_alpha", "Noise is added to the embedded tokens", MORE, 0),
        ("auto_find_batch_size", "The batch is halved until it fits", LESS),
        ("bf16_full_eval", "Evaluation is in bfloat16", LESS),
        ("fp16_full_eval", "Evaluation is in float16", LESS),
        (
            "eval_accumulation_steps",
            "Evaluation moves its predictions to the host now and then",
            LESS,
        ),
        ("group_by_length", "Rows of like length share a batch: less padding", LESS),
        (
            "train_sampling_strategy",
            "Rows of like length share a batch: less padding",
            LESS,
            "random",
            "sequential",
        ),
        ("optim_target_modules", "Only these modules are projected", EITHER),
        ("parallelism_config", "More than one way to divide the work", LESS),
        ("liger_kernel_config", "Liger's kernels are chosen one by one", EITHER),
        ("use_cpu", "Training is on the CPU", LESS),
        ("ddp_bucket_cap_mb", "DDP's buckets have another size", EITHER, 25),
        ("ddp_find_unused_parameters", "DDP looks for unused parameters", MORE),
        ("ddp_static_graph", "DDP takes the graph for fixed", EITHER),
        ("use_cache", "Keys and values are kept during training", MORE),
    ),
    *not_modelled(
        "model",
        ("use_kernels", "The Hub's kernels replace layers", LESS),
        ("tp_plan", "Layers' matrices are divided (tensor parallelism)", LESS),
        ("device_mesh", "The model is divided as it is loaded", LESS),
        ("max_memory", "Each device takes no more than this", EITHER),
        ("device_map", "Layers lie on different devices", LESS, "auto", "cuda", "cuda:0", "", 0),
        ("experts_implementation", "Experts are computed another way", EITHER),
    ),
)

ARGS_WITHOUT_EFFECT = under(
    "args",
    """output_dir overwrite_output_dir learning_rate lr_scheduler_type warmup_steps warmup_ratio weight_decay
    adam_beta1 adam_beta2 adam_epsilon average_tokens_across_devices tf32 logging_strategy logging_dir
    logging_steps logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen
    log_level log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id
    trackio_static_space_id eval_steps eval_delay prediction_loss_only eval_on_start eval_do_concat_batches
    eval_use_gather_object include_for_metrics batch_eval_metrics save_steps save_on_each_node save_safetensors
    enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push
    hub_revision push_to_hub_model_id push_to_hub_organization push_to_hub_token load_best_model_at_end
    metric_for_best_model greater_is_better ignore_data_skip restore_callback_states_from_checkpoint
    full_determinism seed data_seed accelerator_config.* dataloader_drop_last dataloader_num_workers
    dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names length_column_name
    ddp_broadcast_buffers ddp_backend ddp_timeout debug skip_memory_metrics do_train do_eval do_predict
    resume_from_checkpoint local_rank half_precision_backend fp16_opt_level fp16_backend no_cuda
    use_legacy_prediction_loop mp_parameters past_index include_tokens_per_second include_inputs_for_metrics
    split_batches jit_mode_eval ray_scope torchdynamo use_ipex use_mps_device bf16_backend lr_scheduler_kwargs.*""",
)
NO_EFFECT = (
    ARGS_WITHOUT_EFFECT
    | under(
        "processor",
        """pretrained_model_name_or_path token trust_remote_code revision cache_dir use_fast padding_side
        local_files_only chat_template subfolder backend""",
    )
    | under(
        "model",
        """token trust_remote_code revision model_revision cache_dir low_cpu_mem_usage use_safetensors
        local_files_only use_auth_token _attn_implementation loaded use_cache quantization_config padding_side
        distributed_config use_fast add_eos_token subfolder ignore_mismatched_sizes pretraining_tp""",
    )
    | peft.NO_EFFECT
    | peft.BNB_NO_EFFECT
    | parallel.NO_EFFECT
    | allocator.NO_EFFECT
)

CHAINS = {
    **peft.CHAINS,
    **parallel.CHAINS,
    "args": (("transformers", "TrainingArguments"),),
}

TOOL = Tool(
    name="trainer",
    label="Trainer",
    distribution="transformers",
    place=2,
    chains=CHAINS,
    rules=(OBJECTIVE, *RULES),
    later=LATER,
    no_effect=NO_EFFECT,
    is_called=True,
    marks=listed(
        "per_device_train_batch_size gradient_accumulation_steps num_train_epochs output_dir"
    ),
)
