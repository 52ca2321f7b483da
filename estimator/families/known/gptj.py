"""GPT-J: one norm for attention and MLP, and its own eager attention.

Source: transformers 5.23, models/gptj, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Fields, Why
from estimator.families.config_rules import fixed_biases
from estimator.families.family import Family, LargeBuffer, ModuleClass, NormKind
from estimator.families.layers import plain_mlp
from estimator.families.modules import LAYERS, LEAF, Tree, TreeTensor, Width, tree
from estimator.families.own_attention import Attended, attention_scores, plus_mask, weighted
from estimator.families.packed import FLOAT32_BYTES
from estimator.families.reader import Config
from estimator.families.rotary import rotate_pairs
from estimator.tape import operators as op
from estimator.tape.attention import AttentionShape
from estimator.tape.tape import Tape, Tensor
from estimator.values.specs import Model

_MLP = plain_mlp("fc_in", "fc_out", "up down act dropout")


def _tree(model: Model) -> Tree:
    turned = int(model.head_dim * model.partial_rotary_factor)
    elements = model.max_position_embeddings * turned
    return tree(
        "@Block",
        ln_1=parts.biased_norm(model),
        attn=tree(
            "@Attention",
            TreeTensor("embed_positions", elements, Width.FLOAT32),
            attn_dropout=LEAF,
            resid_dropout=LEAF,
            **parts.projections(model, "kvqo", "out_proj"),
        ),
        mlp=_MLP.tree(model),
    )


def gptj(b: Block, x: Tensor) -> Tensor:
    """GPT-J: one LayerNorm, parallel attention and MLP; its own eager attention."""
    residual = x
    x = b.norm("ln_1", x)
    attended = gptj_attention(b, x)
    hidden = op.dropout(b.tape, _MLP.forward(b, x), b.model.resid_pdrop)
    return op.add(b.tape, op.add(b.tape, attended, hidden), residual)


def gptj_attention(b: Block, x: Tensor) -> Tensor:
    """Every layer gathers its own sines and cosines and expands them for k and again for q; scores in float32."""
    tape, model, shape = b.tape, b.model, b.attention_shape()
    query, key = b.linear("attn.q_proj", x), b.linear("attn.k_proj", x)
    value = b.linear("attn.v_proj", x)
    rotary = int(model.head_dim * model.partial_rotary_factor)
    tape.operation = "rotary tables of this layer"
    repeated = tape.new(shape.batch * model.max_position_embeddings * rotary, 4)
    positions = tape.new(shape.length * rotary, op.INDEX_BYTES)
    tables = tape.new(shape.length * rotary, key.width)
    turned = key.elements // model.head_dim * rotary
    key_turned, key_passed = op.part(tape, key, turned), op.part(tape, key, key.elements - turned)
    query_turned, query_passed = (
        op.part(tape, query, turned),
        op.part(tape, query, query.elements - turned),
    )
    key_turned = rotate_pairs(tape, key_turned, tables)
    query_turned = rotate_pairs(tape, query_turned, tables)
    key = op.concatenate(tape, [key_turned, key_passed])
    query = op.concatenate(tape, [query_turned, query_passed])
    out, weights = _gptj_attend(tape, query, key, value, b.mask, shape)
    b.hold(weights)
    del weights
    out = b.linear("attn.out_proj", out)
    del repeated, positions
    return op.dropout(tape, out, model.resid_pdrop)


def _gptj_attend(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, shape: AttentionShape
) -> Attended:
    q, k = op.cast(tape, q, 4), op.cast(tape, k, 4)
    weights = attention_scores(tape, q, k, shape)
    weights = op.scale(tape, weights)
    weights = plus_mask(tape, weights, mask)
    weights = op.softmax(tape, op.cast(tape, weights, 4) if tape.autocast_active else weights)
    weights = op.cast(tape, weights, v.width)
    weights = op.dropout(tape, weights, shape.dropout)
    return weighted(tape, weights, v, shape), weights


ROTARY_DIM = 64
"""``GPTJConfig``; null turns whole heads."""


def _own(read: Config, fields: Fields) -> Fields:
    head_dim = fields["head_dim"]
    default = head_dim if "rotary_dim" in read.values else min(ROTARY_DIM, head_dim)
    rotary = read.whole("rotary_dim", default=default, most=head_dim)
    return {"partial_rotary_factor": rotary / head_dim}


def _table_a_layer(model: Model) -> tuple[LargeBuffer, ...]:
    rotary = int(model.head_dim * model.partial_rotary_factor)
    table = model.max_position_embeddings * rotary * FLOAT32_BYTES
    return (LargeBuffer("attn.embed_positions", model.num_hidden_layers, table),)


FAMILIES = (
    Family(
        model_type="gptj",
        config=ConfigClass(
            one_head_each=True,
            derived_head_dim=True,
            hidden_act="gelu_new",
            activation_key="activation_function",
            width=lambda read, hidden: read.whole("n_inner", default=4 * hidden),
            biases=fixed_biases(False, False, True),
            dropouts=(("embd_pdrop", 0.0), ("attn_pdrop", 0.0), ("resid_pdrop", 0.0)),
            dropout_modules=(True, True, True),
            fixed={"lm_head_bias": True},
            own=_own,
        ),
        prefix="GPTJ",
        layer=ModuleClass("", _tree, gptj),
        root=parts.causal_lm(
            "transformer", wte=parts.tokens, drop=LEAF, h=LAYERS, ln_f=parts.biased_norm
        ),
        norm=NormKind.LAYER_NORM,
        rotary=None,
        eager_only=True,
        returns_weights=True,
        unread={Why.UNREAD: "n_ctx rotary scale_attn_weights gradient_checkpointing"},
        large_buffers=_table_a_layer,
    ),
)
