"""OPT: LayerNorms before or after, learned positions, projected embeddings.

Source: transformers 5.23, models/opt, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from typing import Any

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_rules import one_bias
from estimator.families.family import (
    Architecture,
    ConfigClass,
    Family,
    FamilyModules,
    NormKind,
    TreeLayout,
    Why,
)
from estimator.families.layers import separate_attention
from estimator.families.modules import OPT_POSITION_OFFSET, Embedding, Linear, Module
from estimator.families.reader import KEY_NOT_MODELLED, Config
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _opt_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "self_attn_layer_norm", bias=True),
        *parts.separate_attention(
            model,
            bias=model.attention_bias,
            output_bias=model.attention_output_bias,
            output="out_proj",
        ),
        *parts.norms(model, "final_layer_norm", bias=True),
        *parts.plain_mlp(model, "fc1", "fc2", bias=model.mlp_bias),
    )


def _opt_outer(model: Model) -> tuple[Module, ...]:
    width = model.word_embed_proj_dim or model.hidden_size
    projected = width != model.hidden_size
    return (
        Embedding("embed_tokens", model.vocab_size, width),
        Embedding(
            "embed_positions",
            parts.learned_positions(model, OPT_POSITION_OFFSET),
            model.hidden_size,
        ),
        *((Linear("project_in", width, model.hidden_size),) if projected else ()),
        *(parts.norms(model, "final_layer_norm", bias=True) if model.do_layer_norm_before else ()),
        *((Linear("project_out", model.hidden_size, width),) if projected else ()),
        *parts.head(model, width),
    )


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


def _own(read: Config, fields: dict[str, Any]) -> dict[str, Any]:
    hidden = fields["hidden_size"]
    width = read.whole("word_embed_proj_dim", default=hidden)
    before = read.flag("do_layer_norm_before", default=True)
    if before and read.flag("_remove_final_layer_norm", default=False):
        raise KEY_NOT_MODELLED(
            name="_remove_final_layer_norm", value="true", model_type="opt", instead="false"
        )
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
            position_offset=OPT_POSITION_OFFSET,
            biases=one_bias("enable_bias", default=True),
            dropouts=(None, ("attention_dropout", 0.0), ("dropout", 0.1)),
            dropout_modules=(True, False, False),
            own=_own,
        ),
        modules=FamilyModules(_opt_modules, _opt_outer),
        tree=TreeLayout(
            "OPT",
            "model:@Model(decoder:@Decoder(embed_tokens embed_positions project_out? project_in? final_layer_norm? "
            "layers:ModuleList(*:@DecoderLayer(self_attn:@Attention(k_proj v_proj q_proj out_proj) activation_fn "
            "self_attn_layer_norm fc1 fc2 final_layer_norm)))) lm_head",
        ),
        architecture=Architecture(opt, NormKind.LAYER_NORM, rotary=None),
        unread={Why.UNREAD: "activation_dropout"},
        finds_final_norm=False,
        sensitive=frozenset({"layerdrop"}),
    ),
)
