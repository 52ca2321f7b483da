"""Cohere and Cohere 2: attention and MLP side by side on one norm.

Source: transformers 5.23, models/cohere, models/cohere2, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Why, WindowKeys
from estimator.families.family import Family, ModuleClass, NormKind, Rotary
from estimator.families.layer_kinds import SLIDING
from estimator.families.layers import (
    GATED_MLP,
    attention_tree,
    gated_mlp,
    late_norm_attention,
    widely_normed_tree,
)
from estimator.families.modules import Tree, tree
from estimator.families.reader import Config
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _tree(model: Model) -> Tree:
    attention = widely_normed_tree if model.qk_norm else attention_tree
    return tree(
        "@DecoderLayer",
        self_attn=attention(model),
        mlp=GATED_MLP.tree(model),
        input_layernorm=parts.norm(model),
    )


def cohere(b: Block, x: Tensor) -> Tensor:
    """One norm, then attention and a gated MLP side by side: Cohere and Cohere 2."""
    residual = x
    x = b.norm("input_layernorm", x)
    attended = late_norm_attention(b, x)
    hidden = gated_mlp(b, x)
    return op.add(b.tape, op.add(b.tape, residual, attended), hidden)


def _turned(read: Config, kinds: tuple[str, ...], window: int) -> tuple[bool, ...]:
    """``if self.sliding_window is not None``, modeling_cohere2.py."""
    return tuple(kind == SLIDING for kind in kinds)


_COHERE = Family(
    model_type="cohere",
    config=ConfigClass(tied=True, flags={"qk_norm": ("use_qk_norm", False)}),
    prefix="Cohere",
    layer=ModuleClass("", _tree, cohere),
    norm=NormKind.LAYER_NORM_IN_STEPS,
    rotary=Rotary.FLOAT32_PAIRS,
    scales_logits=True,
    unread={Why.NUMBERS: "logit_scale"},
)
FAMILIES = (
    _COHERE,
    replace(
        _COHERE,
        model_type="cohere2",
        config=ConfigClass(
            tied=True,
            windows=WindowKeys(default=4096, pattern=4),
            rotary_layers=_turned,
            wrappers=("aya_vision", "cohere2_vision"),
        ),
        prefix="Cohere2",
        unread={
            Why.NUMBERS: "logit_scale",
            Why.OFF: "_sliding_window_pattern sliding_window_pattern",
            Why.UNREAD: """
            layer_switch order_of_interleaved_layers position_embedding_type rotary_pct use_embedding_sharing
            use_gated_activation use_parallel_block use_parallel_embedding use_qk_norm""",
        },
    ),
)
