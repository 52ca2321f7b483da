"""MPT: LayerNorms without bias, one fused projection, ALiBi, and its own eager attention.

Source: transformers 5.23, models/mpt, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Fields, Why
from estimator.families.config_rules import fixed_biases
from estimator.families.family import Family, ModuleClass, NormKind
from estimator.families.layers import plain_mlp
from estimator.families.modules import LAYERS, LEAF
from estimator.families.own_attention import attention_scores, weighted
from estimator.families.reader import Config
from estimator.tape import operators as op
from estimator.tape.tape import Tensor

_MLP = plain_mlp(order="up act down", name="ffn")
_TREE = parts.made(
    "@Block",
    norm_1=parts.norm,
    attn=parts.made("@Attention", Wqkv=parts.fused_qkv, out_proj=parts.output),
    norm_2=parts.norm,
    ffn=_MLP.tree,
    resid_attn_dropout=LEAF,
)
_ROOT = parts.causal_lm("transformer", wte=parts.tokens, blocks=LAYERS, norm_f=parts.norm)


def mpt(b: Block, x: Tensor) -> Tensor:
    """LayerNorms without bias, fused qkv, ALiBi, no biases at all."""
    residual = x
    x = b.norm("norm_1", x)
    attended = mpt_attention(b, x)
    x = op.add(b.tape, op.dropout(b.tape, attended, b.model.resid_pdrop), residual)
    residual = x
    x = b.norm("norm_2", x)
    x = _MLP.forward(b, x)
    return op.add(b.tape, op.dropout(b.tape, x, b.model.resid_pdrop), residual)


def mpt_attention(b: Block, x: Tensor) -> Tensor:
    """ALiBi in float32 joins the scores, and masking makes one more copy of them."""
    tape, shape, model = b.tape, b.attention_shape(), b.model
    qkv = b.linear("attn.Wqkv", x)
    if model.clip_qkv:
        qkv = op.clamp(tape, qkv, both_sides=True)
    q, k, v = op.split(tape, qkv, [b.rows * model.query_size] * 3)
    scores = op.scale(tape, attention_scores(tape, q, k, shape))
    assert b.alibi is not None
    scores = op.add(tape, scores, b.alibi)
    if b.mask is not None:
        scores = op.masked_fill(tape, scores, b.mask)
    weights = op.cast(tape, op.softmax(tape, op.cast(tape, scores, 4)), v.width)
    weights = op.dropout(tape, weights, shape.dropout)
    b.hold(weights)
    out = b.linear("attn.out_proj", weighted(tape, weights, v, shape))
    del qkv, scores
    return out


ATTENTION = "attn_config"
"""The object in which MPT keeps what concerns attention."""


def _own(read: Config, fields: Fields) -> Fields:
    """Queries, keys and values are clamped unless the limit is 0; the MLP uses attention's dropout: modeling_mpt.py."""
    inner = read.part(ATTENTION)
    dropout = inner.share("attn_pdrop")
    clips = inner.values.get("clip_qkv") != 0 and inner.cap("clip_qkv", None)
    return {"clip_qkv": clips, "attn_pdrop": dropout, "resid_pdrop": dropout}


FAMILIES = (
    Family(
        model_type="mpt",
        config=ConfigClass(
            tied=True,
            one_head_each=True,
            derived_head_dim=True,
            hidden_act="gelu",
            activation_key="",
            mlp_ratio=4,  # whatever expansion_ratio says: modeling_mpt.py:141
            biases=fixed_biases(False, False, False),
            dropouts=(None, None, None),
            dropout_modules=(True, False, False),
            own=_own,
            nested=ATTENTION,
        ),
        prefix="Mpt",
        layer=ModuleClass("", _TREE, mpt),
        root=_ROOT,
        norm=NormKind.LAYER_NORM,
        rotary=None,
        eager_only=True,
        returns_weights=True,
        alibi_by_head=True,
        unread={
            Why.UNREAD: """
            attn_config.alibi attn_config.alibi_bias_max attn_config.attn_impl attn_config.attn_type
            attn_config.attn_uses_sequence_id attn_config.prefix_lm attn_config.qk_gn attn_config.qk_ln emb_pdrop
            embedding_fraction expansion_ratio learned_pos_emb logit_scale no_bias norm_type resid_pdrop verbose""",
            Why.NUMBERS: "attn_config.softmax_scale",
            Why.INITIALISATION: "init_config",
        },
    ),
)
