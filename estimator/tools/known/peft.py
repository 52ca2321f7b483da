"""PEFT's ``LoraConfig`` and ``adapter_config.json``; and bitsandbytes through transformers' ``BitsAndBytesConfig``."""

from __future__ import annotations

from collections.abc import Callable

from estimator.tools.known.parallel import is_on
from estimator.tools.later import EITHER, LESS, MORE, not_modelled
from estimator.tools.lists import listed, under
from estimator.tools.rules import Rule, SoFar, Theirs, Value, Values, Write, alike, row, same
from estimator.values.specs import ALL_LINEAR

CHAINS = {
    "peft": (("peft", "LoraConfig"),),
    "peft_map": (("peft", "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING"),),
    "bnb": (("transformers", "BitsAndBytesConfig.__init__"),),
}


def own_targets(theirs: Theirs, so_far: SoFar) -> Value:
    """What PEFT adapts where nobody names modules: its own list for the model's type; None where it has none.

    Source: peft 0.21.2, utils/constants.py:67.
    """
    return theirs[f"peft_map.{so_far.model.model_type}"] if so_far.model else None


def names(value: Value) -> Value:
    """Module names as the contract has them: the word for all, or a list without doubles.

    >>> names("all_linear"), names("q_proj,v_proj"), names(["q_proj", "q_proj"]), names(".*self_attn.*")
    ('all-linear', ['q_proj', 'v_proj'], ['q_proj'], '.*self_attn.*')
    """
    if isinstance(value, str):
        if value.replace("_", "-") == ALL_LINEAR:
            return ALL_LINEAR
        if any(character in value for character in "*^$()[]|\\"):
            return value
        value = [*filter(None, map(str.strip, value.split(",")))]
    if isinstance(value, list | tuple):
        return list(dict.fromkeys(map(str, value))) or None
    return value


def targets_from(
    key: str,
    *all_of_them: str,
    instead: Callable[[Theirs, SoFar], Value] = own_targets,
    write: Write | str = "",
    says: str = "PEFT's own modules for this family get an adapter",
) -> Rule:
    """The modules that get an adapter, by a key of theirs.

    ``all_of_them``: words for every linear layer, also as a list's one item; ``instead``: those where none is named.
    """
    words = [*all_of_them, *([word] for word in all_of_them)]

    def read(theirs: Theirs, so_far: SoFar) -> Values:
        given = theirs[key]
        given = ALL_LINEAR if given in words else names(given) or instead(theirs, so_far)
        return {"lora_target_modules": given} if given else {}

    return row(key, "lora_target_modules", read, write or key, says=says)


def all_linear(theirs: Theirs, so_far: SoFar) -> Value:
    """Every linear layer, where a tool's own default is so."""
    return ALL_LINEAR


def modules_to_save_from(key: str) -> Rule:
    """Modules that are trained whole, by a key of theirs."""

    def read(theirs: Theirs, so_far: SoFar) -> Values:
        given = names(theirs[key])
        return {"modules_to_save": given} if given else {}

    return row(key, "modules_to_save", read, key)


LORA = (
    same("peft.r", "lora_r"),
    *alike("peft", "lora_alpha lora_dropout"),
    targets_from("peft.target_modules"),
    modules_to_save_from("peft.modules_to_save"),
    *alike(
        "peft",
        "use_dora lora_bias bias layers_to_transform rank_pattern exclude_modules target_parameters",
    ),
    same("call.autocast_adapter_dtype"),
)

LATER = (
    *not_modelled(
        "peft",
        ("trainable_token_indices", "Rows of the embedding are trained beside the adapters", MORE),
        ("layer_replication", "Layers are repeated, each with adapters of its own", MORE),
        (
            "init_lora_weights",
            "The adapters begin from a decomposition of the weights, which loading takes memory for",
            MORE,
            True,
            "gaussian",
        ),
        ("peft_type", "Another kind of adapter than LoRA is trained", EITHER, "LORA", "lora"),
        ("use_qalora", "QA-LoRA pools the inputs of its adapters", MORE),
        ("alora_invocation_tokens", "Activated LoRA keeps adapters off a part of each row", MORE),
        ("ensure_weight_tying", "Copies of tied modules are tied again", MORE),
        ("eva_config", "EVA begins from activations of the data", MORE),
        ("corda_config", "CorDA begins from covariances of the data", MORE),
    ),
)

NO_EFFECT = under(
    "peft",
    """task_type inference_mode base_model_name_or_path revision fan_in_fan_out use_rslora layers_pattern
    alpha_pattern megatron_config megatron_core loftq_config qalora_group_size auto_mapping runtime_config.*
    peft_version lora_ga_config arrow_config use_bdlora velora_config""",
)

# --- bitsandbytes -------------------------------------------------------------------------------


def dtype_word(value: Value) -> Value:
    """A dtype however it is written; None where it is left to the checkpoint.

    >>> dtype_word("torch.bfloat16"), dtype_word("bf16"), dtype_word("auto"), dtype_word("half")
    ('bfloat16', 'bfloat16', None, 'float16')
    """
    if not isinstance(value, str):
        return None
    word = value.removeprefix("torch.").lower()
    word = {
        "bf16": "bfloat16",
        "fp16": "float16",
        "half": "float16",
        "fp32": "float32",
        "float": "float32",
    }.get(word, word)
    return None if word in ("auto", "", "none") else word


def four_bits(kind: str, double: str, storage: str, says: str = "") -> Rule:
    """How bitsandbytes packs into 4 bits, by three keys of theirs; those of a script's own config win over others."""

    def read(theirs: Theirs, so_far: SoFar) -> Values:
        if not kind.startswith("bnb.") and theirs.has_part("bnb"):
            return {}
        return {
            "bnb_4bit_quant_type": theirs[kind],
            "bnb_4bit_use_double_quant": is_on(theirs[double]),
            "bnb_4bit_quant_storage": dtype_word(theirs[storage]) or "uint8",
        }

    keys = " ".join([kind, double, storage])
    return row(keys, PACKING, read, keys, says=says)


PACKING = "bnb_4bit_quant_type bnb_4bit_use_double_quant bnb_4bit_quant_storage"
BNB = (four_bits(*(f"bnb.{key}" for key in listed(PACKING))),)

BNB_LATER = (
    *not_modelled(
        "bnb",
        ("llm_int8_skip_modules", "Some modules are left unquantised", MORE),
        (
            "llm_int8_enable_fp32_cpu_offload",
            "Parts that do not fit stay in the host's memory",
            LESS,
        ),
        ("llm_int8_has_fp16_weight", "8-bit weights are kept in 16 bits as well", MORE),
    ),
)

BNB_NO_EFFECT = under(
    "bnb", "bnb_4bit_compute_dtype llm_int8_threshold quant_method _load_in_4bit _load_in_8bit"
)
