"""Falcon: a custom linear class, parallel attention and MLP, ALiBi or rotary embeddings.

Source: transformers 5.23, models/falcon, modeling_*.py.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Fields, Why
from estimator.families.config_rules import one_bias
from estimator.families.family import Family, ModuleClass, NormKind
from estimator.families.layers import plain_mlp
from estimator.families.modules import LAYERS, LEAF, Tree, tree
from estimator.families.own_attention import Attended, attention_scores, plus_mask, weighted
from estimator.families.reader import MOST_HEADS, Config
from estimator.tape import operators as op
from estimator.tape.attention import AttentionShape, scaled_dot_product
from estimator.tape.tape import Tape, Tensor
from estimator.values.specs import Model

_MLP = plain_mlp("dense_h_to_4h", "dense_4h_to_h", "up act down")


def _tree(model: Model) -> Tree:
    linears = (parts.fused_qkv(model), parts.output(model), *parts.up_and_down(model))
    qkv, output, up, down = (replace(linear, own_class=True) for linear in linears)
    present = falcon_norm_names(model)
    order = ("ln_attn", "ln_mlp", "post_attention_layernorm", "input_layernorm")
    return tree(
        "@DecoderLayer",
        self_attention=tree(
            "@Attention", query_key_value=qkv, dense=output, attention_dropout=LEAF
        ),
        mlp=tree("@MLP", dense_h_to_4h=up, act=LEAF, dense_4h_to_h=down),
        **{name: parts.biased_norm(model) for name in order if name in present},
    )


_ROOT = parts.causal_lm(
    "transformer",
    word_embeddings=parts.tokens,
    h=LAYERS,
    ln_f=parts.biased_norm,
    rotary_emb=parts.rotary,
)


def falcon_norm_names(model: Model) -> tuple[str, ...]:
    """Names of one Falcon layer's norms (no unit; per layer).

    One for Falcon 7B and 11B, whose attention and MLP read the same norm; two of its own kind for 40B and 180B; the
    classic two for RefinedWeb models without a parallel residual.

    Source: transformers 5.23 models/falcon/modeling_falcon.py, FalconDecoderLayer.__init__.

    >>> from dataclasses import replace
    >>> falcon_7b = Model(model_type="falcon", vocab_size=65024, hidden_size=4544, intermediate_size=18176,
    ...                   num_hidden_layers=32, num_attention_heads=71, num_key_value_heads=1, head_dim=64,
    ...                   parallel_residual=True)
    >>> falcon_norm_names(falcon_7b)
    ('input_layernorm',)
    >>> falcon_norm_names(replace(falcon_7b, new_decoder_architecture=True))
    ('ln_attn', 'ln_mlp')
    """
    if model.new_decoder_architecture and model.num_ln_in_parallel_attn == 2:
        return ("ln_attn", "ln_mlp")
    if model.parallel_residual or model.new_decoder_architecture:
        return ("input_layernorm",)
    return ("input_layernorm", "post_attention_layernorm")


def falcon(b: Block, x: Tensor) -> Tensor:
    """Attention and MLP side by side on one norm (7B) or two (40B, 180B); one after the other in RefinedWeb."""
    residual = x
    if b.has("ln_attn"):
        normed, mlp_input = b.norm("ln_attn", x), b.norm("ln_mlp", x)
    else:
        normed = b.norm("input_layernorm", x)
        mlp_input = normed
    attended = falcon_attention(b, normed)
    if b.has("post_attention_layernorm"):
        # `dropout_add(attention_output, residual, self.config.attention_dropout)`
        dropped = op.dropout(b.tape, attended, b.model.attn_pdrop)
        residual = op.add(b.tape, residual, dropped)
        del dropped
        mlp_input = b.norm("post_attention_layernorm", residual)
        hidden = _MLP.forward(b, mlp_input)
    else:
        hidden = op.add(b.tape, _MLP.forward(b, mlp_input), attended)
    return op.add(b.tape, residual, op.dropout(b.tape, hidden, b.model.resid_pdrop))


def falcon_attention(b: Block, x: Tensor) -> Tensor:
    """One key-value head (7B), some (40B, 180B, 11B: copied for every query head before the rotation), or all (RW)."""
    shape = b.attention_shape()
    qkv = b.linear("self_attention.query_key_value", x)
    q, k, v = _falcon_heads(b, qkv)
    q, k = b.rotate(q, k)
    if shape.implementation.keeps_scores:
        attend = _falcon_eager if b.rotary is not None else _falcon_eager_alibi
        out, weights = attend(b.tape, q, k, v, b.mask, shape, x.width)
        b.hold(weights)
        del weights
    else:
        out = scaled_dot_product(b.tape, q, k, v, b.mask, shape)
    out = b.linear("self_attention.dense", out)
    del qkv
    return out


def _falcon_heads(b: Block, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tape, model, rows = b.tape, b.model, b.rows
    query, key = rows * model.query_size, rows * model.key_value_size
    q = op.part(tape, fused, query)
    if not model.new_decoder_architecture and model.num_key_value_heads > 1:
        return q, op.part(tape, fused, key), op.part(tape, fused, key)
    k, v = (op.pick(tape, fused, key) for _ in range(2))
    if not model.new_decoder_architecture:
        return q, k, v
    groups = model.num_attention_heads // model.num_key_value_heads
    picked = k, v
    k, v = (op.expand_heads(tape, x, groups) for x in picked)
    q, k, v = op.clone(tape, q), op.clone(tape, k), op.clone(tape, v)
    return q, k, v


def _falcon_eager(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    shape: AttentionShape,
    width: int,
) -> Attended:
    """The scores are divided in place; the softmax is in the dtype of the layer's input."""
    scores = op.scale_in_place(tape, attention_scores(tape, q, k, shape))
    masked = plus_mask(tape, scores, mask)
    weights = op.softmax(tape, op.cast(tape, masked, width))
    del scores, masked
    return weighted(tape, weights, v, shape), weights


def _falcon_eager_alibi(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    shape: AttentionShape,
    width: int,
) -> Attended:
    """In float32: the scores, these with ALiBi (scaled in place), and the mask on top."""
    product = attention_scores(tape, q, k, shape)
    raised = op.cast(tape, product, 4)
    logits = op.scale_in_place(tape, op.add_number(tape, raised))
    masked = plus_mask(tape, logits, mask)
    weights = op.softmax(tape, op.cast(tape, masked, width))
    del masked
    weights = op.dropout(tape, weights, shape.dropout)
    out = weighted(tape, weights, v, shape)
    del product, raised, logits
    return out, weights


def _has_new_decoder(read: Config) -> bool:
    return read.flag("new_decoder_architecture", default=False)


def _key_value_heads(read: Config, heads: int) -> int:
    if _has_new_decoder(read):
        return read.whole("num_kv_heads", "n_head_kv", default=heads, most=MOST_HEADS)
    return 1 if read.flag("multi_query", default=True) else heads


def _own(read: Config, fields: Fields) -> Fields:
    new = _has_new_decoder(read)
    return {
        "parallel_residual": read.flag("parallel_attn", default=True) or new,
        "new_decoder_architecture": new,
    }


def _turned(read: Config, kinds: tuple[str, ...], window: int) -> tuple[bool, ...]:
    return (not read.flag("alibi", default=False),) * len(kinds)


FAMILIES = (
    Family(
        model_type="falcon",
        config=ConfigClass(
            tied=True,
            key_value_heads_of=_key_value_heads,
            derived_head_dim=True,
            hidden_act="gelu",
            activation_key="activation",
            width=lambda read, hidden: read.whole("ffn_hidden_size", default=4 * hidden),
            biases=one_bias("bias", default=False),
            rotary_layers=_turned,
            dropouts=(None, ("attention_dropout", 0.0), ("hidden_dropout", 0.0)),
            dropout_modules=(True, True, False),
            own=_own,
        ),
        prefix="Falcon",
        layer=ModuleClass("", _tree, falcon),
        root=_ROOT,
        norm=NormKind.LAYER_NORM,
        always_masked=True,
        returns_weights=True,
        alibi_in_mask=True,
        unread={
            Why.OFF: "n_head_kv num_kv_heads num_ln_in_parallel_attn",
            Why.UNREAD: "apply_residual_connection_post_layernorm",
        },
        own_linear="FalconLinear",
    ),
)
