"""Gemma, Gemma 2 and Gemma 3: norms of 1 + weight, an embedding that is multiplied, four norms a layer.

Source: transformers 5.23, models/gemma, models/gemma2, models/gemma3, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from estimator.families import parts
from estimator.families.config_class import ConfigClass, Why, WindowKeys
from estimator.families.family import NORMS_BESIDE, Family, Kernels, NormKind, TowerClass
from estimator.families.known.llama import LLAMA_LAYER
from estimator.families.layers import (
    ATTENTION,
    GATED_MLP,
    NORMED_ATTENTION,
    decoder_layer,
    late_norm_attention,
)
from estimator.families.reader import Config
from estimator.families.towers import siglip_modules, siglip_towers

sandwiched = partial(
    decoder_layer,
    before=("input_layernorm", "pre_feedforward_layernorm"),
    after=("post_attention_layernorm", "post_feedforward_layernorm"),
)
"""A layer with norms before and after attention, before and after the MLP."""


def _sees_both_ways(read: Config) -> bool:
    """Whether every token sees those after it (Gemma and Gemma 2 have the key, and mask all the same)."""
    return read.flag("use_bidirectional_attention", default=False)


def _seen(read: Config, window: int) -> int:
    """A token sees half of it on either side: ``Gemma3TextConfig.__post_init__``."""
    return window // 2 + 1 if window and _sees_both_ways(read) else window


GEMMA = Family(
    model_type="gemma",
    config=ConfigClass(
        tied=True,
        key_value_heads=16,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        wrappers=("paligemma",),
        nested_sizes={
            "vocab_size": 256_000,
            "hidden_size": 3_072,
            "intermediate_size": 24_576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "max_position_embeddings": 8_192,
        },
    ),
    prefix="Gemma",
    layer=LLAMA_LAYER,
    root=parts.decoder(embedding=parts.scaled_tokens),
    norm=NormKind.RMS_ONE_PLUS,
    scales_embedding=True,
    scales_in_module=True,
    liger=Kernels(),
    unread={Why.SAME_BYTES: "use_bidirectional_attention"},
)
FAMILIES = (
    GEMMA,
    replace(
        GEMMA,
        model_type="gemma2",
        config=ConfigClass(
            tied=True,
            key_value_heads=4,
            head_dim=256,
            hidden_act="gelu_pytorch_tanh",
            activation_key="hidden_activation",
            windows=WindowKeys(default=4096, pattern=2, pattern_is_fixed=True),
            softcaps=(50.0, 30.0),
            nested_sizes={
                "vocab_size": 256_000,
                "hidden_size": 2_304,
                "intermediate_size": 9_216,
                "num_hidden_layers": 26,
                "num_attention_heads": 8,
                "max_position_embeddings": 8_192,
            },
        ),
        prefix="Gemma2",
        layer=sandwiched(ATTENTION, GATED_MLP),
        eager_only=True,
        liger=NORMS_BESIDE,
        unread={
            Why.NUMBERS: "query_pre_attn_scalar",
            Why.SAME_BYTES: "use_bidirectional_attention",
            Why.UNREAD: "hidden_act sliding_window_size",
        },
    ),
    replace(
        GEMMA,
        model_type="gemma3_text",
        config=ConfigClass(
            tied=True,
            key_value_heads=4,
            head_dim=256,
            hidden_act="gelu_pytorch_tanh",
            activation_key="hidden_activation",
            sizes={
                "vocab_size": 262_208,
                "num_attention_heads": 8,
                "intermediate_size": 9216,
                "max_position_embeddings": 131_072,
            },
            windows=WindowKeys(default=4096, seen=_seen, pattern=6),
            softcaps=(None, None),
            flags={"use_bidirectional_attention": ("use_bidirectional_attention", False)},
            wrappers=("gemma3",),
        ),
        prefix="Gemma3",
        layer=sandwiched(NORMED_ATTENTION._replace(forward=late_norm_attention), GATED_MLP),
        root=parts.decoder(
            class_name="@TextModel",
            embedding=parts.scaled_tokens,
            rotary_emb=parts.rotary_by_kind,
        ),
        tables_by_kind=True,
        liger=NORMS_BESIDE,
        unread={
            Why.UNREAD: "hidden_act",
            Why.NUMBERS: "query_pre_attn_scalar rope_local_base_freq",
            Why.OFF: "_sliding_window_pattern sliding_window_pattern",
        },
        with_towers=TowerClass(
            made="Gemma3ForConditionalGeneration",
            text="Gemma3ForCausalLM",
            vision_types=("siglip_vision_model",),
            read=siglip_towers,
            modules=siglip_modules,
            missing_class=lambda towers: "SiglipTextEmbeddings",
        ),
    ),
)
