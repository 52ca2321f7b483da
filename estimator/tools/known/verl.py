"""verl's Hydra keys: ``python -m verl.trainer.main_ppo key=value``, or a YAML of them.

GRPO, RLOO and their like with the FSDP engine and vLLM on the same GPUs. A prompt is an example;
``data.train_batch_size`` of them are one generation, ``ppo_mini_batch_size`` of them one optimizer's step.

Leaves out: the adapters that vLLM keeps beside the base (``model.lora.merge`` false).

Source: verl 0.9.1; the lines of its defaults stand in data/tool_defaults.csv.
"""

from __future__ import annotations

from estimator.tools.known.parallel import is_on, whole
from estimator.tools.known.peft import dtype_word, names
from estimator.tools.later import EITHER, LESS, MORE, Later, not_modelled
from estimator.tools.lists import listed, under
from estimator.tools.rules import SoFar, Theirs, Tool, Value, Values, always, row, same, words
from estimator.values.arithmetic import ceil_div
from estimator.values.keys import LARGEST
from estimator.values.specs import ALL_LINEAR

VERSION = "verl 0.9.1"
ACTOR, ROLLOUT, MODEL = (f"args.actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
FSDP = f"{ACTOR}.fsdp_config"
ATTENTION = f"{MODEL}.override_config.attn_implementation"
ALIKE = {
    **dict.fromkeys(("rloo", "rloo_vectorized"), "rloo"),
    **dict.fromkeys(
        listed("""
        grpo grpo_passk grpo_vectorized reinforce_plus_plus reinforce_plus_plus_baseline opo gpg gdpo
        """),
        "grpo",
    ),
}
"""Estimators of the advantage that need GRPO's or RLOO's passes, which are the same here: trainer/ppo/core_algos.py,
``AdvantageEstimator``."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""verl's words: utils/torch_dtypes.py, ``PrecisionType``."""
AUTOCASTS = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}
SAVES_EVERY = 20
"""Steps between two checkpoints: those of verl's examples."""
OPTIMIZERS = {
    ("torch.optim", "AdamW"): "adamw_torch",
    ("torch.optim", "Adam"): "adamw_torch",
    ("torch.optim", "SGD"): "sgd",
    ("bitsandbytes.optim", "AdamW8bit"): "adamw_bnb_8bit",
    ("bitsandbytes.optim", "PagedAdamW8bit"): "paged_adamw_8bit",
}


def _objective(theirs: Theirs, so_far: SoFar) -> Values:
    word = theirs["args.algorithm.adv_estimator"]
    alike = {"gae": "ppo", **ALIKE}
    return {"objective": alike.get(word, word) if isinstance(word, str) else word}


def _write_objective(values: Values) -> Values:
    objective = values["objective"]
    return {"args.algorithm.adv_estimator": objective} if objective in ALIKE.values() else {}


def _gpus(theirs: Theirs, so_far: SoFar) -> Values:
    a_node, nodes = (whole(theirs[f"args.trainer.{key}"]) for key in ("n_gpus_per_node", "nnodes"))
    if not a_node or not nodes:
        return {}
    return {"num_gpus": a_node * nodes} | ({"gpus_per_node": a_node} if nodes > 1 else {})


def _strategy(theirs: Theirs, so_far: SoFar) -> Values:
    """Each GPU saves its own shards: utils/checkpoint/fsdp_checkpoint_manager.py, ``save_checkpoint``."""
    word, gpus = theirs[f"{ACTOR}.strategy"], so_far["num_gpus"]
    engine = theirs["args.model_engine"]
    if engine not in (None, "dp"):
        word = engine
    elif "megatron" in str(theirs["args.config_name"]):
        word = "megatron"
    if word not in ("fsdp", "fsdp2"):
        return {"strategy": word}
    if gpus == 1:
        return {"strategy": "none"}
    found: dict[str, Value] = {
        "strategy": "fsdp",
        "fsdp_version": 2 if word == "fsdp2" else 1,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    shards = whole(theirs[f"{FSDP}.fsdp_size"]) or -1
    if 1 < shards < gpus:
        found |= {"strategy": "hsdp", "dp_replicate_size": gpus // shards}
    elif not is_on(theirs[f"{FSDP}.reshard_after_forward"]):
        found["strategy"] = "fsdp_grad_op"
    if word == "fsdp2" and is_on(theirs[f"{FSDP}.offload_policy"]):
        found |= {"offload_optimizer": "cpu", "offload_param": "cpu"}
    return found


def _method(theirs: Theirs, so_far: SoFar) -> Values:
    rank = whole(theirs[f"{MODEL}.lora_rank"]) or 0
    if not rank and so_far["method"] == "full":
        return {"method": "full"}
    targets = names(theirs[f"{MODEL}.target_modules"])
    return ({"method": "lora", "lora_r": rank} if rank else {}) | {
        "lora_alpha": theirs[f"{MODEL}.lora_alpha"],
        "lora_dropout": 0.0,
        "lora_target_modules": ALL_LINEAR if targets in (ALL_LINEAR, [ALL_LINEAR]) else targets,
        "autocast_adapter_dtype": False,
    }


def _write_method(values: Values) -> Values:
    if values["method"] != "lora":
        return {f"{MODEL}.lora_rank": 0}
    return {
        f"{MODEL}.lora_rank": values["lora_r"],
        f"{MODEL}.lora_alpha": values["lora_alpha"],
        f"{MODEL}.target_modules": values["lora_target_modules"],
    }


def _optimizer(theirs: Theirs, so_far: SoFar) -> Values:
    package, name = (theirs[f"{ACTOR}.optim.{key}"] for key in ("optimizer_impl", "optimizer"))
    return {"optim": OPTIMIZERS.get((str(package), str(name)), name)}


def _write_optimizer(values: Values) -> Values:
    of = next(
        (theirs for theirs, ours in OPTIMIZERS.items() if ours == values["optim"]), (None, None)
    )
    return {f"{ACTOR}.optim.optimizer_impl": of[0], f"{ACTOR}.optim.optimizer": of[1]}


def _lengths(theirs: Theirs, so_far: SoFar) -> Values:
    prompt, answer = (
        whole(theirs[f"args.data.max_{part}_length"]) for part in ("prompt", "response")
    )
    if not prompt or not answer:
        return {}
    return {
        "max_length": prompt + answer,
        "max_prompt_length": prompt,
        "max_completion_length": answer,
    }


def _write_lengths(values: Values) -> Values:
    return {
        "args.data.max_prompt_length": values["max_prompt_length"],
        "args.data.max_response_length": values["max_completion_length"],
    }


def _batch(theirs: Theirs, so_far: SoFar) -> Values:
    """Rows of a micro-batch, of an optimizer's step and of a generation, per GPU.

    With ``use_dynamic_bsz`` a micro-batch has as many tokens as ``ppo_max_token_len_per_gpu``: so many whole rows of
    full length, in equal parts of the step.

    Source: verl 0.9.1, trainer/ppo/ray_trainer.py:1352; utils/seqlen_balancing.py, ``rearrange_micro_batches``.
    """
    copies, gpus = whole(so_far["num_generations"]), so_far["num_gpus"]
    of_step, of_all = (
        whole(theirs[f"{part}_batch_size"]) for part in (f"{ACTOR}.ppo_mini", "args.data.train")
    )
    if not of_step or not of_all or not copies:
        return {}
    of_step, of_all = (max(1, ceil_div(rows * copies, gpus)) for rows in (of_step, of_all))
    most = whole(
        theirs.first(f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size")
    )
    if theirs.is_given(f"{ACTOR}.ppo_micro_batch_size") and most:
        most = max(1, most // gpus)
    if is_on(theirs[f"{ACTOR}.use_dynamic_bsz"]):
        tokens = whole(theirs[f"{ACTOR}.ppo_max_token_len_per_gpu"]) or 1
        most = max(1, tokens // so_far["max_length"])
    most = most or 1  # verl stops without any
    if most < 1:
        return {"per_device_train_batch_size": most}  # which the contract refuses
    if "per_device_train_batch_size" in so_far:
        rows = so_far["per_device_train_batch_size"]
        return {
            "gradient_accumulation_steps": ceil_div(of_step, rows),
            "steps_per_generation": ceil_div(of_all, rows),
        }
    rows = next(size for size in range(min(most, of_step), 0, -1) if of_step % size == 0)
    return {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": of_step // rows,
        "steps_per_generation": ceil_div(of_all, rows),
    }


def _examples(theirs: Theirs, so_far: SoFar) -> Values:
    steps = whole(theirs["args.trainer.total_training_steps"])
    prompts = whole(theirs["args.data.train_batch_size"])
    if steps and prompts:
        examples = min(steps * prompts, LARGEST["num_train_examples"])
        return {"num_train_examples": examples, "num_train_epochs": 1.0}
    epochs = theirs["args.trainer.total_epochs"]
    return {"num_train_epochs": float(epochs)} if isinstance(epochs, int | float) else {}


def _write_epochs(values: Values) -> Values:
    """Whole epochs: verl counts no parts of one."""
    epochs = values["num_train_epochs"]
    return {"args.trainer.total_epochs": int(epochs)} if epochs == int(epochs) else {}


def _reference(theirs: Theirs, so_far: SoFar) -> Values:
    if is_on(theirs[f"{ACTOR}.use_kl_loss"]):
        return {"beta": theirs[f"{ACTOR}.kl_loss_coef"]}
    if is_on(theirs["args.algorithm.use_kl_in_reward"]):
        return {"beta": theirs["args.algorithm.kl_ctrl.kl_coef"]}
    return {"beta": 0.0}


def _write_reference(values: Values) -> Values:
    """As a loss of its own, as in GRPO."""
    beta = values["beta"]
    if not beta:
        return {f"{ACTOR}.use_kl_loss": False}
    return {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": beta}


def _engine(theirs: Theirs, so_far: SoFar) -> Values:
    apart = whole(theirs[f"{ROLLOUT}.nnodes"])
    return {"use_vllm": True, "vllm_mode": "server" if apart else "colocate"}


def _tokens_at_once(theirs: Theirs, so_far: SoFar) -> Values:
    """Without chunked prefill the largest batch holds the longest row."""
    tokens, longest = (
        whole(theirs[f"{ROLLOUT}.max_{limit}"]) for limit in ("num_batched_tokens", "model_len")
    )
    if theirs[f"{ROLLOUT}.enable_chunked_prefill"] is False and longest and tokens:
        tokens = max(tokens, longest)
    return {"vllm_max_num_batched_tokens": tokens} if tokens else {}


def _saves(theirs: Theirs, so_far: SoFar) -> Values:
    every = theirs["args.trainer.save_freq"]
    return {"save_strategy": "steps" if isinstance(every, int) and every > 0 else "no"}


def _write_saves(values: Values) -> Values:
    every = {"steps": SAVES_EVERY, "no": -1}.get(values["save_strategy"])
    return {"args.trainer.save_freq": every}


RULES = (
    row("args.algorithm.adv_estimator", "objective", _objective, _write_objective),
    same(f"{MODEL}.path", "model"),
    row("args.trainer.n_gpus_per_node args.trainer.nnodes", "num_gpus gpus_per_node", _gpus),
    row(
        f"""args.model_engine args.config_name {ACTOR}.strategy {FSDP}.strategy {FSDP}.fsdp_size
        {FSDP}.reshard_after_forward {FSDP}.offload_policy""",
        "strategy fsdp_version dp_replicate_size fsdp_state_dict_type offload_optimizer offload_param",
        _strategy,
        says="the actor is divided by FSDP 1",
    ),
    row(
        f"{MODEL}.lora_rank {MODEL}.lora_alpha {MODEL}.target_modules",
        "method lora_r lora_alpha lora_dropout lora_target_modules autocast_adapter_dtype",
        _method,
        _write_method,
    ),
    words(f"{FSDP}.model_dtype", "dtype", DTYPES, as_=lambda word: dtype_word(word) or word),
    words(
        f"{FSDP}.mixed_precision.param_dtype",
        "mixed_precision",
        {**AUTOCASTS, **{DTYPES[word]: autocast for word, autocast in AUTOCASTS.items()}},
        as_=lambda word: dtype_word(word) or "bfloat16",
        says="FSDP gathers in bfloat16 and reduces in float32",
        source=f"{VERSION}, verl/workers/engine/fsdp/transformer_impl.py:387",
    ),
    row(
        f"{ACTOR}.optim.optimizer {ACTOR}.optim.optimizer_impl",
        "optim",
        _optimizer,
        _write_optimizer,
    ),
    same(f"{ACTOR}.optim.clip_grad", "max_grad_norm", f"{ACTOR}.grad_clip"),
    row(
        ATTENTION,
        "attn_implementation",
        lambda theirs, so_far: {"attn_implementation": theirs[ATTENTION] or "flash_attention_2"},
        ATTENTION,
        says="verl asks for FlashAttention 2",
        source=f"{VERSION}, verl/workers/config/model.py:185",
    ),
    same(f"{MODEL}.enable_gradient_checkpointing", "gradient_checkpointing"),
    same(f"{MODEL}.use_liger", "use_liger_kernel"),
    always(
        "loss",
        "selective_verl",
        "the logits of every token exist, in 16 bits",
        f"{VERSION}, verl/utils/torch_functional.py:73",
    ),
    row(
        "args.data.max_prompt_length args.data.max_response_length",
        "max_length max_prompt_length max_completion_length",
        _lengths,
        _write_lengths,
    ),
    same(f"{ROLLOUT}.n", "num_generations"),
    row(
        f"""args.data.train_batch_size {ACTOR}.ppo_mini_batch_size {ACTOR}.ppo_micro_batch_size_per_gpu
        {ACTOR}.ppo_micro_batch_size {ACTOR}.use_dynamic_bsz {ACTOR}.ppo_max_token_len_per_gpu""",
        "per_device_train_batch_size gradient_accumulation_steps steps_per_generation",
        _batch,
    ),
    words(f"{MODEL}.use_remove_padding", "padded", {True: False, False: True}),
    same(f"{ACTOR}.ppo_epochs", "num_iterations"),
    row(
        f"""{ACTOR}.use_kl_loss {ACTOR}.kl_loss_coef
        args.algorithm.use_kl_in_reward args.algorithm.kl_ctrl.kl_coef""",
        "beta",
        _reference,
        _write_reference,
        says="no reference is asked",
    ),
    row(
        f"{ROLLOUT}.nnodes",
        "use_vllm vllm_mode",
        _engine,
        says="vLLM is on the GPUs that train",
        source=f"{VERSION}, verl/workers/engine_workers.py:632",
    ),
    same(f"{ROLLOUT}.gpu_memory_utilization", "vllm_gpu_memory_utilization"),
    same(f"{ROLLOUT}.tensor_model_parallel_size", "vllm_tensor_parallel_size"),
    same(f"{ROLLOUT}.free_cache_engine", "vllm_enable_sleep_mode"),
    same(f"{ROLLOUT}.max_model_len", "vllm_max_model_length"),
    same(f"{ROLLOUT}.max_num_seqs", "vllm_max_num_seqs"),
    row(
        f"{ROLLOUT}.max_num_batched_tokens {ROLLOUT}.enable_chunked_prefill",
        "vllm_max_num_batched_tokens",
        _tokens_at_once,
        f"{ROLLOUT}.max_num_batched_tokens",
    ),
    same(f"{FSDP}.param_offload", "generation_offload_model"),
    same(f"{FSDP}.optimizer_offload", "generation_offload_optimizer"),
    row(
        "args.trainer.total_epochs args.trainer.total_training_steps",
        "num_train_epochs num_train_examples",
        _examples,
        _write_epochs,
    ),
    row("args.trainer.save_freq", "save_strategy", _saves, _write_saves),
)

REF = "actor_rollout_ref.ref"
LATER = (
    *not_modelled(
        ROLLOUT,
        ("name", "Another engine generates; vLLM is estimated", EITHER, "vllm"),
        ("enforce_eager", "vLLM captures no CUDA graphs", LESS),
        ("data_parallel_size expert_parallel_size", "vLLM's experts are divided", LESS, 1),
        ("pipeline_model_parallel_size", "vLLM's layers are divided", LESS, 1),
        ("quantization", "vLLM packs its weights", LESS),
        ("multi_turn.enable", "Rows grow in turns", MORE),
        ("disaggregation.enabled", "Prompts have engines of their own", EITHER),
    ),
    *not_modelled(
        ACTOR,
        ("ulysses_sequence_parallel_size", "Rows are divided (Ulysses)", LESS, 1),
        ("entropy_coeff", "The entropy's gradient keeps the logits", MORE, 0, 0.0),
        ("calculate_entropy", "The entropy keeps the logits", MORE),
        ("freeze_vision_tower", "The tower is not trained", LESS),
        ("qat.enable", "Weights are quantised as they train", MORE),
        ("megatron", "Megatron trains the model", EITHER),
        ("veomni", "VeOmni trains the model", EITHER),
    ),
    *not_modelled(
        FSDP,
        ("ulysses_sequence_parallel_size", "Rows are divided (Ulysses)", LESS, 1),
        ("forward_prefetch", "The next layer is gathered early", MORE),
        ("wrap_policy", "FSDP divides otherwise than layer by layer", EITHER, 0),
        ("mixed_precision.reduce_dtype", "Gradients are reduced in it", LESS, "fp32"),
        (
            "use_no_sync_for_gradient_accumulation",
            "Gradients lie whole until the last micro-step",
            MORE,
        ),
    ),
    *not_modelled(
        MODEL,
        ("use_fused_kernels", "Head and loss are one, in chunks", LESS),
        ("enable_activation_offload", "Activations go to the host", LESS),
        ("tiled_mlp.enabled", "MLPs are computed in tiles", LESS),
        ("mtp.enable", "Heads of more tokens are trained", MORE),
        ("exclude_modules", "These modules get no adapter", LESS),
        ("lora_adapter_path", "Training goes on from this adapter", EITHER),
        ("lora", "Another engine's adapters", EITHER, 0),
        (
            "override_config.attn_implementation",
            "Another kernel of attention",
            EITHER,
            "flash_attention_2",
            "sdpa",
            "eager",
        ),
        ("lora.merge", "Adapters are merged", EITHER, True),
        ("override_config", "The model's config is changed", EITHER),
    ),
    *not_modelled(
        "args",
        ("critic.enable", "A critic is trained", MORE),
        ("reward_model.enable reward.reward_model.enable", "A reward model is kept", MORE),
        ("algorithm.filter_groups.enable", "More is generated until rewards differ", MORE),
        ("distillation.enabled", "A teacher is kept", MORE),
        ("actor_rollout_ref.hybrid_engine", "Trainer and vLLM have GPUs of their own", LESS, True),
    ),
    *(
        Later(
            theirs=f"{part}.log_prob_{key}",
            sentence="Scoring takes other rows at once; those of the training step are taken",
            direction=EITHER,
            same_as=f"{ACTOR}.ppo_{key}",
        )
        for part in (ROLLOUT, f"args.{REF}")
        for key in listed("micro_batch_size micro_batch_size_per_gpu max_token_len_per_gpu")
    ),
)
NO_EFFECT = (
    under(
        "args",
        """config_path config_dir hydra.* ray_kwargs.* ray_init.* global_profiler.* custom_reward_function.*
        reward_manager.* reward.reward_manager.* reward.custom_reward_function.* reward.num_workers
        reward_model.* reward.reward_kwargs.* critic.* distillation.* transfer_queue.* algorithm.kl_ctrl.*
        algorithm.kl_penalty algorithm.gamma algorithm.lam algorithm.norm_adv_by_std_in_grpo
        algorithm.filter_groups.* algorithm.rollout_correction.* algorithm.use_pf_ppo algorithm.pf_ppo.*
        algorithm._target_ algorithm.rollout_is algorithm.rollout_is_threshold data.*
        actor_rollout_ref.nccl_timeout actor_rollout_ref.ref.* trainer.*""",
    )
    | under(
        MODEL,
        """tokenizer_path hf_config_path use_shm trust_remote_code custom_chat_template external_lib
        fused_kernel_options.* tiled_mlp.* mtp.* _target_""",
    )
    | under(
        ACTOR,
        """_target_ optim.* clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c loss_agg_mode loss_scale_factor
        policy_loss.* kl_loss_type shuffle checkpoint.* profiler.* use_torch_compile data_loader_seed rollout_n
        tau_pos tau_neg entropy_from_logits_with_chunking entropy_checkpointing use_rollout_log_probs""",
    )
    | under(
        FSDP,
        """use_orig_params seed use_torch_compile _target_ entropy_from_logits_with_chunking
        mixed_precision.buffer_dtype forward_only dtype full_determinism""",
    )
    | under(
        ROLLOUT,
        """_target_ mode temperature top_k top_p do_sample prompt_length response_length ignore_eos
        enable_prefix_caching load_format layered_summon dtype log_prob_use_dynamic_bsz disable_log_stats
        val_kwargs.* calculate_log_probs agent.* trace.* multi_turn.* n_gpus_per_node checkpoint_engine.*
        engine_kwargs.* seed logprobs_mode scheduling_policy skip_tokenizer_init multi_stage_wake_up
        prometheus.* limit_images over_sample_rate profiler.* cudagraph_capture_sizes""",
    )
)

TOOL = Tool(
    name="verl",
    label="verl",
    distribution="verl",
    place=8,
    chains={"args": (("verl", "ppo_trainer"),)},
    rules=RULES,
    later=LATER,
    no_effect=NO_EFFECT,
    marks=("actor_rollout_ref",),
    trains=frozenset(["main_ppo"]),
    modules=("verl.trainer",),
    is_told_prompts=True,
    counts_gpus=True,
    reads_overrides=True,
    is_told_padding=True,
)
