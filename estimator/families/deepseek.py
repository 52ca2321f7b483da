"""DeepSeek V2 and V3, GLM-4.5 and 4.7 Flash, ERNIE 4.5: latent attention, and routers that score in float32.

Source: transformers 5.23, models/deepseek_v2, deepseek_v3 and glm4_moe, modeling_*.py. A name that is bound here keeps
its tensor alive exactly as long as the same name does there.
"""

from __future__ import annotations

from estimator.families.block import Block
from estimator.families.experts import Routing, grouped_experts
from estimator.families.layers import gated_mlp, late_norm_attention
from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.tape import Tensor


def deepseek(b: Block, x: Tensor) -> Tensor:
    """Llama's layer; the first layers have one MLP, the others experts."""
    residual = x
    x = b.norm("input_layernorm", x)
    if b.model.kv_lora_rank:
        x = _latent_attention(b, x)
    else:
        x = late_norm_attention(b, x, keeps_parts=False)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = _sparse_mlp(b, x) if b.stacks else gated_mlp(b, x)
    return op.add(b.tape, residual, x)


def _latent_attention(b: Block, x: Tensor) -> Tensor:
    """Multi-head latent attention: one narrow latent for the keys and values of all heads, one turned key for all."""
    tape, model, rows = b.tape, b.model, b.rows
    heads, nope, rope = model.num_attention_heads, model.qk_nope_head_dim, model.qk_rope_head_dim
    if b.has("self_attn.q_proj"):
        states = b.linear("self_attn.q_proj", x)
    else:
        latent = b.norm("self_attn.q_a_layernorm", b.linear("self_attn.q_a_proj", x))
        states = b.linear("self_attn.q_b_proj", latent)
        del latent
    q_pass, q_rot = op.split(tape, states, [rows * heads * nope, rows * heads * rope])
    compressed = b.linear("self_attn.kv_a_proj_with_mqa", x)
    kv, k_rot = op.split(tape, compressed, [rows * model.kv_lora_rank, rows * rope])
    kv = b.norm("self_attn.kv_a_layernorm", kv)
    q_rot, k_rot = b.rotate(q_rot, k_rot)
    q = op.concatenate(tape, [q_pass, q_rot])
    k, v = _expanded(b, kv, k_rot)
    out = b.attend(q, k, v, head_major=True)
    out = b.linear("self_attn.o_proj", out)
    del states, q_pass, compressed
    return out


def _expanded(b: Block, kv: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of every head: the values stay a view of the product, the keys are copied beside the turned."""
    tape, model, rows = b.tape, b.model, b.rows
    heads = model.num_attention_heads
    kv = b.linear("self_attn.kv_b_proj", kv)
    k_pass, v = op.split(
        tape, kv, [rows * heads * model.qk_nope_head_dim, rows * heads * model.v_head_dim]
    )
    k_rot = op.expand(tape, k_rot, rows * heads * model.qk_rope_head_dim)
    return op.filled(tape, [k_pass, k_rot], kv.width), v


def _sparse_mlp(b: Block, x: Tensor) -> Tensor:
    """The chosen experts, and then (ERNIE: before) the shared ones, which see every token."""
    if b.model.model_type == "ernie4_5_moe":
        shared = _shared_experts(b, x) if b.has("mlp.shared_experts.gate_proj") else None
        out = grouped_experts(b, x, _routing(b, x), "mlp")
        return out if shared is None else op.add(b.tape, out, shared)
    residuals = x
    routing = _routing(b, x)
    x = grouped_experts(b, x, routing, "mlp")
    return op.add(b.tape, x, _shared_experts(b, residuals))


def _shared_experts(b: Block, x: Tensor) -> Tensor:
    if b.kernels.mlp:
        gate = b.linear("mlp.shared_experts.gate_proj", x)
        up = b.linear("mlp.shared_experts.up_proj", x)
        return b.linear("mlp.shared_experts.down_proj", fused.gated(b.tape, gate, up))
    return b.linear(
        "mlp.shared_experts.down_proj",
        op.multiply(
            b.tape,
            b.activation(b.linear("mlp.shared_experts.gate_proj", x)),
            b.linear("mlp.shared_experts.up_proj", x),
            "gate × up",
        ),
    )


def _routing(b: Block, x: Tensor) -> Routing:
    match b.model.model_type:
        case "deepseek_v2":
            routing = _softmax_routing(b, x)
        case "ernie4_5_moe":
            routing = _corrected_softmax(b, x)
        case _:
            routing = sigmoid_routing(b, x, "mlp.gate")
    if b.router_logits is not None:
        b.router_logits.append(routing.logits)
    return routing


def _softmax_routing(b: Block, x: Tensor) -> Routing:
    """DeepSeek V2: softmax over all experts, of the best groups where the config has groups, then the k largest."""
    tape, model = b.tape, b.model
    chosen = b.rows * model.num_experts_per_tok
    logits = b.router("mlp.gate", x, in_float32=True)
    # `softmax(dim=-1, dtype=torch.float32)`, of what autocast has left in 16 bits
    scores = op.softmax(tape, op.cast(tape, logits, 4))
    if model.expert_groups:
        mask = _best_groups(b)
        scores = op.masked_fill(tape, scores, mask)
        del mask
    shares, indices = op.top_k(tape, scores, chosen)
    return Routing(logits, op.scale(tape, shares), indices)


def sigmoid_routing(b: Block, x: Tensor, name: str) -> Routing:
    """DeepSeek V3, Nemotron-H: a sigmoid each, a bias that only the choice sees; of the best groups the k largest."""
    tape, model = b.tape, b.model
    chosen = b.rows * model.num_experts_per_tok
    logits = b.router(name, x, in_float32=True)
    scores = op.elementwise(tape, logits, "sigmoid", saves="output")
    for_choice = op.add_number(tape, scores)
    mask = _best_groups(b)
    for_choice = op.masked_fill(tape, for_choice, mask)
    _, indices = op.top_k(tape, for_choice, chosen)
    shares = op.gather(tape, scores, indices, chosen, "shares of the chosen")
    if model.norm_topk_prob:
        total = op.add_number(tape, op.mean(tape, shares, b.rows, "sum of shares"))
        shares = op.multiply(tape, shares, total, "shares")
    shares = op.scale(tape, shares)
    del mask, for_choice
    return Routing(logits, shares, indices)


def _corrected_softmax(b: Block, x: Tensor) -> Routing:
    """ERNIE 4.5: softmax over all experts in float32, and a bias that only the choice sees; then the dtype of x."""
    tape, chosen = b.tape, b.rows * b.model.num_experts_per_tok
    with tape.without_autocast():
        logits = b.router("mlp.gate", x, in_float32=True)
        scores = op.softmax(tape, logits)
        _, indices = op.top_k(tape, op.add_number(tape, scores), chosen)
        shares = op.gather(tape, scores, indices, chosen, "shares of the chosen")
        total = op.clamp(tape, op.mean(tape, shares, b.rows, "sum of shares"), both_sides=False)
        shares = op.multiply(tape, shares, total, "shares")
        del total
    return Routing(logits, op.cast(tape, shares, x.width), indices)


def _best_groups(b: Block) -> Tensor:
    """Of every token and expert whether its group is among the best; the groups' own few numbers are left out."""
    b.tape.operation = "best groups of experts"
    return b.tape.new(b.rows * b.model.num_experts, 1)
