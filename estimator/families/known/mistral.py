"""Mistral, Ministral 3 and Mixtral: Llama's layer with a window, scaled queries, or experts.

Source: transformers 5.23, models/ministral3, models/mistral, models/mixtral, modeling_*.py.
"""

from __future__ import annotations

from typing import Any

from estimator.families import parts
from estimator.families.config_rules import fixed_biases
from estimator.families.family import (
    ConfigClass,
    ExpertKeys,
    Family,
    Kernels,
    ModelTree,
    WindowKeys,
)
from estimator.families.known.llama import LLAMA_STEP, llama_layer
from estimator.families.modules import Tree
from estimator.families.reader import Config
from estimator.values.specs import Model

_FORMER_NAMES = ("gate", "w1", "w3", "w2")
"""As ``parts.QWEN_NAMES``, for the model types that are mapped to "mixtral"."""


def _mixture(model: Model) -> Tree:
    return parts.sparse(model, _FORMER_NAMES)


def _own(read: Config, fields: dict[str, Any]) -> dict[str, Any]:
    return {"jitters_input": read.share("router_jitter_noise") > 0}


FAMILIES = (
    Family(
        model_type="ministral3",
        config=ConfigClass(
            key_value_heads=8,
            head_dim=128,
            biases=fixed_biases(False, False, False),
            windows=WindowKeys(everywhere=True),
        ),
        tree=ModelTree("Ministral3", llama_layer),
        architecture=LLAMA_STEP,
        scales_queries=True,
    ),
    Family(
        model_type="mistral",
        config=ConfigClass(
            key_value_heads=8,
            biases=fixed_biases(False, False, False),
            windows=WindowKeys(default=4096, everywhere=True),
            wrappers=("idefics2", "mistral3"),
            nested_sizes={
                "vocab_size": 32_000,
                "hidden_size": 4_096,
                "intermediate_size": 14_336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "max_position_embeddings": 131_072,
            },
        ),
        has_tp_plan=True,
        tree=ModelTree("Mistral", llama_layer),
        architecture=LLAMA_STEP,
        liger=Kernels(),
    ),
    Family(
        model_type="mixtral",
        config=ConfigClass(
            key_value_heads=8,
            biases=fixed_biases(False, False, False),
            windows=WindowKeys(everywhere=True),
            experts=ExpertKeys(always_normed=True),
            own=_own,
        ),
        tree=ModelTree("Mixtral", parts.decoder_layer(parts.attention, _mixture)),
        architecture=LLAMA_STEP,
        liger=Kernels(experts=True),
        merges_experts=True,
        float32_shares=True,
        peft_targets=("q_proj", "v_proj"),
    ),
)
