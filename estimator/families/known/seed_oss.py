"""Seed-OSS: Llama's layer with dropouts.

Source: transformers 5.23, models/seed_oss, modeling_*.py.
"""

from __future__ import annotations

from estimator.families.config_class import ConfigClass
from estimator.families.family import Family
from estimator.families.known.llama import LLAMA_LAYER
from estimator.families.reader import Config


def _biases(read: Config) -> tuple[bool, bool, bool]:
    return (
        read.flag("attention_bias", default=True),
        read.flag("attention_out_bias", default=False),
        read.flag("mlp_bias", default=False),
    )


FAMILIES = (
    Family(
        model_type="seed_oss",
        config=ConfigClass(
            key_value_heads=8,
            head_dim=128,
            biases=_biases,
            dropouts=(None, ("attention_dropout", 0.1), ("residual_dropout", 0.1)),
            dropout_modules=(True, False, False),
        ),
        prefix="SeedOss",
        layer=LLAMA_LAYER,
        like="llama",
        has_tp_plan=True,
    ),
)
