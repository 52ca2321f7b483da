"""Keys of the contract and their values in words, and what differs between two setups."""

from __future__ import annotations

from collections.abc import Mapping

from estimator import contract

LABELS: Mapping[str, str] = {
    "model": "Model",
    "gpu": "GPU",
    "method": "Method",
    "dtype": "Weights",
    "mixed_precision": "Autocast",
    "optim": "Optimizer",
    "optim_state_dtype": "Optimizer states",
    "per_device_train_batch_size": "Micro-batch",
    "gradient_accumulation_steps": "Accumulation",
    "max_length": "Context",
    "gradient_checkpointing": "Checkpointing",
    "attn_implementation": "Attention",
    "lora_r": "Rank",
    "lora_dropout": "Dropout",
    "lora_target_modules": "Adapters on",
    "autocast_adapter_dtype": "Adapters in float32",
    "num_train_examples": "Examples",
    "num_train_epochs": "Epochs",
    "mean_tokens_per_example": "Mean tokens",
    "usd_per_gpu_hour": "Dollars per GPU-hour",
}
"""Labels of keys, if they differ from their widgets' labels."""


def label(key: str) -> str:
    """A key's label: its widget's label, else its name in words."""
    widget = contract.BY_NAME[key].widget if key in contract.BY_NAME else None
    if key in LABELS:
        return LABELS[key]
    if isinstance(widget, contract.Widget):
        return widget.label
    words = key.replace("_", " ")
    return f"{words[:1].upper()}{words[1:]}"


def value(given: object) -> str:
    """A key's value in words.

    >>> value(4096), value(True), value(None), value(["q_proj", "v_proj"])
    ('4,096', 'on', 'default', 'q_proj, v_proj')
    """
    match given:
        case bool():
            return "on" if given else "off"
        case list() | tuple():
            return ", ".join(str(item) for item in given)
        case int():
            return f"{given:,}"
        case float():
            return f"{given:,g}"
        case None:
            return "default"
        case _:
            return str(given)


def difference(of: Mapping[str, object], other: Mapping[str, object]) -> str:
    """What a setup has that another has not, in at most two keys; both as in a link.

    >>> difference({"max_length": 4096}, {"gradient_checkpointing": True})
    'context 4,096, checkpointing off'
    """
    said = [
        f"{label(key.name).lower()} {value(of.get(key.name, key.default))}"
        for key in contract.KEYS
        if of.get(key.name, key.default) != other.get(key.name, key.default)
    ]
    return ", ".join(said[:2])
