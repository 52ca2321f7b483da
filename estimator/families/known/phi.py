"""Phi and Phi-3.

Source: transformers 5.23, models/phi, models/phi3, modeling_*.py.
Local names are those of the source, because they determine how long each tensor lives.
"""

from __future__ import annotations

from typing import Any

from estimator.families import layouts, parts
from estimator.families.block import Block
from estimator.families.config_rules import fixed_biases
from estimator.families.family import (
    Architecture,
    ConfigClass,
    Family,
    FamilyModules,
    Kernels,
    NormKind,
    TreeLayout,
    Why,
    WindowKeys,
)
from estimator.families.layers import (
    fused_attention,
    fused_gated_mlp,
    late_norm_attention,
    plain_mlp,
)
from estimator.families.modules import Module, Norm
from estimator.families.reader import Config
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _phi3_modules(model: Model) -> tuple[Module, ...]:
    return (
        *parts.norms(model, "input_layernorm"),
        *parts.fused_attention(
            model, "self_attn.qkv_proj", "self_attn.o_proj", bias=False, output_bias=False
        ),
        *parts.norms(model, "post_attention_layernorm"),
        *parts.fused_gated_mlp(model),
    )


def _phi_modules(model: Model) -> tuple[Module, ...]:
    head_norms = (
        Norm("self_attn.q_layernorm", model.head_dim, bias=True),
        Norm("self_attn.k_layernorm", model.head_dim, bias=True),
    )
    return (
        *parts.norms(model, "input_layernorm", bias=True),
        *parts.separate_attention(model, bias=True, output_bias=True, output="dense"),
        *(head_norms if model.qk_norm else ()),
        *parts.plain_mlp(model, "mlp.fc1", "mlp.fc2", bias=True),
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
    hidden = op.dropout(b.tape, plain_mlp(b, x, "mlp.fc1", "mlp.fc2"), b.model.resid_pdrop)
    return op.add(b.tape, op.add(b.tape, attended, hidden), residual)


def _own(read: Config, fields: dict[str, Any]) -> dict[str, Any]:
    return {"qk_norm": read.flag("qk_layernorm", default=False), "lm_head_bias": True}


FAMILIES = (
    Family(
        model_type="phi",
        config=ConfigClass(
            hidden_act="gelu_new",
            partial_rotary_factor=0.5,
            biases=fixed_biases(True, True, True),
            dropouts=(("embd_pdrop", 0.0), ("attention_dropout", 0.0), ("resid_pdrop", 0.0)),
            own=_own,
        ),
        modules=FamilyModules(
            _phi_modules,
            parts.outer("embed_tokens", "final_layernorm", norm_bias=True, head_bias=True),
        ),
        tree=TreeLayout(
            "Phi",
            "model:@Model(embed_tokens layers:ModuleList(*:@DecoderLayer("
            "self_attn:@Attention(q_proj k_proj v_proj dense q_layernorm? k_layernorm?) "
            "mlp:@MLP(activation_fn fc1 fc2) input_layernorm resid_dropout)) rotary_emb embed_dropout final_layernorm) "
            "lm_head",
        ),
        architecture=Architecture(phi, NormKind.LAYER_NORM, rebinds_embedding=True),
    ),
    Family(
        model_type="phi3",
        config=ConfigClass(
            partial_rotary_factor=1.0,
            biases=fixed_biases(False, False, False),
            windows=WindowKeys(everywhere=True),
            dropouts=(None, ("attention_dropout", 0.0), ("resid_pdrop", 0.0)),
        ),
        modules=FamilyModules(_phi3_modules),
        tree=TreeLayout(
            "Phi3",
            layouts.decoder(
                f"self_attn:@Attention(o_proj qkv_proj) {layouts.FUSED} {layouts.TWO_NORMS} "
                "resid_attn_dropout resid_mlp_dropout"
            ),
        ),
        architecture=Architecture(phi3),
        liger=Kernels(),
        unread={
            Why.UNREAD: "attention_bias embd_pdrop full_attn_mod interpolate_factor lm_head_bias mlp_bias"
        },
    ),
)
