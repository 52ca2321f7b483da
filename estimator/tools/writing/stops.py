"""What a tool can be told and stops at: its own checks of a config, each with the sentence that says what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from estimator.tools.rules import Value
from estimator.values.refusals import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A combination of keys at which a tool stops before it trains."""

    tool: str
    when: Callable[[Mapping[str, Value]], bool]
    says: str
    source: str


def _is_packed(keys: Mapping[str, Value]) -> bool:
    return keys.get("method") == "qlora" or bool(keys.get("load_in_8bit"))


def _has_pairs(keys: Mapping[str, Value]) -> bool:
    return keys.get("objective") in ("dpo", "kto", "orpo")


def _fsdp(keys: Mapping[str, Value]) -> int:
    """The version of FSDP; 0 where there is none."""
    of_fsdp = keys.get("strategy") in ("fsdp", "fsdp_grad_op", "hsdp")
    return int(keys.get("fsdp_version", 2)) if of_fsdp else 0


def _generates(keys: Mapping[str, Value]) -> bool:
    return keys.get("objective") in ("grpo", "rloo")


def _rows_of_step(keys: Mapping[str, Value]) -> int:
    """Rows of one optimizer's step over all GPUs."""
    each = keys["per_device_train_batch_size"] * keys["gradient_accumulation_steps"]
    return int(each * keys["num_gpus"])


STOPS: tuple[Stop, ...] = (
    Stop(
        tool="axolotl",
        when=lambda keys: (
            _fsdp(keys) == 2 and keys.get("optim") in ("adamw_8bit", "adamw_bnb_8bit")
        ),
        says="axolotl stops at optim adamw_bnb_8bit with FSDP 2; take paged_adamw_8bit.",
        source="axolotl 0.19.0, utils/schemas/validation.py, check_fsdp2_w_8bit_optimizer",
    ),
    Stop(
        tool="axolotl",
        when=lambda keys: (
            _fsdp(keys) == 1
            and keys.get("offload_param") == "cpu"
            and "8bit" in str(keys.get("optim"))
        ),
        says="axolotl stops at an 8-bit optimizer with FSDP 1 and offload; take fsdp_version 2.",
        source="axolotl 0.19.0, utils/schemas/validation.py, check_fsdp_offload_w_8bit_optimizer",
    ),
    Stop(
        tool="axolotl",
        when=lambda keys: _fsdp(keys) == 2 and _is_packed(keys) and _has_pairs(keys),
        says="axolotl stops at a quantised base with FSDP 2 and preferences; take fsdp_version 1, or ZeRO.",
        source="axolotl 0.19.0, utils/schemas/validation.py, check_fsdp2_base_model_quant_rl",
    ),
    Stop(
        tool="axolotl",
        when=lambda keys: (
            keys.get("num_gpus", 1) > 1
            and keys.get("method") == "qlora"
            and _has_pairs(keys)
            and bool(keys.get("gradient_checkpointing") and keys.get("use_reentrant"))
        ),
        says="axolotl stops at use_reentrant with QLoRA and preferences on several GPUs; set use_reentrant false.",
        source="axolotl 0.19.0, utils/schemas/validation.py, check_rl_config_gradient_checkpointing",
    ),
    Stop(
        tool="verl",
        when=lambda keys: _generates(keys) and _rows_of_step(keys) % keys["num_generations"] != 0,
        says="verl takes whole prompts in a step: change per_device_train_batch_size or gradient_accumulation_steps, "
        "whose product over all num_gpus is no multiple of num_generations.",
        source="verl 0.9.1, trainer/ppo/ray_trainer.py:1352",
    ),
    Stop(
        tool="verl",
        when=lambda keys: (
            _generates(keys)
            and keys["steps_per_generation"] % keys["gradient_accumulation_steps"] != 0
        ),
        says="verl stops where a generation is not a whole number of steps; make steps_per_generation a multiple of "
        "gradient_accumulation_steps.",
        source="verl 0.9.1, utils/tensordict_utils.py, make_iterator",
    ),
    Stop(
        tool="verl",
        when=lambda keys: keys.get("method") == "lora" and keys["lora_r"] > 512,
        says="verl stops at lora_r above 512, the most that its vLLM takes; lower it.",
        source="verl 0.9.1, workers/rollout/vllm_rollout/utils.py, get_vllm_max_lora_rank",
    ),
)


def check_stops(tool: str, keys: Mapping[str, Value]) -> None:
    """``InputError`` where the tool would stop at these keys of ours.

    >>> check_stops("axolotl", {"strategy": "fsdp", "optim": "adamw_torch"})
    """
    for says in _found(tool, keys):
        raise InputError(says)


def _found(tool: str, keys: Mapping[str, Value]) -> Iterator[str]:
    if keys.get("mixed_precision") == "fp8":
        yield "mixed_precision fp8 is read from files but not written to them yet; set it in accelerate's own config."
    yield from (stop.says for stop in STOPS if stop.tool == tool and stop.when(keys))
