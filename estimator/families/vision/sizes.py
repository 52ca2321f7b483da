"""A tower's sizes, read from a ``vision_config``."""

from __future__ import annotations

from typing import Any

from estimator.families.reader import MOST_HEADS, MOST_LAYERS, Config
from estimator.values.specs import Model


def tower_of(
    read: Config,
    model_type: str,
    *,
    hidden: int,
    heads: int,
    layers: int,
    width: int,
    act: str,
    hidden_key: str = "hidden_size",
    **more: Any,
) -> Model:
    """The tower as a model of a family of its own, with these defaults; ``more``: further fields, or others.

    Source: transformers 5.23, models/<model_type>/configuration_<model_type>.py, the vision config's defaults.
    """
    size = read.whole(hidden_key, default=hidden)
    number = read.whole("num_heads", "num_attention_heads", default=heads, most=MOST_HEADS)
    depth = read.whole("depth", "num_hidden_layers", default=layers, most=MOST_LAYERS)
    fields = {
        "hidden_size": size,
        "intermediate_size": read.whole("intermediate_size", default=width),
        "num_key_value_heads": number,
        "head_dim": size // number,
        "hidden_act": read.text("hidden_act", default=act),
        **more,
    }
    return Model(
        model_type=model_type,
        vocab_size=0,
        num_hidden_layers=depth,
        num_attention_heads=number,
        **fields,
    )
