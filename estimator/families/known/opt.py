"""OPT: LayerNorms before or after, learned positions, projected embeddings.

Source: transformers 5.23, models/opt, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Fields, Why
from estimator.families.config_rules import one_bias
from estimator.families.family import Family, ModuleClass, NormKind
from estimator.families.layers import separate_attention
from estimator.families.modules import LAYERS, LEAF, Tree, tree
from estimator.families.reader import Config
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model

POSITION_OFFSET = 2
"""Rows beyond the positions: ``OPTLearnedPositionalEmbedding.offset``."""


def _tree(model: Model) -> Tree:
    up, down = parts.up_and_down(model)
    return tree(
        "@DecoderLayer",
        self_attn=tree("@Attention", **parts.projections(model, "kvqo", "out_proj")),
        activation_fn=LEAF,
        self_attn_layer_norm=parts.biased_norm(model),
        fc1=up,
        fc2=down,
        final_layer_norm=parts.biased_norm(model),
    )


def _root(model: Model) -> Tree:
    hidden, width = model.hidden_size, model.word_embed_proj_dim or model.hidden_size
    projected = width != hidden
    decoder = tree(
        "@Decoder",
        embed_tokens=parts.tokens(model, width),
        embed_positions=parts.learned_positions(model, POSITION_OFFSET),
        project_out=parts.linear(hidden, width) if projected else None,
        project_in=parts.linear(width, hidden) if projected else None,
        final_layer_norm=parts.biased_norm(model) if model.do_layer_norm_before else None,
        layers=LAYERS,
    )
    return parts.causal_lm("model", decoder=decoder)(model)


def opt(b: Block, x: Tensor) -> Tensor:
    """LayerNorms before (or, OPT 350M, after) attention and MLP; learned positions."""
    before = b.model.do_layer_norm_before
    residual = x
    if before:
        x = b.norm("self_attn_layer_norm", x)
    x = separate_attention(b, x, output="out_proj")
    x = op.add(b.tape, residual, op.dropout(b.tape, x, b.model.resid_pdrop))
    if not before:
        x = b.norm("self_attn_layer_norm", x)
    residual = x
    if before:
        x = b.norm("final_layer_norm", x)
    x = b.linear("fc1", x)
    x = b.activation(x)
    x = b.linear("fc2", x)
    x = op.add(b.tape, residual, op.dropout(b.tape, x, b.model.resid_pdrop))
    return x if before else b.norm("final_layer_norm", x)


def _own(read: Config, fields: Fields) -> Fields:
    hidden = fields["hidden_size"]
    width = read.whole("word_embed_proj_dim", default=hidden)
    before = read.flag("do_layer_norm_before", default=True)
    if before and read.flag("_remove_final_layer_norm", default=False):
        raise read.refused("_remove_final_layer_norm", "false")
    return {
        "word_embed_proj_dim": 0 if width == hidden else width,
        "do_layer_norm_before": before,
        "norms_without_weight": not read.flag("layer_norm_elementwise_affine", default=True),
    }


FAMILIES = (
    Family(
        model_type="opt",
        config=ConfigClass(
            tied=True,
            one_head_each=True,
            derived_head_dim=True,
            hidden_act="relu",
            activation_key="activation_function",
            width=lambda read, hidden: read.whole("ffn_dim"),
            position_offset=POSITION_OFFSET,
            biases=one_bias("enable_bias", default=True),
            dropouts=(None, ("attention_dropout", 0.0), ("dropout", 0.1)),
            dropout_modules=(True, False, False),
            own=_own,
        ),
        prefix="OPT",
        layer=ModuleClass("", _tree, opt),
        root=_root,
        norm=NormKind.LAYER_NORM,
        rotary=None,
        unread={Why.UNREAD: "activation_dropout"},
        finds_final_norm=False,
        sensitive=frozenset({"layerdrop"}),
    ),
)
