"""Unsloth's notebooks and scripts: ``FastLanguageModel`` before one of TRL's trainers, which it patches.

Source: unsloth 2026.10.9; the lines of its defaults stand in data/tool_defaults.csv. What its own kernels save is not
modelled: its layers are played as transformers' own.
"""

from __future__ import annotations

from estimator.tools.known import transformers, trl
from estimator.tools.known.parallel import is_on, whole
from estimator.tools.known.peft import dtype_word, modules_to_save_from, targets_from
from estimator.tools.later import EITHER, LESS, MORE, not_modelled
from estimator.tools.lists import under
from estimator.tools.rules import SoFar, Theirs, Tool, Value, Values, alike, always, row, same

VERSION = "unsloth 2026.10.9"


def _method(theirs: Theirs, so_far: SoFar) -> Values:
    if is_on(theirs["unsloth.full_finetuning"]):
        return {"method": "full"}
    if is_on(theirs["unsloth.load_in_8bit"]):
        return {"method": "lora", "load_in_8bit": True}
    if is_on(theirs["unsloth.load_in_16bit"]) or not is_on(theirs["unsloth.load_in_4bit"]):
        return {"method": "lora"}
    return {"method": "qlora"}


def _dtype(theirs: Theirs, so_far: SoFar) -> Values:
    dtype = dtype_word(theirs["unsloth.dtype"]) or "bfloat16"
    return {"dtype": dtype, "mixed_precision": "fp16" if dtype == "float16" else "bf16"}


def _checkpointing(theirs: Theirs, so_far: SoFar) -> Values:
    part = "unsloth_peft" if theirs.has_part("unsloth_peft") else "unsloth"
    word = theirs[f"{part}.use_gradient_checkpointing"]
    on = word == "unsloth" or is_on(word)
    found: dict[str, Value] = {"gradient_checkpointing": on}
    return found | ({"offload_checkpoints": True} if word == "unsloth" else {})


def _length(theirs: Theirs, so_far: SoFar) -> Values:
    own = theirs.first("unsloth.max_seq_length")
    cut = (
        theirs["args.max_length"]
        if theirs.has("args.max_length")
        else theirs["args.max_seq_length"]
    )
    asked = whole(cut) or whole(own)
    return {"max_length": asked} if asked else {}


RULES = (
    *(
        rule
        for rule in trl.RULES
        if not set(rule.ours) & {"use_reentrant", "autocast_adapter_dtype", "target_parameters"}
    ),
    same("unsloth.model_name", "model", "unsloth.pretrained_model_name_or_path"),
    row(
        "unsloth.full_finetuning unsloth.load_in_4bit unsloth.load_in_8bit unsloth.load_in_16bit",
        "method load_in_8bit",
        _method,
        says="Unsloth packs into 4 bits",
    ),
    row(
        "unsloth.dtype args.bf16 args.fp16",
        "dtype mixed_precision",
        _dtype,
        says="bfloat16 weights under bfloat16 autocast on a card that has it",
        source=f"{VERSION}, unsloth/models/llama.py:3602",
    ),
    row(
        "unsloth_peft.use_gradient_checkpointing unsloth.use_gradient_checkpointing",
        "gradient_checkpointing offload_checkpoints",
        _checkpointing,
        says="Unsloth checkpoints, and keeps the checkpoints in the host's memory",
    ),
    row("unsloth.max_seq_length args.max_length args.max_seq_length", "max_length", _length),
    transformers.PADDED,
    same("unsloth_peft.r", "lora_r"),
    *alike("unsloth_peft", "lora_alpha lora_dropout"),
    targets_from(
        "unsloth_peft.target_modules",
        instead=lambda theirs, so_far: None,
        says="the seven linear layers of a block get an adapter",
    ),
    modules_to_save_from("unsloth_peft.modules_to_save"),
    *alike("unsloth_peft", "bias layers_to_transform target_parameters"),
    always(
        "bnb_4bit_quant_type",
        "nf4",
        "Unsloth packs into nf4 with double quantisation",
        f"{VERSION}, unsloth/models/llama.py",
    ),
    always(
        "bnb_4bit_use_double_quant",
        True,
        "Unsloth packs with double quantisation",
        f"{VERSION}, unsloth/models/llama.py",
    ),
    always(
        "loss",
        "chunked_trl",
        "Unsloth computes the loss in chunks of its own; TRL's stand for them",
        f"{VERSION}, unsloth/models/llama.py",
    ),
)

LATER = (
    *trl.LATER,
    *not_modelled(
        "unsloth",
        ("fast_inference", "vLLM shares the card for generation", MORE),
        ("gpu_memory_utilization", "How much vLLM takes of the card", MORE, 0.5),
        ("float8_kv_cache", "vLLM's cache is in 8 bits", LESS),
        ("load_in_fp8", "The base is in 8-bit floats", LESS),
        ("qat_scheme", "Weights are quantised as they train", MORE),
        ("unsloth_tiled_mlp", "The MLP is computed in tiles", LESS),
        ("offload_embedding", "The embedding rests on the CPU", LESS),
        ("float32_mixed_precision", "Trained weights are float32", MORE),
        ("resize_model_vocab", "The embedding has more rows", MORE),
        ("device_map", "Layers lie on different devices", LESS, "sequential", "auto"),
    ),
    *not_modelled(
        "unsloth_peft",
        ("bias", "The base's biases are trained, too", MORE, "none"),
        ("loftq_config", "Adapters begin from LoftQ", EITHER),
        ("init_lora_weights", "Adapters begin otherwise", EITHER, True),
        ("qat_scheme", "Weights are quantised as they train", MORE),
        ("finetune_vision_layers", "The tower has adapters, too", MORE),
    ),
    *not_modelled(
        "unsloth_peft",
        ("finetune_language_layers", "The text has no adapters", LESS, True),
        ("finetune_attention_modules", "Attention has no adapters", LESS, True),
        ("finetune_mlp_modules", "The MLP has no adapters", LESS, True),
        harmless=(None,),
    ),
    *not_modelled(
        "args",
        ("embedding_learning_rate", "The embedding has its own optimizer group", EITHER),
        ("vllm_sampling_params", "How vLLM generates", EITHER),
    ),
)
NO_EFFECT = (
    trl.NO_EFFECT
    | under(
        "unsloth",
        """token fix_tokenizer trust_remote_code revision use_exact_model_name random_state max_lora_rank
        disable_log_stats text_only attn_implementation auto_model whisper_language whisper_task return_logits
        fullgraph unsloth_force_compile tokenizer_name cache_dir local_files_only rope_scaling.*
        device_map_planner_kwargs.*""",
    )
    | under(
        "unsloth_peft",
        """random_state max_seq_length use_rslora task_type layers_pattern temporary_location loftq_config.*
        ensure_weight_tying""",
    )
)

CHAINS = {
    **trl.CHAINS,
    "args": (("unsloth", "replacements"), *trl.CHAINS["args"]),
    "unsloth": (("unsloth", "FastLanguageModel.from_pretrained"),),
    "unsloth_peft": (("unsloth", "FastLlamaModel.get_peft_model"),),
}
TOOL = Tool(
    name="unsloth",
    label="Unsloth",
    distribution="unsloth",
    place=5,
    chains=CHAINS,
    rules=RULES,
    later=LATER,
    no_effect=NO_EFFECT,
)
