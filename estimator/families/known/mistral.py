"""Mistral, Ministral 3 and Mixtral: Llama's layer with a window, scaled queries, or experts.

Source: transformers 5.23, models/ministral3, models/mistral, models/mixtral, modeling_*.py.
"""

from __future__ import annotations

from estimator.families.config_class import ConfigClass, ExpertKeys, Fields, WindowKeys
from estimator.families.config_rules import fixed_biases
from estimator.families.experts import MIXTRAL_SPARSE
from estimator.families.family import Family, Kernels
from estimator.families.known.llama import LLAMA_LAYER
from estimator.families.layers import ATTENTION, decoder_layer
from estimator.families.reader import Config


def _own(read: Config, fields: Fields) -> Fields:
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
        prefix="Ministral3",
        layer=LLAMA_LAYER,
        like="llama",
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
        prefix="Mistral",
        layer=LLAMA_LAYER,
        like="llama",
        liger=Kernels(),
        has_tp_plan=True,
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
        prefix="Mixtral",
        layer=decoder_layer(ATTENTION, MIXTRAL_SPARSE),
        like="llama",
        liger=Kernels(experts=True),
        merges_experts=True,
        float32_shares=True,
        peft_targets=("q_proj", "v_proj"),
    ),
)
