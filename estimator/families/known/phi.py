"""Phi and Phi-3.

Source: transformers 5.23, models/phi, models/phi3, modeling_*.py.
"""

from __future__ import annotations

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, Why, WindowKeys
from estimator.families.config_rules import fixed_biases
from estimator.families.family import Family, Kernels, ModuleClass, NormKind
from estimator.families.layers import (
    FUSED_GATED_MLP,
    fused_attention,
    fused_gated_mlp,
    late_norm_attention,
    plain_mlp,
)
from estimator.families.modules import LAYERS, LEAF, Tree, tree
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model

_PHI_MLP = plain_mlp("fc1", "fc2", "activation_fn up down")
_PHI3_TREE = parts.made(
    "@DecoderLayer",
    self_attn=parts.made("@Attention", o_proj=parts.output, qkv_proj=parts.fused_qkv),
    mlp=FUSED_GATED_MLP.tree,
    input_layernorm=parts.norm,
    post_attention_layernorm=parts.norm,
    resid_attn_dropout=LEAF,
    resid_mlp_dropout=LEAF,
)
_PHI_ROOT = parts.causal_lm(
    "model",
    embed_tokens=parts.tokens,
    layers=LAYERS,
    rotary_emb=parts.rotary,
    embed_dropout=LEAF,
    final_layernorm=parts.biased_norm,
)


def _phi_tree(model: Model) -> Tree:
    norms = parts.head_norms(model, "q_layernorm", "k_layernorm", bias=True)
    return tree(
        "@DecoderLayer",
        self_attn=tree(
            "@Attention",
            **parts.projections(model, last="dense"),
            **(norms if model.qk_norm else {}),
        ),
        mlp=_PHI_MLP.tree(model),
        input_layernorm=parts.biased_norm(model),
        resid_dropout=LEAF,
    )


def phi3(b: Block, x: Tensor) -> Tensor:
    """Llama with one matrix for q, k, v and one for gate and up; slices are views of them."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = fused_attention(
        b, x, "self_attn.qkv_proj", "self_attn.o_proj", by_slices=True, head_major=True
    )
    x = op.add(b.tape, residual, op.dropout(b.tape, x, b.model.resid_pdrop))
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = fused_gated_mlp(b, x)
    return op.add(b.tape, residual, op.dropout(b.tape, x, b.model.resid_pdrop))


def phi(b: Block, x: Tensor) -> Tensor:
    """Phi 1 and 2: one LayerNorm, then attention and an MLP of two matrices side by side."""
    residual = x
    x = b.norm("input_layernorm", x)
    attended = late_norm_attention(b, x, ("q_layernorm", "k_layernorm"), output="dense")
    attended = op.dropout(b.tape, attended, b.model.resid_pdrop)
    hidden = op.dropout(b.tape, _PHI_MLP.forward(b, x), b.model.resid_pdrop)
    return op.add(b.tape, op.add(b.tape, attended, hidden), residual)


FAMILIES = (
    Family(
        model_type="phi",
        config=ConfigClass(
            hidden_act="gelu_new",
            partial_rotary_factor=0.5,
            biases=fixed_biases(True, True, True),
            dropouts=(("embd_pdrop", 0.0), ("attention_dropout", 0.0), ("resid_pdrop", 0.0)),
            flags={"qk_norm": ("qk_layernorm", False)},
            fixed={"lm_head_bias": True},
        ),
        prefix="Phi",
        layer=ModuleClass("", _phi_tree, phi),
        root=_PHI_ROOT,
        norm=NormKind.LAYER_NORM,
        rebinds_embedding=True,
    ),
    Family(
        model_type="phi3",
        config=ConfigClass(
            partial_rotary_factor=1.0,
            biases=fixed_biases(False, False, False),
            windows=WindowKeys(everywhere=True),
            dropouts=(None, ("attention_dropout", 0.0), ("resid_pdrop", 0.0)),
        ),
        prefix="Phi3",
        layer=ModuleClass("", _PHI3_TREE, phi3),
        liger=Kernels(),
        unread={
            Why.UNREAD: "attention_bias embd_pdrop full_attn_mod interpolate_factor lm_head_bias mlp_bias"
        },
    ),
)
