"""torchtune's recipes: YAML of ``_component_``s, or ``tune run recipe --config name key=value``.

A recipe has no defaults in code: its YAML says everything. Without a file the keys are those of
``recipes/configs/llama3_1/8B_lora_single_device.yaml``. Weights, states and adapters are in ``dtype``, no autocast.

Source: torchtune 0.6.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from estimator.tools.known import allocator, parallel, peft
from estimator.tools.known.parallel import is_on, positive, rounded, whole
from estimator.tools.known.peft import dtype_word
from estimator.tools.later import EITHER, LESS, MORE, not_modelled
from estimator.tools.lists import under
from estimator.tools.rules import SoFar, Theirs, Tool, Value, Values, always, row, same

VERSION = "torchtune 0.6.1"

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "code_llama2_7b": "codellama/CodeLlama-7b-hf",
        "code_llama2_13b": "codellama/CodeLlama-13b-hf",
        "code_llama2_70b": "codellama/CodeLlama-70b-hf",
        "gemma_2b": "google/gemma-2b",
        "gemma_7b": "google/gemma-7b",
        "gemma2_2b": "google/gemma-2-2b",
        "gemma2_9b": "google/gemma-2-9b",
        "gemma2_27b": "google/gemma-2-27b",
        "llama2_7b": "meta-llama/Llama-2-7b-hf",
        "llama2_13b": "meta-llama/Llama-2-13b-hf",
        "llama2_70b": "meta-llama/Llama-2-70b-hf",
        "llama3_8b": "meta-llama/Meta-Llama-3-8B",
        "llama3_70b": "meta-llama/Meta-Llama-3-70B",
        "llama3_1_8b": "meta-llama/Llama-3.1-8B",
        "llama3_1_70b": "meta-llama/Llama-3.1-70B",
        "llama3_1_405b": "meta-llama/Llama-3.1-405B",
        "llama3_2_1b": "meta-llama/Llama-3.2-1B",
        "llama3_2_3b": "meta-llama/Llama-3.2-3B",
        "llama3_2_vision_11b": "meta-llama/Llama-3.2-11B-Vision-Instruct",
        "llama3_2_vision_90b": "meta-llama/Llama-3.2-90B-Vision-Instruct",
        "llama3_3_70b": "meta-llama/Llama-3.3-70B-Instruct",
        "mistral_7b": "mistralai/Mistral-7B-v0.1",
        "phi3_mini": "microsoft/Phi-3-mini-4k-instruct",
        "phi4_14b": "microsoft/phi-4",
        "qwen2_0_5b": "Qwen/Qwen2-0.5B",
        "qwen2_1_5b": "Qwen/Qwen2-1.5B",
        "qwen2_7b": "Qwen/Qwen2-7B",
        "qwen2_5_0_5b": "Qwen/Qwen2.5-0.5B",
        "qwen2_5_1_5b": "Qwen/Qwen2.5-1.5B",
        "qwen2_5_3b": "Qwen/Qwen2.5-3B",
        "qwen2_5_7b": "Qwen/Qwen2.5-7B",
        "qwen2_5_14b": "Qwen/Qwen2.5-14B",
        "qwen2_5_32b": "Qwen/Qwen2.5-32B",
        "qwen2_5_72b": "Qwen/Qwen2.5-72B",
        "qwen3_0_6b": "Qwen/Qwen3-0.6B",
        "qwen3_1_7b": "Qwen/Qwen3-1.7B",
        "qwen3_4b": "Qwen/Qwen3-4B",
        "qwen3_8b": "Qwen/Qwen3-8B",
        "qwen3_14b": "Qwen/Qwen3-14B",
        "qwen3_32b": "Qwen/Qwen3-32B",
    }
)
"""The checkpoint of each builder, as the recipes' own comments download it."""
BUILDER = re.compile(r"^(lora_|qlora_)?(\w+?)(_base|_instruct)?$")
OPTIMIZERS = {
    "torch.optim.AdamW": "adamw_torch",
    "torch.optim.SGD": "sgd",
    "torch.optim.Adam": "adamw_torch",
    "bitsandbytes.optim.PagedAdamW": "paged_adamw_32bit",
    "bitsandbytes.optim.PagedAdamW8bit": "paged_adamw_8bit",
    "bitsandbytes.optim.AdamW8bit": "adamw_bnb_8bit",
    "torchao.prototype.low_bit_optim.AdamW8bit": "adamw_torch_8bit",
    "torchao.prototype.low_bit_optim.AdamW4bit": "adamw_torch_4bit",
}
MODULES = {"output_proj": "o_proj"}
OBJECTIVES = {
    "dpo": "dpo",
    "ppo": "ppo",
    "knowledge_distillation": "distillation",
    "kd": "distillation",
}


def _builder(theirs: Theirs) -> tuple[str, str]:
    """Of ``torchtune.models.llama3_1.lora_llama3_1_8b``: ``lora_`` and ``llama3_1_8b``."""
    word = theirs["args.model._component_"]
    found = BUILDER.match(str(word).rpartition(".")[2]) if word else None
    return (found[1] or "", found[2]) if found else ("", "")


def _objective(theirs: Theirs, so_far: SoFar) -> Values:
    recipe, loss = str(theirs["args.recipe"] or ""), str(theirs["args.loss._component_"])
    words = [objective for key, objective in OBJECTIVES.items() if key in recipe]
    words += ["dpo"] * ("DPOLoss" in loss)
    return {"objective": words[0]} if words else {}


def _model(theirs: Theirs, so_far: SoFar) -> Values:
    _, name = _builder(theirs)
    return {"model": MODELS[name]} if name in MODELS else {}


def _method(theirs: Theirs, so_far: SoFar) -> Values:
    kind, name = _builder(theirs)
    if kind == "qlora_" or (kind and is_on(theirs["args.model.quantize_base"])):
        return {"method": "qlora"}
    return {"method": "lora" if kind else "full"} if name else {}


def _gpus(theirs: Theirs, so_far: SoFar) -> Values:
    if so_far["num_gpus"] <= 1:
        return {"strategy": "none"}
    if is_on(theirs["args.fsdp_cpu_offload"]):
        found = {"strategy": "fsdp", "offload_optimizer": "cpu", "offload_param": "cpu"}
    else:
        again = theirs["args.fsdp_reshard_after_forward"]
        found = {"strategy": "fsdp_grad_op" if again is False else "fsdp"}
    return {**found, "fsdp_version": 2}


def _dtype(theirs: Theirs, so_far: SoFar) -> Values:
    return {"dtype": dtype_word(theirs["args.dtype"]) or "bfloat16", "mixed_precision": "no"}


def _optimizer(theirs: Theirs, so_far: SoFar) -> Values:
    name = theirs["args.optimizer._component_"]
    if not isinstance(name, str):
        return {"optim": "adamw_torch_fused"}
    found = OPTIMIZERS.get(name, name)
    if found == "adamw_torch" and is_on(theirs["args.optimizer.fused"]):
        found = "adamw_torch_fused"
    return {"optim": found}


def _targets(theirs: Theirs, so_far: SoFar) -> Values:
    named = theirs["args.model.lora_attn_modules"] or ["q_proj", "v_proj", "output_proj"]
    if not isinstance(named, list):
        return {}
    found = [MODULES.get(str(module), module) for module in named]
    mlp = theirs["args.model.apply_lora_to_mlp"]
    if mlp is None:  # a builder's own default, but the recipes say True
        mlp = theirs["builder.apply_lora_to_mlp"] if theirs.has("args.model._component_") else True
    found += ["gate_proj", "up_proj", "down_proj"] * is_on(mlp)
    found += ["lm_head"] * is_on(theirs["args.model.apply_lora_to_output"])
    return {"lora_target_modules": found}


def _packing(theirs: Theirs, so_far: SoFar) -> Values:
    """Packed rows stay rows, whose bounds its attention knows without a mask.

    Source: torchtune 0.6.1, modules/attention_utils.py, ``packed_block_causal_mask`` (a BlockMask of flex_attention).
    """
    packed = is_on(theirs.first("args.dataset.packed", "args.packed"))
    return {"packing": False, "padded": not packed and so_far["per_device_train_batch_size"] > 1}


def _loss(theirs: Theirs, so_far: SoFar) -> Values:
    word = str(theirs["args.loss._component_"] or "CEWithChunkedOutputLoss")
    return {
        "loss": "chunked_torchtune"
        if "Chunked" in word or "LinearCrossEntropy" in word
        else "standard"
    }


def _clipped(theirs: Theirs, so_far: SoFar) -> Values:
    most = theirs["args.clip_grad_norm"]
    return {"max_grad_norm": 0.0 if most is None else most}


def _counts(theirs: Theirs, so_far: SoFar) -> Values:
    steps = whole(theirs["args.max_steps_per_epoch"])
    batch = whole(theirs["args.batch_size"]) or 2
    accumulation = whole(theirs["args.gradient_accumulation_steps"]) or 1
    found: dict[str, Value] = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
    }
    epochs = theirs["args.epochs"]
    found["num_train_epochs"] = float(epochs) if isinstance(epochs, int | float) else 1.0
    if steps:
        found["num_train_examples"] = steps * batch * accumulation * so_far["num_gpus"]
    return found


def _checkpointing(theirs: Theirs, so_far: SoFar) -> Values:
    asked = theirs["args.enable_activation_checkpointing"]
    found: dict[str, Value] = {
        "gradient_checkpointing": asked is None or is_on(asked),
        "use_reentrant": False,
    }
    if is_on(theirs["args.enable_activation_offloading"]):
        found["activation_offloading"] = True
    every = whole(theirs["args.ac_option"])
    if theirs["args.ac_mode"] == "selective" and every and every > 1:
        found["checkpoint_every_n_layers"] = every
    return found


LORA_FACTS = "adapters are in the base's dtype"


def _compiled(theirs: Theirs, so_far: SoFar) -> Values:
    """A switch, or a switch for each part, of which the model's counts.

    Source: torchtune 0.6.1, recipes/full_finetune_distributed.py, ``FullFinetuneRecipeDistributed.__init__``.
    """
    parts = theirs.below("args.compile")
    return {"torch_compile": is_on(parts.get("model", True) if parts else theirs["args.compile"])}


RULES = (
    row("args.compile args.compile.model", "torch_compile", _compiled, "args.compile"),
    row("args.recipe args.loss._component_", "objective", _objective),
    row("args.model._component_", "model", _model),
    row("args.model._component_ args.model.quantize_base", "method load_in_8bit", _method),
    *parallel.RULES[:2],
    allocator.RULE,
    row(
        "args.fsdp_cpu_offload args.fsdp_reshard_after_forward",
        "strategy fsdp_version offload_optimizer offload_param",
        _gpus,
        says="distributed recipes divide by FSDP 2",
        source=f"{VERSION}, recipes/full_finetune_distributed.py",
    ),
    row(
        "args.dtype",
        "dtype mixed_precision",
        _dtype,
        lambda values: {"args.dtype": {"bfloat16": "bf16", "float32": "fp32"}[values["dtype"]]},
        says="weights, gradients and states are in dtype, without autocast",
        source=f"{VERSION}, recipes/lora_finetune_single_device.py",
    ),
    row(
        "args.batch_size args.gradient_accumulation_steps args.epochs args.max_steps_per_epoch",
        "per_device_train_batch_size gradient_accumulation_steps num_train_epochs num_train_examples",
        _counts,
        lambda values: {
            "args.batch_size": values["per_device_train_batch_size"],
            "args.gradient_accumulation_steps": values["gradient_accumulation_steps"],
            "args.epochs": int(values["num_train_epochs"]),
        },
        says="as the recipes have it",
        source=f"{VERSION}, recipes/configs/llama3_1/8B_lora_single_device.yaml:58",
    ),
    row("args.optimizer._component_ args.optimizer.fused", "optim", _optimizer),
    same("args.optimizer_in_bwd"),
    row(
        "args.clip_grad_norm",
        "max_grad_norm",
        _clipped,
        lambda values: {"args.clip_grad_norm": values["max_grad_norm"] or None},
        says="gradients are not clipped",
    ),
    row(
        "args.enable_activation_checkpointing args.enable_activation_offloading args.ac_mode args.ac_option",
        "gradient_checkpointing use_reentrant activation_offloading checkpoint_every_n_layers",
        _checkpointing,
        "args.enable_activation_checkpointing",
        says="the recipes checkpoint",
        source=f"{VERSION}, recipes/configs/llama3_1/8B_lora_single_device.yaml:88",
    ),
    always(
        "attn_implementation",
        "sdpa",
        "torchtune calls SDPA, or FlexAttention where rows are packed",
        VERSION,
    ),
    row("args.loss._component_", "loss", _loss, says="the loss is computed in chunks"),
    same("args.tokenizer.max_seq_len", "max_length", "args.max_seq_length", as_=positive),
    row(
        "args.dataset.packed args.packed",
        "packing padded",
        _packing,
        lambda _: {"args.dataset.packed": False},
        says="rows of a batch are padded to its longest: the recipes do not pack",
    ),
    same("args.model.lora_rank", "lora_r", "builder.lora_rank"),
    same("args.model.lora_alpha", "lora_alpha", "builder.lora_alpha", as_=rounded),
    same("args.model.lora_dropout", "lora_dropout", "builder.lora_dropout"),
    same("args.model.use_dora", "use_dora", "builder.use_dora", as_=is_on),
    row(
        "args.model.lora_attn_modules args.model.apply_lora_to_mlp args.model.apply_lora_to_output",
        "lora_target_modules",
        _targets,
        says="queries, values, the output projection and the MLP get an adapter, as in the recipes",
    ),
    always(
        "autocast_adapter_dtype", False, LORA_FACTS, f"{VERSION}, torchtune/modules/peft/lora.py"
    ),
    always(
        "bnb_4bit_quant_type",
        "nf4",
        "torchao's NF4",
        f"{VERSION}, torchtune/modules/low_precision/nf4_linear.py",
    ),
    always(
        "bnb_4bit_use_double_quant",
        True,
        "NF4's scales are quantised, too",
        f"{VERSION}, torchtune/modules/low_precision/nf4_linear.py",
    ),
    always(
        "save_strategy",
        "epoch",
        "it saves every epoch",
        f"{VERSION}, recipes/lora_finetune_single_device.py",
    ),
)


LATER = (
    *allocator.LATER,
    *not_modelled(
        "args",
        (
            "loss._component_",
            "The head and the loss are one; CEWithChunkedOutputLoss is estimated",
            LESS,
            "torchtune.modules.loss.CEWithChunkedOutputLoss",
            "torchtune.modules.loss.ForwardKLWithChunkedOutputLoss",
            "torchtune.rlhf.loss.DPOLoss",
            "torchtune.rlhf.loss.PPOLoss",
            "torch.nn.CrossEntropyLoss",
        ),
        ("custom_sharded_layers", "These layers are units of their own for FSDP", LESS),
        ("tensor_parallel_dim", "Layers' matrices are divided (tensor parallelism)", LESS, 1),
        ("tensor_parallel_plan", "Layers' matrices are divided (tensor parallelism)", LESS),
        ("data_parallel_replicate_dim", "The model is replicated in groups", EITHER, 1),
        ("context_parallel_dim", "Rows are divided (context parallelism)", LESS, 1),
        ("memory_efficient_fsdp_wrap", "FSDP divides in smaller units", LESS),
        ("teacher_model", "A teacher's logits are kept beside", MORE),
        ("quantizer", "Weights are quantised as they train", MORE),
        ("fp8", "Matrix products are computed in 8 bits", EITHER),
        ("model.decoder_trainable", "Which part of the model is trained", EITHER),
        ("model.encoder_trainable", "Which part of the model is trained", EITHER),
        ("model.fusion_trainable", "Which part of the model is trained", EITHER),
        ("model.image_size tokenizer.image_size", "Images have this size", EITHER),
        ("ref_policy_checkpointer", "A reference is kept", MORE),
        ("reward_and_value_model", "A reward model is kept", MORE),
        ("policy_model", "The policy of PPO", EITHER),
        ("forward_batch_size", "How much is scored at once", EITHER),
        ("ppo_batch_size", "How much PPO trains at once", EITHER),
        ("dataset.max_seq_len", "Rows are packed to this length", EITHER),
        ("enable_kv_cache", "Generation keeps keys and values", MORE),
        ("embedding_lr", "The embedding has its own optimizer group", EITHER),
    ),
)
NO_EFFECT = (
    parallel.NO_EFFECT
    | allocator.NO_EFFECT
    | under(
        "args",
        """output_dir seed device shuffle log_every_n_steps log_level log_peak_memory_stats log_dir
        resume_from_checkpoint save_adapter_weights_only recipe config tokenizer.* checkpointer.* dataset.*
        dataset_val.* metric_logger.* profiler.* lr_scheduler.* lr_schedulers.* optimizer.* loss.* collate_fn
        model.* data_dir datasets.* dataloader.* batch_size_val run_val_every_n_steps num_steps gamma lmbda
        kl_coeff whiten_rewards temperature top_k top_p min_response_length max_generated_tokens penalise_no_eos
        reward_penalty stop_token_ids ppo_epochs kd_ratio kd_loss.* teacher_checkpointer.* ref_checkpointer.*
        reward_checkpointer.* value_checkpointer.* base_model_path save_last_epoch_only save_every_epoch
        max_validation_steps keep_last_n_checkpoints enable_async_checkpointing prompt.* instruct_template
        chat_format max_new_tokens tasks limit low_cpu_ram include_path generator.* fsdp.* async_checkpointing
        cudnn_deterministic_mode""",
    )
)

TOOL = Tool(
    name="torchtune",
    label="torchtune",
    distribution="torchtune",
    place=6,
    chains={**peft.CHAINS, **parallel.CHAINS, "builder": (("torchtune", "lora_llama3_1_8b"),)},
    rules=RULES,
    later=LATER,
    no_effect=NO_EFFECT,
    marks_within=frozenset(["_component_"]),
    programs=frozenset(["tune"]),
    reads_overrides=True,
    reads_recipes=True,
)
