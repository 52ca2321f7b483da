"""The keys of a setup that a tool can be told and that a run like it has a use for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from estimator.tools.defaults import TOOLS
from estimator.tools.known.trl import GENERATES, taking
from estimator.tools.lists import listed
from estimator.tools.rules import Value, Values
from estimator.values.keys import KEYS
from estimator.values.later_keys import LATER
from estimator.values.methods import Method
from estimator.values.objective import OBJECTIVES, having
from estimator.values.strategies import Strategy

NOT_OF_A_TOOL = frozenset(
    listed("""v tool tool_version gpu model_class padded completion_fraction max_prompt_length images_per_example
    image_height image_width image_sizes text_tokens videos_per_example video_frames video_height
    video_width num_train_examples mean_tokens_per_example usd_per_gpu_hour mfu pace pace_from pace_shares
    optim_state_dtype""")
)
"""Keys that follow from the data, the prices and the model's files, or that only ask what if: no config has them."""
_OF_ADAPTERS = tuple(
    key.name
    for key in KEYS
    if key.facet == "adapters"
    and key.name not in {"method", "model_class"}
    and not key.name.startswith(("bnb_", "freeze_"))
)
_OF_4BIT = ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage")
_OF_CHECKPOINTS = (
    "use_reentrant",
    "checkpoint_every_n_layers",
    "offload_checkpoints",
    "selective_checkpointing",
)
_OF_FSDP = ("fsdp_version", "fsdp_state_dict_type", "checkpoint_around_fsdp")
_OF_OBJECTIVES: Mapping[str, frozenset[str]] = {
    **{key: taking(key) for key in ("precompute_ref_log_probs", "loss_type", "beta")},
    "loss": frozenset(word for word, objective in OBJECTIVES.items() if objective.has_vocabulary),
    **dict.fromkeys(
        listed("""max_completion_length num_generations steps_per_generation num_iterations use_vllm vllm_mode
        vllm_gpu_memory_utilization vllm_enable_sleep_mode vllm_tensor_parallel_size
        vllm_data_parallel_size vllm_max_num_seqs vllm_max_num_batched_tokens generation_offload_model
        generation_offload_optimizer use_transformers_continuous_batching"""),
        frozenset(GENERATES),
    ),
    "num_labels": frozenset(having("asks_labels")),
    "mini_batch_size": frozenset(having("compares_rows")),
    "label_smoothing_factor": frozenset(["sft", "sequence_classification"]),
}
"""Keys that only these objectives have a use for."""
USUAL: Mapping[str, Values] = {
    "beta": {word: objective.beta for word, objective in OBJECTIVES.items()},
    "loss_type": {word: objective.usual_loss_type for word, objective in OBJECTIVES.items()},
}


def sayable(keys: Values, tool: str = "") -> dict[str, Value]:
    """A setup's keys with their defaults, without those that it has no use for, and in one spelling.

    ``tool``: by its name, one that has words for keys that others leave to the data.

    >>> "lora_r" in sayable({"method": "full"}), sayable({"method": "lora"})["lora_r"]
    (False, 16)
    >>> [sayable({"objective": objective})["loss"] for objective in ("sft", "dpo", "kto", "grpo", "orpo")]
    ['standard', 'chunked_trl', 'chunked_trl', 'chunked_trl', 'standard']
    """
    values = {**DEFAULTS, **{key: _plain(value) for key, value in keys.items()}}
    objective = values["objective"]
    if values["loss"] is None:
        usual = "liger" if values["use_liger_kernel"] else "standard"
        values["loss"] = "chunked_trl" if objective in having("has_reference") else usual
    for key, usual_of in USUAL.items():
        if values[key] is None:
            values[key] = usual_of.get(objective)
    values["steps_per_generation"] = (
        values["steps_per_generation"] or values["gradient_accumulation_steps"]
    )
    if values["optim"] == "sgd_momentum":
        values |= {"optim": "sgd", "optim_args": "momentum=0.9"}
    unused = {*NOT_OF_A_TOOL, *_unused(values)}
    has_words = TOOLS.get(tool)
    if objective in GENERATES and has_words and has_words.is_told_prompts:
        unused -= {"max_length", "max_prompt_length"}
        prompt = values["max_length"] - values["max_completion_length"]
        values["max_prompt_length"] = values["max_prompt_length"] or prompt
    if has_words and has_words.is_told_padding:
        unused.discard("padded")
    return {key: value for key, value in values.items() if key not in unused}


def _unused(values: Values) -> Iterator[str]:
    objective = values["objective"]
    # a word that is not modelled: adapters of another kind, and nothing that FSDP or ZeRO is told
    method = next((one for one in Method if one == values["method"]), Method.LORA)
    strategy = next((one for one in Strategy if one == values["strategy"]), Strategy.NONE)
    yield from (key for key, of in _OF_OBJECTIVES.items() if objective not in of)
    if objective in GENERATES:
        yield "max_length"  # no trainer cuts the prompt of a completion that it writes itself
    if not method.has_adapters:
        yield from _OF_ADAPTERS
    if method.has_4bit_base:
        yield "load_in_8bit"
    else:
        yield from _OF_4BIT
    if not values["gradient_checkpointing"]:
        yield from _OF_CHECKPOINTS
    if values["freeze_vision"]:
        yield "vision_gradient_checkpointing"  # each tool has its own way with a frozen tower
    if values["eval_strategy"] == "no":
        yield "per_device_eval_batch_size"
    if not strategy.is_fsdp:
        yield from _OF_FSDP
    if not strategy.has_groups:
        yield "dp_replicate_size"
    if not strategy.gathers_modules:
        yield "zero3_save_16bit_model"
    if values["num_gpus"] <= values["gpus_per_node"]:
        yield "gpus_per_node"


def _plain(value: Value) -> Value:
    """As JSON has it: words for members of enums, lists for tuples; an empty one is none."""
    if isinstance(value, tuple | list | Mapping) and not value:
        return None
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value


DEFAULTS: Values = {
    **{key: value for key, value in LATER.items()},
    **{key.name: _plain(key.default) for key in KEYS},
}
"""Every key of the contract as JSON has its default."""
