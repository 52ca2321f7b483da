"""axolotl's YAML.

Its SFT runs in a subclass of transformers' ``Trainer`` (axolotl 0.19.0, core/trainers/base.py:73), with defaults of its
own, which stand in data/tool_defaults.csv, and rules of its own, each of which names its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter

from estimator.tools.known import allocator, images, parallel, transformers
from estimator.tools.known.parallel import is_on, whole
from estimator.tools.known.peft import dtype_word, modules_to_save_from, names
from estimator.tools.known.trl import whole_logits
from estimator.tools.later import EITHER, LESS, MORE, Later, not_modelled
from estimator.tools.lists import listed, under
from estimator.tools.rules import (
    Entry,
    SoFar,
    Theirs,
    Tool,
    Value,
    Values,
    alike,
    always,
    row,
    same,
)
from estimator.values.arithmetic import ceil_div
from estimator.values.facets.allocator import Allocator
from estimator.values.keys import DEFAULT
from estimator.values.specs import ALL_LINEAR

VERSION = "axolotl 0.19.0"
OBJECTIVES = {
    "dpo": "dpo",
    "ipo": "dpo",
    "kto": "kto",
    "orpo": "orpo",
    "grpo": "grpo",
    "simpo": "simpo",
    "gdpo": "gdpo",
}


def _method(theirs: Theirs, so_far: SoFar) -> Values:
    """The adapter decides: ``load_in_4bit`` packs the base of ``qlora`` alone.

    Source: axolotl 0.19.0, axolotl/loaders/model.py:801.
    """
    adapter = theirs["args.adapter"]
    if adapter == "qlora":
        return {"method": "qlora"}
    if adapter == "lora":
        return {"method": "lora", "load_in_8bit": is_on(theirs["args.load_in_8bit"])}
    return {"method": "full"}


def _write_method(values: Values) -> Values:
    adapter = None if values["method"] == "full" else values["method"]
    return {
        "args.adapter": adapter,
        "args.load_in_4bit": values["method"] == "qlora",
        "args.load_in_8bit": adapter == "lora" and bool(values.get("load_in_8bit")),
    }


def _objective(theirs: Theirs, so_far: SoFar) -> Values:
    if is_on(theirs["args.reward_model"]):
        return {"objective": "reward"}
    word = theirs["args.rl"]
    if not isinstance(word, str):
        return {}
    found = {"objective": OBJECTIVES.get(word, word)}
    kinds = theirs["args.dpo_loss_type"]
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if word == "ipo":
        found["loss_type"] = "ipo"
    elif word == "dpo" and isinstance(kinds, list) and len(kinds) == 1:
        found["loss_type"] = str(kinds[0])
    return found


def _write_objective(values: Values) -> Values:
    word = values["objective"]
    if word == "reward":
        return {"args.reward_model": True, "args.num_labels": 1}
    if word not in ("dpo", "kto", "orpo"):
        return {}
    loss = values.get("loss_type")
    own = {"args.dpo_loss_type": [loss]} if word == "dpo" and loss not in (None, "sigmoid") else {}
    return {"args.rl": word, **own}


PARTS = "args.tensor_parallel_size"
SHARDS = frozenset(["args.fsdp_config", "args.fsdp", "args.deepspeed"])


def _divided(theirs: Theirs, so_far: SoFar) -> Values:
    """Layers divided over all GPUs, as transformers' ``DistributedConfig`` does it: the same ``from_pretrained``.

    Source: axolotl 0.19.0, loaders/model.py, ``_build_model``; transformers 5.23, modeling_utils.py:4234.
    """
    parts = whole(theirs[PARTS]) or 1
    if parts == 1 or any(theirs.is_given(key) or theirs.has_part(key) for key in SHARDS):
        return {}
    number = so_far.values.get("num_gpus", parts)
    return {"tp_size": parts, "num_gpus": number, "strategy": "none"}


def _is_bf16(theirs: Theirs) -> bool:
    word = theirs["args.bf16"]
    if word in ("auto", "full"):
        return not is_on(theirs["args.fp16"])  # as on every card since 2020
    return is_on(word)


def _precision(theirs: Theirs, so_far: SoFar) -> Values:
    """The dtype of the weights, and autocast; fp8 keeps the dtype.

    Source: axolotl 0.19.0, core/trainers/base.py, ``additional_accelerator_args`` (torchao's ``Float8LinearConfig``).
    """
    found = _in_16_bits(theirs)
    if _is_upcast(theirs, so_far):
        found["dtype"] = "float32"
    if not is_on(theirs["args.fp8"]):
        return found
    return found | {"mixed_precision": "fp8", "fp8_pad_inner_dim": False}


def _is_upcast(theirs: Theirs, so_far: SoFar) -> bool:
    """Whether a base that ``load_in_4bit`` did not pack is cast to float32, as if it were prepared for 4 bits.

    Leaves out: norms, embeddings and head, which are cast back.
    Source: axolotl 0.19.0, axolotl/loaders/model.py:1122-1152; peft 0.21, utils/other.py,
    ``prepare_model_for_kbit_training``.
    """
    if theirs["args.adapter"] != "lora" or not is_on(theirs["args.load_in_4bit"]):
        return False
    skips = (
        so_far["strategy"] == "zero3"
        or any(
            is_on(theirs[f"args.fsdp_config.{prefix}cpu_ram_efficient_loading"])
            for prefix in ("", "fsdp_")
        )
        or bool(theirs["args.peft.loftq_config.loftq_bits"])
    )
    return not skips


def _in_16_bits(theirs: Theirs) -> dict[str, Value]:
    if _is_bf16(theirs):
        return {"dtype": "bfloat16", "mixed_precision": "bf16"}
    if is_on(theirs["args.bfloat16"]):
        return {"dtype": "bfloat16", "mixed_precision": "bf16"}
    if is_on(theirs["args.fp16"]):
        return {"dtype": "float16", "mixed_precision": "fp16"}
    if is_on(theirs["args.float16"]) or is_on(theirs["args.load_in_8bit"]):
        return {"dtype": "float16", "mixed_precision": "no"}
    return {"dtype": "float32", "mixed_precision": "no"}


def _rows(theirs: Theirs, so_far: SoFar) -> Values:
    batch, length = whole(theirs["args.micro_batch_size"]), whole(theirs["args.sequence_len"])
    packing = is_on(theirs["args.sample_packing"])
    if batch is None and (total := whole(theirs["args.batch_size"])):
        batch = max(1, total // (whole(theirs["args.gradient_accumulation_steps"]) or 1))
    found: dict[str, Value] = {"packing": packing}
    if packing and not is_on(theirs["args.multipack_real_batches"]):
        found["padding_free"] = True
    return found | {"per_device_train_batch_size": batch or 1, "max_length": length or 512}


def _write_rows(values: Values) -> Values:
    return {
        "args.micro_batch_size": values["per_device_train_batch_size"],
        "args.sequence_len": values["max_length"],
        "args.sample_packing": bool(values.get("packing")),
    }


def _padded(theirs: Theirs, so_far: SoFar) -> Values:
    asked = theirs["args.pad_to_sequence_len"]
    scored = asked is None and so_far["objective"] == "reward"  # utils/schemas/validation.py:246
    whole_rows = so_far["packing"] or is_on(asked) or scored
    return {"padded": so_far["per_device_train_batch_size"] > 1 and not whole_rows}


def _checkpointing(theirs: Theirs, so_far: SoFar) -> Values:
    asked = theirs["args.gradient_checkpointing"]
    offloads = asked in ("offload", "offload_disk", "unsloth")
    on = is_on(asked) or offloads or parallel.fsdp_checkpoints(theirs)
    found: dict[str, Value] = {"gradient_checkpointing": on}
    if on:
        options = theirs.below("args.gradient_checkpointing_kwargs")
        again = options.get("use_reentrant", theirs["args.rl"] is None)
        found["use_reentrant"] = is_on(again)
    if offloads or is_on(theirs["args.activation_offloading"]):
        found["activation_offloading"] = True
    return found


def _write_checkpointing(values: Values) -> Values:
    written: dict[str, Value] = {"args.gradient_checkpointing": values["gradient_checkpointing"]}
    if values["gradient_checkpointing"]:
        written["args.gradient_checkpointing_kwargs"] = {
            "use_reentrant": bool(values.get("use_reentrant"))
        }
    return written


def _targets(theirs: Theirs, so_far: SoFar) -> Values:
    given = names(theirs["args.lora_target_modules"])
    if is_on(theirs["args.lora_target_linear"]):
        return {"lora_target_modules": ALL_LINEAR}
    return {"lora_target_modules": given} if given else {}


def _write_targets(values: Values) -> Values:
    if values["lora_target_modules"] == ALL_LINEAR:
        return {"args.lora_target_linear": True}
    return {"args.lora_target_modules": values["lora_target_modules"]}


def _attention(theirs: Theirs, so_far: SoFar) -> Values:
    word = theirs["args.attn_implementation"]
    if isinstance(word, str):
        return {"attn_implementation": transformers.ATTENTION.get(word, word)}
    for key, kernel in (
        ("flash_attention", "flash_attention_2"),
        ("flex_attention", "flex_attention"),
        ("eager_attention", "eager"),
        ("sdp_attention", "sdpa"),
        ("xformers_attention", "sdpa"),
    ):
        if is_on(theirs[f"args.{key}"]):
            return {"attn_implementation": kernel}
    return {"attn_implementation": "sdpa"}


def _loss(theirs: Theirs, so_far: SoFar) -> Values:
    """Liger's keys are its plugin's: without it the schema drops them. Its rotation comes with its layers.

    Source: axolotl, utils/config/__init__.py, ``prepare_plugins``; integrations/liger/args.py.
    """
    plugins = theirs["args.plugins"]
    if not isinstance(plugins, list | tuple) or LIGER not in plugins:
        return {}
    if is_on(theirs["args.liger_fused_linear_cross_entropy"]):
        return {"loss": "liger", "use_liger_kernel": _liger_layers(theirs)}
    return {"loss": "standard", "use_liger_kernel": True} if _liger_layers(theirs) else {}


LIGER = "axolotl.integrations.liger.LigerPlugin"


def _write_loss(values: Values) -> Values:
    layers, fuses = bool(values["use_liger_kernel"]), values["loss"] == "liger"
    if not (layers or fuses):
        return {}
    return {
        "args.plugins": [LIGER],
        "args.liger_rms_norm": layers,
        "args.liger_glu_activation": layers,
        "args.liger_rope": layers,
        "args.liger_fused_linear_cross_entropy": fuses,
    }


def _compiled(theirs: Theirs, so_far: SoFar) -> Values:
    """``auto`` turns it on from torch 2.5.1; without it the mode and the backend go nowhere.

    Source: axolotl, utils/schemas/config.py, ``check_torch_compile_auto``; core/builders/base.py,
    ``_configure_torch_compile``.
    """
    word = theirs["args.torch_compile"]
    if not (is_on(word) or word == "auto"):
        return {}
    return transformers.inductor(
        theirs["args.torch_compile_mode"], theirs["args.torch_compile_backend"]
    )


def _liger_layers(theirs: Theirs) -> bool:
    return is_on(theirs["args.liger_rms_norm"]) and (
        is_on(theirs["args.liger_glu_activation"]) or is_on(theirs["args.liger_swiglu"])
    )


def _packed(theirs: Theirs, so_far: SoFar) -> Values:
    own = theirs.below("args.bnb_config_kwargs")
    storage = dtype_word(own.get("bnb_4bit_quant_storage"))
    return {
        "bnb_4bit_quant_type": own.get("bnb_4bit_quant_type", "nf4"),
        "bnb_4bit_use_double_quant": own.get("bnb_4bit_use_double_quant", True),
        "bnb_4bit_quant_storage": storage or "bfloat16",
    }


def _image_size(theirs: Theirs, so_far: SoFar) -> Values:
    if so_far.model is not None and so_far.model.vision is None:
        return {}
    size = theirs["args.image_size"]
    wide, high = size if isinstance(size, list) and len(size) == 2 else (size, size)
    return {"image_height": high, "image_width": wide} if wide and high else {}


def _frozen(theirs: Theirs, so_far: SoFar) -> Values:
    if not images.has_towers(so_far.model):
        return {}
    return dict.fromkeys(images.FREEZES[:2], is_on(theirs["args.freeze_mm_modules"]))


def _run(theirs: Theirs, so_far: SoFar) -> Values:
    found: dict[str, Value] = {}
    asked = theirs["args.eval_strategy"]
    some = theirs["args.val_set_size"] not in (None, 0, 0.0) or theirs.has_part(
        "args.test_datasets"
    )
    if isinstance(asked, str):
        found["eval_strategy"] = asked
    elif some:
        steps = theirs["args.eval_steps"] is not None or theirs["args.evals_per_epoch"] is not None
        found["eval_strategy"] = "steps" if steps else "epoch"
    else:
        found["eval_strategy"] = "no"
    # packed, the sampler of evaluation takes the rows of training: core/trainers/base.py:141
    packs = so_far["packing"] and theirs["args.eval_sample_packing"] is not False
    own = None if packs else whole(theirs["args.eval_batch_size"])
    found["per_device_eval_batch_size"] = own or so_far["per_device_train_batch_size"]
    save = theirs["args.save_strategy"]
    by_steps = theirs["args.save_steps"] is not None or theirs["args.saves_per_epoch"] is not None
    found["save_strategy"] = save if isinstance(save, str) else "steps" if by_steps else "epoch"
    return found


def _write_run(values: Values) -> Values:
    rows = values["per_device_eval_batch_size"]
    differs = values["packing"] and rows != values["per_device_train_batch_size"]
    return {
        "args.eval_strategy": values["eval_strategy"],
        "args.eval_batch_size": rows,
        "args.save_strategy": values["save_strategy"],
        **({"args.eval_sample_packing": False} if differs else {}),
    }


def _emptied(theirs: Theirs, so_far: SoFar) -> Values:
    steps, older = whole(theirs["args.torch_empty_cache_steps"]), whole(theirs["args.gc_steps"])
    if steps is None and theirs["args.gc_collect_steps"] is None and (older or 0) > 0:
        steps = older  # axolotl 0.19, utils/schemas/config.py, migrate_gc_steps
    return {} if steps is None else {"torch_empty_cache_steps": steps}


RULES = (
    row(
        "args.rl args.reward_model args.dpo_loss_type",
        "objective loss_type",
        _objective,
        _write_objective,
    ),
    same("args.base_model", "model"),
    row(
        "args.adapter args.load_in_4bit args.load_in_8bit",
        "method load_in_8bit",
        _method,
        _write_method,
    ),
    *parallel.RULES,
    row(PARTS, "tp_size num_gpus strategy", _divided),
    allocator.rule(
        Allocator(expandable_segments=True, roundup_power2_divisions=16),
        "axolotl sets PYTORCH_CUDA_ALLOC_CONF where it is not set",
        f"{VERSION}, axolotl/utils/__init__.py, set_pytorch_cuda_alloc_conf",
    ),
    row(
        "args.bf16 args.fp16 args.fp8 args.bfloat16 args.float16",
        "dtype mixed_precision fp8_pad_inner_dim",
        _precision,
        transformers.write_autocast,
        says="bf16: auto is bfloat16 weights under bfloat16 autocast on a card that has it",
        source=f"{VERSION}, axolotl/utils/config/__init__.py:197",
    ),
    row(
        """args.micro_batch_size args.sequence_len args.sample_packing args.multipack_real_batches
        args.batch_size""",
        "per_device_train_batch_size max_length packing padding_free",
        _rows,
        _write_rows,
        says="the rows of a packed micro-batch are joined into one of micro_batch_size · sequence_len tokens",
    ),
    same("args.gradient_accumulation_steps"),
    row("args.pad_to_sequence_len", "padded", _padded, says="rows are padded to the longest"),
    same("args.optimizer", "optim"),
    same("args.optim_args"),
    row(
        "args.torch_empty_cache_steps args.gc_steps args.gc_collect_steps",
        "torch_empty_cache_steps",
        _emptied,
        "args.torch_empty_cache_steps",
    ),
    same("args.max_grad_norm"),
    row(
        """args.gradient_checkpointing args.gradient_checkpointing_kwargs.use_reentrant
        args.activation_offloading""",
        "gradient_checkpointing use_reentrant activation_offloading",
        _checkpointing,
        _write_checkpointing,
        says="without options axolotl checkpoints the older, reentrant way",
    ),
    row(
        """args.attn_implementation args.flash_attention args.flex_attention args.eager_attention
        args.sdp_attention args.xformers_attention""",
        "attn_implementation",
        _attention,
        "args.attn_implementation",
        says="transformers takes the model's own kernel, sdpa",
    ),
    row(
        """args.liger_fused_linear_cross_entropy args.liger_rms_norm args.liger_glu_activation
        args.liger_swiglu args.liger_rope""",
        "loss use_liger_kernel",
        _loss,
        _write_loss,
    ),
    row(
        "args.torch_compile args.torch_compile_mode args.torch_compile_backend",
        "torch_compile torch_compile_mode torch_compile_backend",
        _compiled,
        transformers.write_compiled,
    ),
    whole_logits(
        "TRL 1.9, which it pins, keeps the logits of preferences whole",
        f"{VERSION}, METADATA",
        "selective_trl",
    ),
    *alike("args", "lora_r lora_alpha lora_dropout"),
    row(
        "args.lora_target_modules args.lora_target_linear",
        "lora_target_modules",
        _targets,
        _write_targets,
    ),
    modules_to_save_from("args.lora_modules_to_save"),
    same("args.peft_use_dora", "use_dora"),
    same("args.peft_layers_to_transform", "layers_to_transform"),
    same("args.lora_rank_pattern", "rank_pattern"),
    same("args.lora_target_parameters", "target_parameters"),
    same("args.peft_autocast_adapter_dtype", "autocast_adapter_dtype"),
    row(
        "args.bnb_config_kwargs.*",
        "bnb_4bit_quant_type bnb_4bit_use_double_quant bnb_4bit_quant_storage",
        _packed,
        """args.bnb_config_kwargs.bnb_4bit_quant_type args.bnb_config_kwargs.bnb_4bit_use_double_quant
        args.bnb_config_kwargs.bnb_4bit_quant_storage""",
        says="axolotl packs into nf4 with double quantisation",
        source=f"{VERSION}, axolotl/loaders/model.py:806",
    ),
    always(
        "prepare_model_for_kbit_training",
        False,
        "PEFT's upcasts of norms and embeddings are undone again",
        f"{VERSION}, axolotl/loaders/model.py:488",
    ),
    row(
        """args.eval_strategy args.val_set_size args.eval_steps args.evals_per_epoch args.eval_batch_size
        args.eval_sample_packing args.save_strategy args.save_steps args.saves_per_epoch""",
        "eval_strategy per_device_eval_batch_size save_strategy packing per_device_train_batch_size",
        _run,
        _write_run,
        says="it evaluates with the micro-batch, and saves every epoch",
        source=f"{VERSION}, axolotl/core/builders/base.py:517",
    ),
    *alike("args", "save_total_limit save_only_model"),
    transformers.epochs_from("args.num_epochs"),
    same("args.precompute_ref_log_probs"),
    same("args.rl_beta", "beta", "args.trl.beta"),
    *(
        same(f"args.trl.{key}", key)
        for key in listed("""num_generations max_completion_length num_iterations use_vllm vllm_mode
        vllm_enable_sleep_mode""")
    ),
    same("args.vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization"),
    same("args.vllm.tensor_parallel_size", "vllm_tensor_parallel_size"),
    same("args.vllm.max_model_len", "vllm_max_model_length"),
    same("args.num_labels"),
    *images.from_processor("args.processor_kwargs"),
    row(
        "args.image_size",
        "image_height image_width",
        _image_size,
        says="an image becomes a square of this size",
        source=f"{VERSION}, axolotl/processing_strategies.py, process_image",
    ),
    row(
        "args.freeze_mm_modules",
        "freeze_vision freeze_projector",
        _frozen,
        lambda values: {
            "args.freeze_mm_modules": values["freeze_vision"] and values["freeze_projector"]
        },
    ),
)


LATER = (
    *parallel.LATER,
    *allocator.LATER,
    *not_modelled(
        "args",
        ("cut_cross_entropy", "The logits are never held whole (Cut Cross Entropy)", LESS),
        ("chunked_cross_entropy", "The loss is computed in chunks", LESS),
        ("chunked_cross_entropy_num_chunks", "The loss is computed in so many chunks", LESS),
        ("liger_cross_entropy", "Liger computes the loss in place of the logits", LESS),
        ("liger_layer_norm", "Liger's layer norm", LESS),
        ("liger_fused_rms_norm_add", "Liger's norm with the residual", LESS),
        ("liger_use_token_scaling", "Each token's loss is scaled", EITHER),
        ("lora_mlp_kernel", "Axolotl's fused LoRA kernels keep less of the MLP", LESS),
        ("lora_qkv_kernel", "Axolotl's fused LoRA kernels keep less of the attention", LESS),
        ("lora_o_kernel", "Axolotl's fused LoRA kernels keep less of the attention", LESS),
        ("lora_embedding_kernel", "Axolotl's fused LoRA kernels keep less of the embedding", LESS),
        ("unfrozen_parameters", "Only these parameters are trained", LESS),
        ("layer_offloading", "Frozen layers rest in the host's memory", LESS),
        ("selective_checkpointing", "Checkpointed layers keep their attention", MORE),
        ("tiled_mlp tiled_mlp_num_shards", "The MLP is computed in tiles", LESS),
        ("tiled_mlp_use_original_mlp", "The MLP is computed in tiles", LESS, True),
        ("quantize_moe_experts", "Stacked experts are packed, too", LESS),
        ("fp8_enable_fsdp_float8_all_gather", "FSDP gathers in 8 bits", LESS),
        ("deepcompile", "DeepSpeed compiles the model", LESS),
        ("neftune_noise_alpha", "Noise is added to the embedded tokens", MORE),
        ("group_by_length", "Rows of like length share a batch: less padding", LESS),
        ("train_on_inputs", "Prompts are scored, too; as all tokens are here", EITHER, True),
        ("gc_collect_steps", "Free blocks go back to the driver now and then", LESS, -1),
        ("eval_sequence_len", "Evaluation has rows of another length", EITHER),
        ("batch_flattening", "A batch is flattened to one row", LESS, "auto"),
        ("pad_to_multiple_of", "Rows are padded further", MORE),
        ("context_parallel_size", "Rows are divided (context parallelism)", LESS, 1),
        ("sequence_parallel_degree", "Rows are divided (sequence parallelism)", LESS, 1),
        ("expert_parallel_size", "Experts are divided (expert parallelism)", LESS, 1),
        ("flash_attn_fuse_mlp", "The MLP is fused", LESS),
        ("sage_attention", "Attention in 8 bits", LESS),
        ("flash_optimum", "BetterTransformer's attention", LESS),
        ("scaling_softmax", "Attention with a scaled softmax", EITHER),
        ("relora", "Adapters are merged and begun anew", EITHER),
        ("relora_cpu_offload", "Merged weights rest on the CPU", LESS),
        ("lisa_n_layers", "Only so many layers are trained at a time", LESS),
        ("lora_on_cpu", "Adapters rest on the CPU", LESS),
        ("gptq gptq_groupsize gptq_model_v1", "The base is packed by GPTQ", LESS),
        ("liger_rms_norm_gated", "Liger's gated norm", LESS),
        ("model_config overrides_of_model_config", "The model's config is changed", EITHER),
        ("dsv4_fp4_grouped_mode nvfp4_merge_aware", "Experts in 4-bit floats", LESS),
        ("use_onebitllms", "Weights of one bit", LESS),
        ("plugins", "A plugin changes how the model is computed", LESS, [LIGER]),
        ("lora_model_dir", "Training goes on from these adapters", EITHER),
        ("peft_layer_replication", "Layers are repeated, each with adapters of its own", MORE),
        ("peft_trainable_token_indices", "Rows of the embedding are trained", MORE),
        (
            "peft_init_lora_weights",
            "The adapters begin from a decomposition of the weights",
            MORE,
            True,
        ),
        ("peft", "Another beginning of the adapters", EITHER),
        ("qat", "Weights are quantised as they train", MORE),
        ("max_memory gpu_memory_limit", "Each device takes no more than this", EITHER),
        ("device_map", "Layers lie on different devices", LESS, "auto"),
        ("embeddings_skip_upcast", "Embeddings stay in 16 bits", LESS),
        ("resize_token_embeddings_to_32x", "The embedding has a few rows more", MORE),
        ("optim_target_modules", "Only these modules are projected", EITHER),
        ("use_kernels", "The Hub's kernels replace layers", LESS),
        ("use_scattermoe use_sonicmoe", "Experts are computed by a kernel of their own", LESS),
        ("experts_implementation", "Experts are computed another way", EITHER),
        ("llama4_linearized_experts", "Experts are linears of their own", EITHER),
        ("model_quantization_config", "The checkpoint is loaded in its own quantised format", LESS),
        ("spectrum_top_fraction", "Only the layers with the most signal are trained", LESS),
        ("kd_trainer", "A teacher's logits are kept beside", MORE),
        ("curriculum_sampling", "Rows come in their own order", EITHER),
        ("auto_find_batch_size", "The batch is halved until it fits", LESS),
        ("process_reward_model", "A reward for each step", EITHER),
        ("dpo_use_liger_kernel", "Liger's fused preference loss", LESS),
        ("dpo_padding_free", "Batches of pairs have no padding", LESS),
        ("trl.use_liger_loss", "Liger's fused loss", LESS),
        ("trl.sync_ref_model", "The reference follows the policy", EITHER),
        ("ddp_find_unused_parameters", "DDP looks for unused parameters", MORE),
        ("fp32_norms", "Norms are float32", MORE),
        ("use_pose", "Rows skip positions", EITHER),
        ("reinit_weights", "Weights begin anew", EITHER),
        ("ple_cpu_offload", "Embeddings of each layer rest on the CPU", LESS),
        ("gemma4_hybrid_attn_impl", "Two attention kernels in one model", EITHER),
        ("large_head_attention", "A kernel for wide heads", EITHER),
        ("sdpa_varlen", "Packed rows by SDPA", EITHER),
        ("fused_attn_kernel", "A fused attention kernel", LESS),
    ),
    Later(
        theirs=PARTS,
        sentence="FSDP 2 and DeepSpeed shard layers that are divided already, which is another mesh than transformers' "
        "own (DistributedConfig): alone it is modelled",
        direction=LESS,
        harmless=(None, False, 1),
        beside=SHARDS,
    ),
)

NO_EFFECT = (
    parallel.NO_EFFECT
    | allocator.NO_EFFECT
    | transformers.ARGS_WITHOUT_EFFECT
    | under(
        "args",
        """base_model_config cls_model_config tokenizer_config tokenizer_use_fast tokenizer_legacy tokenizer_type
        tokenizer_use_mistral_common tokenizer_save_jinja_files processor_type processor_kwargs.use_fast
        trust_remote_code type_of_model model_type revision_of_model strict auto_resume_from_checkpoints
        mean_resizing_embeddings shrink_embeddings datasets.* test_datasets.* shuffle_merged_datasets
        shuffle_before_merging_datasets dataset_prepared_path dataset_shard_num dataset_shard_idx
        skip_prepare_dataset num_dataset_shards_to_save pretraining_dataset.* dataset_processes dataset_num_proc
        dataset_exact_deduplication dataset_keep_in_memory push_dataset_to_hub hf_use_auth_token device
        world_size ddp do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_dataset bench_split
        loss_watchdog_threshold loss_watchdog_patience excess_length_strategy min_sample_len max_prompt_len
        sample_packing_group_size sample_packing_bin_size sample_packing_sequentially
        sample_packing_mp_start_method sample_packing_eff_est pretrain_multipack_buffer_size
        pretrain_multipack_attn pretraining_sample_concatenation streaming streaming_multipack_buffer_size
        flex_attn_compile_kwargs.* flash_attn_cross_entropy flash_attn_rms_norm scaling_softmax_factor
        scaling_softmax_bias special_tokens.* added_tokens_overrides.* torch_compile_options.* lr_scheduler
        lr_groups.* lr_quadratic_warmup cosine_min_lr_ratio cosine_constant_lr_ratio lr_div_factor embedding_lr
        embedding_lr_scale adam_epsilon2 adam_beta3 early_stopping_patience save_first_step use_tensorboard
        profiler_steps profiler_steps_start include_tkps orpo_alpha simpo_gamma cpo_alpha kto_desirable_weight
        kto_undesirable_weight low_cpu_mem_usage chat_template chat_template_jinja chat_template_kwargs.*
        eot_tokens default_system_message fix_untrained_tokens is_preprocess preprocess_iterable
        total_num_tokens total_supervised_tokens axolotl_config_path is_falcon_derived_model
        is_llama_derived_model is_mistral_derived_model is_qwen_derived_model generate_samples
        num_generation_samples wandb_project wandb_entity wandb_watch wandb_name wandb_log_model wandb_run_id
        wandb_mode use_wandb use_mlflow mlflow_tracking_uri mlflow_experiment_name mlflow_run_name
        hf_mlflow_log_artifacts use_comet comet_api_key comet_workspace comet_project_name comet_experiment_key
        comet_mode comet_online use_trackio trackio_project_name trackio_run_name use_otel_metrics
        otel_metrics_host otel_metrics_port gradio_title gradio_share gradio_server_name gradio_server_port
        use_ray ray_run_name ray_num_workers resources_per_worker.* lora_fan_in_fan_out lora_alpha_pattern.*
        peft_use_rslora loraplus_lr_ratio loraplus_lr_embedding merge_lora merge_method
        qlora_sharded_model_loading bnb_config_kwargs.bnb_4bit_compute_dtype eval_table_size eval_max_new_tokens
        fsdp_final_state_dict_type heads_k_stride ring_attn_func roles_to_train.* rope_scaling.*
        noisy_embedding_alpha s2_attention max_packed_sequence_len trl.reward_funcs trl.reward_weights
        trl.log_completions trl.temperature trl.top_p trl.top_k trl.min_p trl.repetition_penalty trl.epsilon
        trl.epsilon_high trl.scale_rewards trl.vllm_server_host trl.vllm_server_port trl.vllm_server_timeout
        trl.loss_type trl.mask_truncated_completions trl.ref_model_mixup_alpha trl.ref_model_sync_steps
        trl.importance_sampling_level trl.generation_batch_size trl.num_completions_to_print vllm.host vllm.port
        vllm.dtype vllm.device vllm.enable_prefix_caching vllm.enable_reasoning vllm.reasoning_parser
        vllm.data_parallel_size vllm.enforce_eager relora_prune_ratio lisa_step_interval lisa_layers_attribute
        center_rewards_coefficient dpo_use_weighting dpo_label_smoothing rpo_alpha
        gradient_checkpointing_kwargs.determinism_check dynamic_checkpoint.* image_resize_algorithm qat.*
        quantization.* kd_ce_alpha kd_alpha kd_temperature kd_online_server_base_url kd_online_topk
        kd_online_server use_eaft eaft_alpha eaft_k spectrum_model_name train_on_eos dion_lr dion_momentum
        optimizer_kwargs.* jagged_restart_steps jagged_restart_warmup_steps device_map.* use_swanlab
        model_quantization_config_kwargs.* overrides_of_model_config.* peft.* tokens.* trl.generation_kwargs.*
        trl.chat_template_kwargs.* swanlab_project swanlab_experiment_name swanlab_description swanlab_mode
        swanlab_workspace swanlab_log_model swanlab_log_completions swanlab_completion_log_interval
        swanlab_completion_max_buffer torchdistx_path experimental_skip_move_to_device eta_min adam_eps
        trl.multi_objective_aggregation trl.async_prefetch base_model_ignore_patterns
        jagged_restart_anneal_steps gptq_disable_exllama vllm.serve_module evaluation_strategy
        selective_checkpointing.* llmcompressor.* diffusion.* ebft.* mem_eff_attn""",
    )
)


def _as_run(values: Values) -> Values:
    """Packed rows as the trainer gets them: a micro-batch is one row of all their tokens, in evaluation too.

    Source: axolotl 0.19.0, axolotl/core/trainers/base.py:139-143.
    """
    sizes = ("per_device_train_batch_size", "max_length", "per_device_eval_batch_size")
    if not (values.get("packing") and values.get("padding_free") and all(map(values.get, sizes))):
        return values
    rows, length, evaluated = itemgetter(*sizes)(values)
    joined = (1, rows * length, ceil_div(evaluated, rows))
    return {**values, **dict(zip(sizes, joined, strict=True))}


PACKS = ("args.load_in_4bit", "args.load_in_8bit")


def _stops_at(given: Mapping[str, Entry], values: Values) -> Iterator[str]:
    """Source: axolotl 0.19.0, axolotl/utils/schemas/peft.py:177-224."""
    adapter = given.get("args.adapter")
    packs = [given[key] for key in PACKS if key in given and is_on(given[key].value)]
    if packs and (adapter is None or not adapter.value):
        yield f"{packs[0].at} needs an adapter, or axolotl stops; set adapter to qlora, or turn it off."
    if (
        adapter is not None
        and adapter.value == "qlora"
        and not any(entry.key == PACKS[0] for entry in packs)
    ):
        yield f"{adapter.at} needs load_in_4bit, or axolotl stops; turn it on."


def _packs_nothing(given: Mapping[str, Entry], values: Values) -> Iterator[str]:
    """A switch does another thing than it says."""
    asked = given.get(PACKS[0])
    if values.get("method") == "lora" and asked and is_on(asked.value):
        yield (
            f"load_in_4bit packs nothing with adapter lora ({VERSION} packs for qlora alone): the base is "
            f"{values.get('dtype', DEFAULT.precision.dtype)}; set adapter to qlora, or load_in_4bit false."
        )


OWN_KERNELS = under("args", "lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel")
WITHOUT_KERNELS = under("args", "rl trust_remote_code load_in_8bit fsdp")


def _own_kernels(given: Mapping[str, Entry], values: Values) -> Iterator[str]:
    """axolotl turns its fused LoRA kernels on, which matters where layers are not checkpointed.

    Source: axolotl 0.19.0, utils/schemas/config.py, ``check_auto_enable_lora_kernels``; two runs of a small Llama on
    PyTorch's own allocator, with and without them.
    """
    if values.get("method") == "full" or values.get("gradient_checkpointing"):
        return
    without = [given[key].value for key in WITHOUT_KERNELS & {*given}]
    if OWN_KERNELS & {*given} or any(value not in (None, False) for value in without):
        return
    yield (
        "axolotl turns its fused LoRA kernels on where none of lora_mlp_kernel, lora_qkv_kernel and lora_o_kernel is "
        "set: they keep less for backward than PEFT's own layers, which are counted here; set them to false, or read "
        "the estimate as an upper bound."
    )


TOOL = Tool(
    name="axolotl",
    label="axolotl",
    distribution="axolotl",
    place=3,
    chains={
        **transformers.CHAINS,
        "args": (
            ("axolotl", "AxolotlInputConfig"),
            ("axolotl", "HyperparametersConfig"),
            ("axolotl", "LoraConfig"),
        ),
    },
    rules=RULES,
    later=LATER,
    no_effect=NO_EFFECT,
    as_run=_as_run,
    marks=listed("base_model sample_packing micro_batch_size sequence_len"),
    programs=frozenset(["axolotl"]),
    trains=frozenset(["train"]),
    modules=("axolotl.cli.train",),
    launches_itself=True,
    stops_at=_stops_at,
    guesses=_packs_nothing,
    notes=_own_kernels,
)
