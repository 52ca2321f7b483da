"""TRL's trainers: ``SFTConfig`` and its like with ``ModelConfig``, on the command line or in a script.

Source: trl 1.16.0; the lines of its defaults stand in data/tool_defaults.csv.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from estimator.tools.known import transformers
from estimator.tools.known.parallel import DEEPSPEED_FLAGS, is_on, whole
from estimator.tools.known.peft import (
    dtype_word,
    four_bits,
    modules_to_save_from,
    names,
    own_targets,
)
from estimator.tools.known.transformers import (
    OBJECTIVE_KEY,
    attention_from,
    checkpoint_dtype,
    is_4bit,
    is_8bit,
)
from estimator.tools.later import EITHER, LESS, MORE, not_modelled
from estimator.tools.lists import listed, under
from estimator.tools.rules import Entry, Rule, SoFar, Theirs, Tool, Value, Values, alike, row, same
from estimator.values.objective import OBJECTIVES, Objective, having

VERSION = "trl 1.16.0"

GENERATES = having("generates")
ASKS = tuple(word for word in having("has_reference") if word not in GENERATES)
SHARED: tuple[tuple[Callable[[Objective], object], str], ...] = (
    (
        lambda objective: objective.generates,
        """num_generations num_generations_eval ds3_gather_for_generation generation_batch_size
        steps_per_generation use_vllm vllm_mode vllm_enable_sleep_mode vllm_server_host vllm_server_port
        vllm_gpu_memory_utilization vllm_tensor_parallel_size vllm_max_model_length num_iterations epsilon_high
        reward_weights mask_truncated_completions log_completions num_completions_to_print reward_funcs
        max_completion_length max_prompt_length disable_dropout""",
    ),
    (
        lambda objective: objective.is_preference,
        "max_prompt_length truncation_mode generate_during_eval",
    ),
    (
        lambda objective: objective.has_reference and not objective.generates,
        """precompute_ref_log_probs precompute_ref_batch_size ref_model_init_kwargs reference_free
        model_adapter_name""",
    ),
    (
        lambda objective: objective.has_reference,
        "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps",
    ),
    (lambda objective: objective.loss_types, "loss_type"),
    (lambda objective: objective.offloads_activations, "activation_offloading"),
    (lambda objective: objective.beta is not None, "beta"),
    (lambda objective: not objective.generates, "max_length"),
    (lambda objective: objective.zeroes_dropout, "disable_dropout"),
)
"""Arguments that the classes of several objectives have, by what is true of them.

Source: trl 1.16, trainer/sft_config.py, dpo_config.py, kto_config.py, reward_config.py, grpo_config.py, rloo_config.py;
experimental/orpo/orpo_config.py; scripts/grpo.py; of an older TRL, trl 0.24, the same.
"""
OTHERS = {
    "ppo": "kl_coef vf_coef cliprange cliprange_value num_ppo_epochs sft_model_path",
    "gkd": "teacher_model_name_or_path lmbda seq_kd",
}
"""Trainers that are no objective here, with arguments that say so: trl 0.24, trainer/ppo_config.py, gkd_config.py."""


def arguments_of(word: str) -> frozenset[str]:
    """Arguments that a trainer's class has, or had in an older TRL; those of all classes are not here.

    >>> "beta" in arguments_of("orpo"), "beta" in arguments_of("sft"), "lmbda" in arguments_of("gkd")
    (True, False, True)
    """
    objective = OBJECTIVES.get(word)
    if objective is None or objective.trl is None:
        return frozenset(listed(OTHERS.get(word, "")))
    shared = (names for is_so, names in SHARED if is_so(objective))
    return frozenset(listed(" ".join([objective.trl.arguments, *shared])))


def taking(argument: str) -> frozenset[str]:
    """The objectives whose class has an argument."""
    return frozenset(word for word in OBJECTIVES if argument in arguments_of(word))


OF_SOME = listed("""packing max_length activation_offloading precompute_ref_log_probs loss_type beta
    max_completion_length""")
"""Keys of ours that are arguments of some classes; others are in every class."""
MOST_USED = dict.fromkeys(
    [*listed("sft dpo grpo reward kto rloo orpo cpo"), *having("trl"), *OTHERS]
)
"""The order in which one of several trainers is guessed: ours, then that of the words."""


class Guess(NamedTuple):
    """What a TRL config without its command or script trains."""

    objective: str
    says: str
    """Why, where the keys do not say it for certain; else empty."""


def objective_of(keys: Iterable[str], named: Iterable[str] = ()) -> Guess:
    """The trainer that has all these arguments; of several, the one that a word of ``named`` means, else the most used.

    TRL's parser stops at an argument that its trainer lacks (trl 1.16, scripts/utils.py, ``TrlParser``).

    >>> objective_of(["beta", "num_generations"]).objective, objective_of(["packing"]).says
    ('grpo', '')
    >>> objective_of(["beta", "max_length"]).says
    'objective is taken as dpo: beta, max_length are also arguments of kto, orpo, cpo.'
    """
    arguments = {word: arguments_of(word) for word in MOST_USED}
    telling = frozenset().union(*arguments.values())
    given = [key for key in dict.fromkeys(keys) if key in telling]
    lacks = {word: [key for key in given if key not in arguments[word]] for word in MOST_USED}
    least = min(map(len, lacks.values()))
    known: Iterable[str] = MOST_USED if given else filter(having("trl").__contains__, MOST_USED)
    fits = [word for word in known if len(lacks[word]) == least]
    words = {WORDS.get(word, word) for text in named for word in re.split(r"[\W_]+", text.lower())}
    meant = [word for word in fits if word in words]
    chosen = meant[0] if len(meant) == 1 else fits[0]
    others = [word for word in fits if word != chosen]
    if least:
        says = f"objective is taken as {chosen}, whose trainer has no {', '.join(lacks[chosen])}"
    elif not others:
        return Guess(chosen, "")
    elif not given:
        says = f"objective is taken as {chosen}: no key says which trainer it is"
    else:
        verb = "is also an argument" if len(given) == 1 else "are also arguments"
        says = f"objective is taken as {chosen}: {', '.join(given[:3])} {verb} of {', '.join(others[:3])}"
    return Guess(chosen, f"{says}{f' ({chosen} stands in a name)' if chosen in meant else ''}.")


WORDS = {"rm": "reward"}
LOSS_TYPES = {"chunked_nll": "nll"}
"""Former names: trl 1.16, trainer/sft_config.py."""


def _write_objective(values: Values) -> Values:
    word = values["objective"]
    return {"trainer.objective": word} if word in having("trl") else {}


def _model(theirs: Theirs, so_far: SoFar) -> Values:
    name = theirs.first(
        "model.pretrained_model_name_or_path", "args.model_name_or_path", "trainer.model"
    )
    name = name if isinstance(name, str) else theirs["args.model_name_or_path"]
    return {"model": name} if isinstance(name, str) and name.strip() else {}


def _has_peft_object(theirs: Theirs) -> bool:
    return theirs.has_part("peft")


def _method(theirs: Theirs, so_far: SoFar) -> Values:
    adapters = _has_peft_object(theirs) or is_on(theirs["args.use_peft"])
    packed4 = is_4bit(theirs) or is_on(theirs["args.load_in_4bit"])
    packed8 = is_8bit(theirs) or is_on(theirs["args.load_in_8bit"])
    if packed4:
        return {"method": "qlora"}
    found: dict[str, Value] = {"method": "lora" if adapters else "full"}
    return found | ({"load_in_8bit": True} if adapters and packed8 else {})


def _write_method(values: Values) -> Values:
    return {
        "args.use_peft": values["method"] != "full",
        "args.load_in_4bit": values["method"] == "qlora",
        "args.load_in_8bit": bool(values.get("load_in_8bit")) and values["method"] == "lora",
    }


def _dtype(theirs: Theirs, so_far: SoFar) -> Values:
    cast = dtype_word(theirs["call.to"])
    trainer = OBJECTIVES[so_far["objective"]].trl if so_far["objective"] in OBJECTIVES else None
    if trainer and trainer.loads_auto_dtype and not theirs.has("args.dtype"):
        own = theirs.first("args.model_init_kwargs.dtype", "model.dtype", "model.torch_dtype")
        return {"dtype": cast or dtype_word(own) or checkpoint_dtype(so_far)}
    if theirs.has_part("model"):  # a model that the script loads itself
        said = theirs.first("model.dtype", "model.torch_dtype")
    else:
        said = (
            theirs["args.model_init_kwargs.dtype"] or theirs["args.model_init_kwargs.torch_dtype"]
        )
        said = said if isinstance(said, str) else theirs.first("args.dtype", "args.torch_dtype")
    return {"dtype": cast or dtype_word(said) or checkpoint_dtype(so_far)}


def _autocast(theirs: Theirs, so_far: SoFar) -> Values:
    bf16, fp16 = theirs["args.bf16"], is_on(theirs["args.fp16"])
    if bf16 is None:
        return {"mixed_precision": "fp16" if fp16 else "bf16"}
    return {"mixed_precision": transformers.autocast_of(theirs)}


def _reentrant(theirs: Theirs, so_far: SoFar) -> Values:
    forced = so_far["method"] != "full" and so_far["strategy"] == "zero3"
    return {"use_reentrant": True} if forced and so_far["gradient_checkpointing"] else {}


def _adapter_dtype(theirs: Theirs, so_far: SoFar) -> Values:
    if so_far["method"] == "full":
        return {}
    if so_far.is_packed or so_far["strategy"] == "zero3":
        return {"autocast_adapter_dtype": False}
    return {}


def _lora(name: str, of_model_config: str, of_peft: str) -> Rule:
    """A field of ``ModelConfig``, or of the script's own ``LoraConfig``."""

    def read(theirs: Theirs, so_far: SoFar) -> Values:
        key = f"peft.{of_peft}" if _has_peft_object(theirs) else f"args.{of_model_config}"
        value = theirs[key]
        return {} if value is None else {name: value}

    return row(f"args.{of_model_config}", name, read, f"args.{of_model_config}")


def _targets(theirs: Theirs, so_far: SoFar) -> Values:
    has_own = _has_peft_object(theirs)
    given = names(theirs["peft.target_modules" if has_own else "args.lora_target_modules"])
    if isinstance(given, list) and len(given) == 1 and not has_own:
        given = given[
            0
        ]  # so PEFT takes one name for a pattern: trl 1.16, trainer/model_config.py:177
    given = given or own_targets(theirs, so_far)
    return {"lora_target_modules": given} if given else {}


def _packing(theirs: Theirs, so_far: SoFar) -> Values:
    packing = is_on(theirs["args.packing"])
    free = is_on(theirs["args.padding_free"])
    if packing and theirs["args.packing_strategy"] in ("bfd", "bfd_split"):
        free = True
    return {"packing": packing, "padding_free": free}


def _generated(theirs: Theirs, so_far: SoFar) -> Values:
    if so_far["objective"] not in GENERATES or so_far.values.get("max_length"):
        return {}
    completion = whole(theirs["args.max_completion_length"])
    prompt = whole(theirs["args.max_prompt_length"]) or USUAL_PROMPT
    return {"max_length": completion + prompt} if completion else {}


USUAL_PROMPT = 512
"""Tokens: the default of ``max_prompt_length`` while TRL had it (trl 0.24, trainer/grpo_config.py)."""


def _loss(theirs: Theirs, so_far: SoFar) -> Values:
    word = so_far["objective"]
    if word is not None and word not in having("is_causal_lm") + having("has_reference"):
        return {}
    smoothed = theirs["args.label_smoothing_factor"] not in (None, 0, 0.0)
    if smoothed or theirs.has("trainer.compute_loss_func"):
        return {"loss": "standard"}
    return {"loss": "chunked_trl"}


def _loss_type(theirs: Theirs, so_far: SoFar) -> Values:
    if so_far["objective"] in (None, *having("is_causal_lm")) and not theirs.has("args.loss_type"):
        return {}
    if theirs["args.cpo_alpha"] == 0:  # of CPO's loss types, all are alike then
        return {"loss_type": "alphapo"}
    value = theirs["args.loss_type"]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return {} if value is None else {"loss_type": LOSS_TYPES.get(str(value), value)}


def whole_logits(
    says: str, source: str, loss: str = "standard", objectives: tuple[str, ...] = ASKS
) -> Rule:
    """The loss of preferences in a tool whose trainers of them are older than TRL 1.15: its logits are whole."""

    def read(theirs: Theirs, so_far: SoFar) -> Values:
        return {"loss": loss} if so_far["objective"] in objectives else {}

    return row("", "loss", read, says=says, source=source)


RULES = (
    row("trainer.objective", "objective", transformers.objective_named, _write_objective),
    *transformers.RULES,
    row("args.model_name_or_path trainer.model", "model", _model, "args.model_name_or_path"),
    row(
        "args.use_peft args.load_in_4bit args.load_in_8bit",
        "method load_in_8bit",
        _method,
        _write_method,
    ),
    row(
        "args.dtype args.torch_dtype args.model_init_kwargs.dtype args.model_init_kwargs.torch_dtype",
        "dtype",
        _dtype,
        "args.dtype",
        says="TRL loads a model that is given by its name in float32",
        source=f"{VERSION}, trl/trainer/utils.py:1332",
    ),
    row(
        "args.bf16 args.fp16",
        "mixed_precision",
        _autocast,
        transformers.PRECISION.write,
        says="TRL turns bf16 on unless fp16 is",
        source=f"{VERSION}, trl/trainer/base_config.py:105",
    ),
    row(
        "",
        "use_reentrant",
        _reentrant,
        says="with adapters under ZeRO-3 TRL forces reentrant checkpoints",
        source=f"{VERSION}, trl/trainer/sft_trainer.py:880",
    ),
    attention_from(
        "args.attn_implementation",
        "args.model_init_kwargs.attn_implementation",
        "model.attn_implementation",
    ),
    row(
        "args.packing args.packing_strategy args.padding_free",
        "packing padding_free",
        _packing,
        "args.packing args.padding_free",
        says="packing by best fit decreasing makes batches padding-free",
        source=f"{VERSION}, trl/trainer/sft_trainer.py:917",
    ),
    transformers.PADDED,
    same(
        "args.max_length",
        "max_length",
        *("args.max_seq_length", "trainer.max_seq_length"),
        as_=whole,
        says="TRL cuts longer rows off",
    ),
    row(
        "args.max_completion_length args.max_prompt_length",
        "max_length",
        _generated,
        says=f"TRL cuts no prompt here: {USUAL_PROMPT} tokens are taken; set max_length to the longest",
        source=f"{VERSION}, trl/trainer/grpo_config.py",
    ),
    _lora("lora_r", "lora_r", "r"),
    _lora("lora_alpha", "lora_alpha", "lora_alpha"),
    _lora("lora_dropout", "lora_dropout", "lora_dropout"),
    row(
        "args.lora_target_modules peft.target_modules",
        "lora_target_modules",
        _targets,
        "args.lora_target_modules",
        says="PEFT's own modules for this family get an adapter",
    ),
    modules_to_save_from("args.lora_modules_to_save"),
    modules_to_save_from("peft.modules_to_save"),
    _lora("use_dora", "use_dora", "use_dora"),
    _lora("target_parameters", "lora_target_parameters", "target_parameters"),
    four_bits(
        "args.bnb_4bit_quant_type", "args.use_bnb_nested_quant", "args.bnb_4bit_quant_storage"
    ),
    row(
        "",
        "autocast_adapter_dtype",
        _adapter_dtype,
        says="TRL keeps the adapters of a packed base, and all under ZeRO-3, in bfloat16",
        source=f"{VERSION}, trl/trainer/sft_trainer.py:911",
    ),
    row(
        "args.label_smoothing_factor trainer.compute_loss_func",
        "loss",
        _loss,
        says="TRL computes the loss in chunks and never holds the logits whole",
        source=f"{VERSION}, trl/trainer/sft_trainer.py:1144",
    ),
    *alike("args", "activation_offloading precompute_ref_log_probs beta max_prompt_length"),
    row("args.loss_type args.cpo_alpha", "loss_type", _loss_type, "args.loss_type"),
    same(
        "args.use_transformers_continuous_batching",
        "use_transformers_continuous_batching",
        "args.use_transformers_paged",
    ),
    *alike(
        "args",
        """num_generations max_completion_length steps_per_generation num_iterations use_vllm vllm_mode
        vllm_gpu_memory_utilization vllm_enable_sleep_mode vllm_tensor_parallel_size
        vllm_max_model_length ds3_gather_for_generation num_labels""",
    ),
)

LATER = (
    *transformers.LATER,
    *not_modelled(
        "args",
        ("completion_only_loss", "Only the completion is scored: the head sees fewer tokens", LESS),
        (
            "assistant_only_loss",
            "Only the assistant's words are scored: the head sees fewer tokens",
            LESS,
        ),
        ("teacher_model_init_kwargs", "A teacher is kept", MORE),
        ("pad_to_multiple_of", "Rows are padded further", MORE, "auto"),
        ("router_aux_loss_coef", "The routers' scores are kept for a second loss", MORE, 0, 0.0),
        ("sync_ref_model", "The reference follows the policy", EITHER),
        ("generation_batch_size", "More is generated at once", EITHER),
        ("num_generations_eval", "Evaluation generates otherwise", EITHER),
        ("cast_lm_head_to_fp32", "The head is float32", MORE),
        ("use_liger_loss use_liger_kernel_loss", "Liger's fused loss", LESS),
        ("model_adapter_name", "Several adapters on one base", MORE),
        ("ref_adapter_name", "The reference is an adapter on the same base", LESS),
        ("force_use_ref_model", "The reference is a model of its own", MORE),
        ("use_logits_to_keep", "Only the completion's logits are computed", LESS),
        ("use_weighting", "WPO weighs by the policy's own probabilities", MORE),
        (
            "transformers_continuous_batching_config",
            "The paged cache takes another share of the free memory",
            EITHER,
        ),
    ),
    *not_modelled(
        "args",
        ("eval_packing", "Evaluation packs otherwise than training", EITHER),
        harmless=(None,),
    ),
)

# the recipes of open-r1 and of the alignment handbook have keys of their own, from dataset_mixture to
# soft_punish_cache: open_r1/configs.py, alignment/configs.py
NO_EFFECT = transformers.NO_EFFECT | under(
    "args",
    """model_init_kwargs.quantization_config model_init_kwargs.device_map model_revision trust_remote_code
    lora_task_type use_rslora chat_template_path dataset_text_field dataset_kwargs.* dataset_num_proc
    dataset_batch_size eos_token pad_token truncation_mode shuffle_dataset dataset_name dataset_config
    dataset_train_split dataset_test_split dataset_streaming ignore_bias_buffers
    gradient_checkpointing_use_reentrant datasets.* streaming test_split_size f_divergence_type
    f_alpha_divergence_coef label_smoothing simpo_gamma alpha padding_value is_encoder_decoder
    loss_weights ld_alpha discopop_tau ref_model_mixup_alpha
    ref_model_sync_steps disable_dropout desirable_weight undesirable_weight center_rewards_coefficient
    precompute_ref_batch_size temperature top_p top_k min_p generation_kwargs.* chat_template_kwargs.*
    repetition_penalty cache_implementation vllm_model_impl vllm_structured_outputs_regex vllm_server_base_url
    vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port epsilon delta epsilon_high
    sapo_temperature_neg sapo_temperature_pos importance_sampling_level reward_weights
    multi_objective_aggregation scale_rewards mask_truncated_completions top_entropy_quantile
    max_tool_calling_iterations vllm_importance_sampling_correction vllm_importance_sampling_mode
    vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_cap
    off_policy_mask_threshold use_bias_correction_kl log_completions log_multimodal num_completions_to_print
    log_unique_prompts log_completions_hub_repo normalize_advantages reward_clip_range cliprange vf_coef kl_coef
    gamma lam whiten_rewards num_sft_epochs reward_funcs reward_model_name_or_path config tools
    dataset_mixture.* dataset_mixer.* dataset_splits dataset_configs chat_template system_prompt benchmarks
    callbacks hub_model_revision overwrite_hub_revision push_to_hub_revision wandb_entity wandb_project
    wandb_run_group wandb_log_unique_prompts dataset_prompt_column cosine_min_value_wrong
    cosine_max_value_wrong cosine_min_value_correct cosine_max_value_correct cosine_max_len
    repetition_n_grams repetition_max_penalty code_language code_eval_test_batch_size
    code_eval_scoring_mode parallel_code_exec_per_proc e2b_router_url morph_router_url code_provider
    ioi_provider max_completion_len soft_punish_cache
    system_prompt_path model_init_kwargs.trust_remote_code model_init_kwargs.revision
    model_init_kwargs.use_cache entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max
    entropy_coef_delta entropy_target""",
)

CHAINS = {
    **transformers.CHAINS,
    "args": (
        ("trl", "SFTConfig"),
        ("trl", "_BaseConfig"),
        ("transformers", "TrainingArguments"),
        ("trl", "ModelConfig"),
    ),
}

OF_LAUNCH = DEEPSPEED_FLAGS - {"gradient_accumulation_steps"} | frozenset(
    listed("""num_processes num_machines multi_gpu use_fsdp use_deepspeed use_megatron_lm use_parallelism_config
        mixed_precision num_cpu_threads_per_process enable_cpu_affinity gpu_ids machine_rank main_process_ip
        main_process_port main_training_function rdzv_backend rdzv_conf same_network downcast_bf16 config_file cpu""")
)
LAUNCH_PREFIXES = ("fsdp_", "fp8_", "dynamo_", "parallelism_config_", "megatron_lm_")


def of_launch(name: str) -> bool:
    """Whether ``trl sft`` hands an argument on to ``accelerate launch``: those that its own classes do not have.

    Source: trl 1.16, cli/commands/training.py:64; accelerate 1.15, commands/launch.py, ``launch_command_parser``.

    >>> of_launch("num_processes"), of_launch("fsdp_version"), of_launch("fsdp_config")
    (True, True, False)
    """
    return name in OF_LAUNCH or (name.startswith(LAUNCH_PREFIXES) and name != "fsdp_config")


SHIPPED: Mapping[str, Values] = {
    "single_gpu": {"distributed_type": "NO", "num_processes": 1},
    "multi_gpu": {"distributed_type": "MULTI_GPU", "num_processes": 8},
    **{
        f"zero{stage}": {
            "distributed_type": "DEEPSPEED",
            "num_processes": 8,
            "deepspeed_config.zero_stage": stage,
        }
        for stage in (1, 2, 3)
    },
    **{
        f"fsdp{version}": {
            "distributed_type": "FSDP",
            "num_processes": 8,
            "fsdp_config.fsdp_version": version,
        }
        for version in (1, 2)
    },
}
"""The files that TRL ships, by name: trl 1.16, accelerate_configs."""

SCRIPTS = having("trl")
"""Its scripts, and the words of its command, that train."""
OLDER = frozenset({"args.max_seq_length", "trainer.max_seq_length"})
"""Arguments that TRL 1.x no longer has: trl 1.16, trainer/sft_config.py, sft_trainer.py."""


def _stops_at(given: Mapping[str, Entry], values: Values) -> Iterator[str]:
    packs = ("args.load_in_4bit", "args.load_in_8bit")
    alone = [given[key] for key in packs if key in given and is_on(given[key].value)]
    adapts = "args.use_peft" in given and (
        given["args.use_peft"].is_unknown or is_on(given["args.use_peft"].value)
    )
    if alone and not adapts and not any(key.startswith("peft.") for key in given):
        yield f"{alone[0].at} trains nothing without adapters, and Trainer stops there; set use_peft true."
    free = given.get("args.padding_free")
    if free is not None and is_on(free.value) and not values.get("packing"):
        length = given.get("args.max_length")
        if length is None or length.value is not None:
            yield f"{free.at} without packing needs max_length null, or TRL stops; turn packing on."


def _usual_prompt(given: Mapping[str, Entry], values: Values) -> Iterator[str]:
    """The length of prompts is not said, and with it not that of rows."""
    generates = values.get("objective") in GENERATES
    if generates and "max_length" in values and "args.max_prompt_length" not in given:
        yield f"No key says how long prompts are: {USUAL_PROMPT} tokens are taken; set max_length to the longest row."


def _older(given: Mapping[str, Entry], values: Values) -> Iterator[str]:
    """A script is of a TRL whose defaults are not the ones taken here."""
    old = next((entry for key, entry in given.items() if key in OLDER), None)
    if old is not None:
        yield (
            f"{old.shown} is a word of an older TRL, and the defaults are those of {VERSION}: before 1.15 the "
            "logits are whole, so set loss standard where an older one runs this."
        )


TOOL = Tool(
    name="trl",
    label="TRL's SFTTrainer",
    distribution="trl",
    place=1,
    chains=CHAINS,
    rules=RULES,
    later=LATER,
    no_effect=NO_EFFECT,
    is_called=True,
    marks=(
        *listed("""model_name_or_path dataset_name use_peft dataset_train_split lora_target_modules
        reward_model_name_or_path script_args"""),
        *sorted(frozenset().union(*map(arguments_of, MOST_USED))),
    ),
    programs=frozenset(["trl"]),
    trains=frozenset(SCRIPTS),
    modules=("trl.scripts",),
    scripts=((rf"trl/scripts/({'|'.join(SCRIPTS)})\.py$", ""),),
    word_key=OBJECTIVE_KEY,
    for_objective=lambda objective: tool_of(objective),  # noqa: PLW0108 — it stands below, and replaces this table
    hands_on=of_launch,
    shipped=SHIPPED,
    stops_at=_stops_at,
    guesses=_usual_prompt,
    notes=_older,
)


def tool_of(objective: str) -> Tool:
    """TRL's table with the defaults of the trainer for an objective."""
    trainer = OBJECTIVES[objective if objective in having("trl") else "sft"].trl
    assert trainer is not None
    own = [("trl", f"{trainer.name}Config")] if objective in having("trl") else []
    rest = [config for config in CHAINS["args"] if config != ("trl", "SFTConfig")]
    has = arguments_of(objective)
    lacks = {key for key in OF_SOME if key not in has}
    rules = tuple(replace(rule, write=None) if lacks & {*rule.ours} else rule for rule in RULES)
    return replace(
        TOOL,
        label=f"TRL's {trainer.name}Trainer",
        chains={**CHAINS, "args": (*own, *rest)},
        rules=rules,
    )
