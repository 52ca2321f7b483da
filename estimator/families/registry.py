"""The families by ``model_type``, and the only place that compares it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from estimator.families.family import Family
from estimator.values.refusals import NOT_MODELLED, Refusal, RefusedError
from estimator.values.specs import Model

FAMILIES: dict[str, Family] = {}
"""Every modelled family, registered by ``families/known``."""

MODELLED = FAMILIES.keys()
"""The values of ``model_type`` that have a family."""


def register(*families: Family) -> None:
    """Registers families, at most one per ``model_type``."""
    for family in families:
        assert family.model_type not in FAMILIES, (
            f"two families have model_type {family.model_type}"
        )
        FAMILIES[family.model_type] = family


TOWERS: dict[str, Family] = {}
"""The families of towers' layers, which are not models by themselves."""


def register_tower(family: Family) -> None:
    """Registers the layers of a tower; towers of several checkpoints may share them."""
    TOWERS[family.model_type] = family


def is_tower(model: Model) -> bool:
    """Whether these are the layers of a vision tower (a yes or no)."""
    return model.model_type in TOWERS


def family_of(model: Model) -> Family:
    """The model's family; refuses families that are not modelled, by name."""
    if is_tower(model):
        return TOWERS[model.model_type]
    check_modelled(model.model_type)
    return FAMILIES[model.model_type]


_STATE_SPACE = (
    "its state-space layers train with kernels of mamba-ssm and causal-conv1d, "
    "whose memory differs from that of the PyTorch code"
)


_LINEAR_ATTENTION = (
    "its linear attention trains with kernels of flash-linear-attention, "
    "whose memory differs from that of the PyTorch code"
)


BEYOND: Mapping[str, str] = {
    **dict.fromkeys(
        ["bamba", "falcon_mamba", "jamba", "mamba", "mamba2", "zamba", "zamba2"], _STATE_SPACE
    ),
    **dict.fromkeys(("kimi_linear", "minimax", "olmo_hybrid"), _LINEAR_ATTENTION),
    "mllama": "some of its layers attend to the image",
    "mllama_text_model": "some of its layers attend to the image",
    "recurrent_gemma": "two of three layers are recurrent",
    "rwkv": "its layers are recurrent",
    "xlstm": "its layers are recurrent",
}
"""Architectures that people ask for but that are not modelled, with the reason."""


WITHOUT_CLASSES = frozenset(
    {
        *("apertus", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "falcon_h1", "gemma3n_text"),
        *("gemma4_text", "glm4_moe", "glm4_moe_lite", "granite", "granitemoe", "granitemoehybrid"),
        *("internlm3", "lfm2", "llama4_text", "nemotron_h", "olmoe", "qwen3_5_moe_text"),
    }
)
"""Members of ``MODELLED`` without a class for sequence classification: transformers 5.23, models/auto/modeling_auto.py,
``MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES``."""


BALANCED = frozenset(
    {
        *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "phimoe", "granitemoe"),
        *("granitemoehybrid", "ernie4_5_moe", "qwen3_next", "flex_olmo", "minimax", "jamba"),
    }
)
"""Families whose config class has a ``router_aux_loss_coef`` above 0: transformers 5.23, models/<model_type>/
configuration_<model_type>.py."""


def balances_experts(model_type: str) -> bool:
    """Whether TRL adds the loss that spreads tokens over experts (a yes or no; per family).

    Source: ``BALANCED``, this module; trl 1.16, trainer/sft_trainer.py, ``aux_loss_enabled``.

    >>> balances_experts("qwen3_moe"), balances_experts("deepseek_v3")
    (True, False)
    """
    return model_type in BALANCED


def is_classified(model_type: str) -> bool:
    """Whether transformers has a class for sequence classification (a yes or no; per family).

    Source: ``WITHOUT_CLASSES``, this module.

    >>> is_classified("llama"), is_classified("granite")
    (True, False)
    """
    return model_type not in WITHOUT_CLASSES


UNKNOWN_ARCHITECTURE = Refusal(
    "architecture {model_type} is not modelled{hint}; choose one of these: {names}.",
    NOT_MODELLED,
)


BEYOND_US = Refusal(
    "architecture {model_type} is not modelled: {why}; choose a model of another one.", NOT_MODELLED
)


class NotModelledError(RefusedError):
    """The architecture is not modelled."""


def beyond(model_type: str) -> NotModelledError:
    """The refusal of one of ``BEYOND`` (no unit; per model).

    Source: BEYOND, this module.

    >>> str(beyond("rwkv"))
    "architecture 'rwkv' is not modelled: its layers are recurrent; choose a model of another one."
    """
    return NotModelledError(BEYOND_US, model_type=repr(model_type), why=BEYOND[model_type])


def check_modelled(model_type: str) -> None:
    """Refuses an architecture that is not modelled, with the reason or similar names (no unit; per model).

    Source: MODELLED, this module.

    >>> check_modelled("llama")
    >>> check_modelled("bert")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    estimator.families.registry.NotModelledError: architecture 'bert' is not modelled; choose one of these: ...
    """
    if model_type in MODELLED:
        return
    if model_type in BEYOND:
        raise beyond(model_type)
    near = get_close_matches(model_type, sorted(MODELLED))
    hint = f" (similar: {', '.join(near)})" if near else ""
    names = ", ".join(sorted(MODELLED))
    raise NotModelledError(
        UNKNOWN_ARCHITECTURE, model_type=repr(model_type), hint=hint, names=names
    )
