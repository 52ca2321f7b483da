"""BLOOM: LayerNorms, one fused projection, ALiBi, and its own eager attention.

Source: transformers 5.23, models/bloom, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.activations import bloom_gelu
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Why
from estimator.families.config_rules import fixed_biases
from estimator.families.family import Family, ModuleClass, NormKind
from estimator.families.layers import plain_mlp
from estimator.families.modules import LAYERS, LEAF
from estimator.families.own_attention import plus_mask
from estimator.tape import operators as op
from estimator.tape.tape import Tensor

_MLP = plain_mlp("dense_h_to_4h", "dense_4h_to_h", "up gelu_impl down")
_TREE = parts.made(
    "@Block",
    input_layernorm=parts.biased_norm,
    self_attention=parts.made(
        "@Attention", query_key_value=parts.fused_qkv, dense=parts.output, attention_dropout=LEAF
    ),
    post_attention_layernorm=parts.biased_norm,
    mlp=_MLP.tree,
)
_ROOT = parts.causal_lm(
    "transformer",
    word_embeddings=parts.tokens,
    word_embeddings_layernorm=parts.biased_norm,
    h=LAYERS,
    ln_f=parts.biased_norm,
)


def bloom(b: Block, x: Tensor) -> Tensor:
    """LayerNorms, fused qkv, ALiBi instead of rotary, dropouts before each add."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = bloom_attention(b, x, residual)
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = b.linear("mlp.dense_4h_to_h", bloom_gelu(b.tape, b.linear("mlp.dense_h_to_4h", x)))
    return op.add(b.tape, residual, op.dropout(b.tape, x, b.model.resid_pdrop))


def bloom_attention(b: Block, x: Tensor, residual: Tensor) -> Tensor:
    """ALiBi and the scaled product by one ``baddbmm``, the mask by another sum; what is added to the residual, too."""
    tape, shape, model = b.tape, b.attention_shape(), b.model
    block = "self_attention"
    qkv = b.linear(f"{block}.query_key_value", x)
    q, k, v = (op.part(tape, qkv, b.rows * model.query_size) for _ in range(3))
    if shape.batch > 1:  # batch and heads become one dimension
        q, k, v = op.clone(tape, q), op.clone(tape, k), op.clone(tape, v)
    elements = shape.batch * shape.heads * shape.length**2
    scores = op.matmul(tape, q, k, elements, "attention scores")
    masked = plus_mask(tape, scores, b.mask)
    weights = op.softmax(tape, op.cast(tape, masked, 4))
    weights = op.cast(tape, weights, q.width)
    weights = op.dropout(tape, weights, shape.dropout)
    b.hold(weights)
    out = op.matmul(tape, weights, v, q.elements, "attention output")
    out = b.linear(f"{block}.dense", op.clone(tape, out))
    return op.add(tape, residual, op.dropout(tape, out, model.resid_pdrop))


FAMILIES = (
    Family(
        model_type="bloom",
        config=ConfigClass(
            tied=True,
            one_head_each=True,
            derived_head_dim=True,
            hidden_act="gelu",
            activation_key="",
            mlp_ratio=4,
            biases=fixed_biases(True, True, True),
            dropouts=(None, ("attention_dropout", 0.0), ("hidden_dropout", 0.0)),
            dropout_modules=(True, True, False),
        ),
        prefix="Bloom",
        layer=ModuleClass("", _TREE, bloom),
        root=_ROOT,
        norm=NormKind.LAYER_NORM,
        rotary=None,
        eager_only=True,
        returns_weights=True,
        unread={
            Why.SAME_BYTES: "apply_residual_connection_post_layernorm pretraining_tp slow_but_exact",
            Why.UNREAD: """
            attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion n_inner offset_alibi skip_bias_add
            skip_bias_add_qkv""",
            Why.OFF: "num_key_value_heads",
        },
    ),
)
