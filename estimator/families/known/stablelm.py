"""StableLM: LayerNorms around Llama's parts, a norm for each head.

Source: transformers 5.23, models/stablelm, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Why
from estimator.families.config_rules import input_biases
from estimator.families.family import Family, ModuleClass, NormKind
from estimator.families.layers import GATED_MLP, gated_mlp, kept_parts
from estimator.families.modules import LEAF, Tree, module_list, tree
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _tree(model: Model) -> Tree:
    return tree(
        "@DecoderLayer",
        self_attn=tree(
            "@Attention",
            **parts.projections(model),
            q_layernorm=_norm_per_head(model, model.num_attention_heads),
            k_layernorm=_norm_per_head(model, model.num_key_value_heads),
        ),
        mlp=GATED_MLP.tree(model),
        input_layernorm=parts.biased_norm(model),
        post_attention_layernorm=None if model.parallel_residual else parts.biased_norm(model),
        dropout=LEAF,
    )


def _norm_per_head(model: Model, heads: int) -> Tree | None:
    if not model.qk_norm:
        return None
    norms = module_list(*(parts.head_norm(model) for _ in range(heads)))
    return tree("@LayerNormPerHead", norms=norms)


def _split_norm_attention(b: Block, x: Tensor) -> Tensor:
    """StableLM: a separate norm for every head of queries and keys, whose outputs are concatenated."""
    q = b.linear("self_attn.q_proj", x)
    k = b.linear("self_attn.k_proj", x)
    v = b.linear("self_attn.v_proj", x)
    if b.model.qk_norm:
        q = _normed_one_by_one(b, q, "self_attn.q_layernorm", b.model.num_attention_heads)
        k = _normed_one_by_one(b, k, "self_attn.k_layernorm", b.model.num_key_value_heads)
    parts = kept_parts(b, q, k)
    q, k = b.rotate(q, k, parts)
    return b.linear("self_attn.o_proj", b.attend(q, k, v, head_major=bool(parts)))


def _normed_one_by_one(b: Block, x: Tensor, name: str, heads: int) -> Tensor:
    parts = op.split(b.tape, x, [b.rows * b.model.head_dim] * heads)
    return op.concatenate(
        b.tape, [b.norm(f"{name}.norms.{head}", part) for head, part in enumerate(parts)]
    )


def stablelm(b: Block, x: Tensor) -> Tensor:
    """LayerNorms around Llama's parts; the larger one reads the same norm in attention and MLP."""
    residual = x
    x = b.norm("input_layernorm", x)
    attended = _split_norm_attention(b, x)
    if b.model.parallel_residual:
        hidden = op.dropout(b.tape, gated_mlp(b, x), b.model.resid_pdrop)
        return op.add(b.tape, op.add(b.tape, residual, attended), hidden)
    residual = op.add(b.tape, residual, attended)
    hidden = gated_mlp(b, b.norm("post_attention_layernorm", residual))
    hidden = op.dropout(b.tape, hidden, b.model.resid_pdrop)
    return op.add(b.tape, residual, hidden)


FAMILIES = (
    Family(
        model_type="stablelm",
        config=ConfigClass(
            key_value_heads=32,
            derived_head_dim=True,
            partial_rotary_factor=0.25,
            biases=input_biases("use_qkv_bias", default=False),
            dropouts=(None, ("attention_dropout", 0.0), ("hidden_dropout", 0.0)),
            flags={
                "qk_norm": ("qk_layernorm", False),
                "parallel_residual": ("use_parallel_residual", False),
            },
        ),
        prefix="StableLm",
        layer=ModuleClass("", _tree, stablelm),
        root=parts.decoder(final_norm=parts.biased_norm),
        norm=NormKind.LAYER_NORM,
        unread={Why.UNREAD: "rotary_scaling_factor"},
    ),
)
