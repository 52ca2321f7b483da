"""Pieces of module trees that several families share, in the notation of ``TreeLayout``."""

from __future__ import annotations

from estimator.families.family import TreeTensor, Width
from estimator.values.specs import Model

ATTENTION = "self_attn:@Attention(q_proj k_proj v_proj o_proj q_norm? k_norm?)"
GATED = "mlp:@MLP(gate_proj up_proj down_proj act_fn)"
PLAIN = "mlp:@MLP(up_proj down_proj act_fn)"
FUSED = "mlp:@MLP(gate_up_proj down_proj activation_fn)"
SPARSE = "mlp:@SparseMoeBlock(gate experts:@Experts(act_fn))"
SPARSE_GATE_LAST = "mlp:@SparseMoeBlock(experts:@Experts(act_fn) gate)"
SHARED = (
    "mlp:@SparseMoeBlock(gate experts:@Experts(act_fn) "
    "shared_expert:@MLP(gate_proj up_proj down_proj act_fn) shared_expert_gate)"
)
SHARED_EXPERTS = "mlp:@MoE(experts:@Experts(act_fn) gate shared_experts:@MLP(gate_proj up_proj down_proj act_fn))"
LATENT = (
    "self_attn:@Attention(q_proj? q_a_proj? q_a_layernorm? q_b_proj? kv_a_proj_with_mqa kv_a_layernorm kv_b_proj "
    "o_proj)"
)
TWO_NORMS = "input_layernorm post_attention_layernorm"
FOUR_NORMS = f"{TWO_NORMS} pre_feedforward_layernorm post_feedforward_layernorm"
GPT2_MLP = "mlp:@MLP(c_fc c_proj act dropout)"


def decoder(layer: str, model: str = "@Model") -> str:
    """The tree of Llama."""
    inside = f"embed_tokens layers:ModuleList(*:@DecoderLayer({layer})) norm rotary_emb"
    return f"model:{model}({inside}) lm_head"


def partly_dense(attention: str, mixture: str) -> str:
    """The tree of DeepSeek: the first layers have a dense MLP, the others a mixture of experts."""
    sparse = f"*:@DecoderLayer({attention} {mixture} {TWO_NORMS})"
    dense = f"dense*:@DecoderLayer({attention} {GATED} {TWO_NORMS})"
    inside = f"embed_tokens layers:ModuleList({sparse} {dense}) norm rotary_emb"
    return f"model:@Model({inside}) lm_head"


def transformer(outer: str) -> str:
    """The tree of GPT-2."""
    return f"transformer:@Model({outer}) lm_head"


LLAMA = decoder(f"{ATTENTION} {GATED} {TWO_NORMS}")


def correction_bias(model: Model, *, width: Width = Width.FLOAT32) -> tuple[TreeTensor, ...]:
    """One number per expert, which only affects the router's choice."""
    return (TreeTensor("e_score_correction_bias", model.num_experts, width),)


def embed_scale(model: Model) -> tuple[TreeTensor, ...]:
    """The constant that an embedding is multiplied by."""
    return (TreeTensor("embed_scale", 1, Width.WEIGHT),)
