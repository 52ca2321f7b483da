"""GPT-NeoX (Pythia): attention and MLP on two norms of one input.

Source: transformers 5.23, models/gpt_neox, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Fields, Why
from estimator.families.family import Family, ModuleClass, NormKind
from estimator.families.layers import fused_attention, plain_mlp
from estimator.families.modules import LAYERS, LEAF
from estimator.families.reader import Config
from estimator.tape import operators as op
from estimator.tape.tape import Tensor

_MLP = plain_mlp("dense_h_to_4h", "dense_4h_to_h", "up down act")


_TREE = parts.made(
    "@Layer",
    input_layernorm=parts.biased_norm,
    post_attention_layernorm=parts.biased_norm,
    post_attention_dropout=LEAF,
    post_mlp_dropout=LEAF,
    attention=parts.made("@Attention", query_key_value=parts.fused_qkv, dense=parts.output),
    mlp=_MLP.tree,
)
_ROOT = parts.causal_lm(
    "gpt_neox",
    embed_in=parts.tokens,
    emb_dropout=LEAF,
    layers=LAYERS,
    final_layer_norm=parts.biased_norm,
    rotary_emb=parts.rotary,
)


def gpt_neox(b: Block, x: Tensor) -> Tensor:
    """Attention and MLP read two norms of the same input, or run in sequence if the config says so."""
    fused, output = "attention.query_key_value", "attention.dense"
    attended = fused_attention(b, b.norm("input_layernorm", x), fused, output, head_major=True)
    attended = op.dropout(b.tape, attended, b.model.resid_pdrop)
    if b.model.parallel_residual:
        hidden = _MLP.forward(b, b.norm("post_attention_layernorm", x))
        hidden = op.dropout(b.tape, hidden, b.model.resid_pdrop)
        return op.add(b.tape, op.add(b.tape, hidden, attended), x)
    attended = op.add(b.tape, attended, x)
    hidden = _MLP.forward(b, b.norm("post_attention_layernorm", attended))
    hidden = op.dropout(b.tape, hidden, b.model.resid_pdrop)
    return op.add(b.tape, hidden, attended)


def _biases(read: Config) -> tuple[bool, bool, bool]:
    attention = read.flag("attention_bias", default=True)
    return attention, attention, True


def _own(read: Config, fields: Fields) -> Fields:
    key = "partial_rotary_factor"
    default = read.share("rotary_pct", default=0.25)
    nested = read.part("rope_parameters").share(key, default=default)
    return {key: read.share(key, default=nested)}


FAMILIES = (
    Family(
        model_type="gpt_neox",
        config=ConfigClass(
            one_head_each=True,
            derived_head_dim=True,
            hidden_act="gelu",
            biases=_biases,
            dropouts=(("hidden_dropout", 0.0), ("attention_dropout", 0.0), ("hidden_dropout", 0.0)),
            flags={"parallel_residual": ("use_parallel_residual", True)},
            own=_own,
        ),
        prefix="GPTNeoX",
        layer=ModuleClass("", _TREE, gpt_neox),
        root=_ROOT,
        norm=NormKind.LAYER_NORM,
        unread={Why.NUMBERS: "rotary_emb_base", Why.OFF: "rotary_pct"},
    ),
)
