"""DeepSeek V2 and V3: latent attention, shared experts, and routers that score in float32.

Source: transformers 5.23, models/deepseek_v2 and deepseek_v3, modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.config_class import ConfigClass, ExpertKeys, Fields, Why
from estimator.families.config_keys import NEXT_TOKENS
from estimator.families.config_rules import (
    attention_biases,
    expert_groups,
    first_dense,
    latent_attention,
    several_shared,
)
from estimator.families.experts import (
    QWEN_NAMES,
    Routing,
    experts_tree,
    grouped_experts,
    router,
    with_recorded_scores,
)
from estimator.families.family import Family, Kernels, ModuleClass, Rotary
from estimator.families.layer_kinds import DENSE
from estimator.families.layers import (
    decoder_layer,
    gated_mlp,
    gated_mlp_tree,
    shadowed,
    unfused_gated_mlp,
)
from estimator.families.modules import (
    LEAF,
    Module,
    Norm,
    Tree,
    TreeTensor,
    Width,
    tree,
    with_buffers,
)
from estimator.families.reader import Config
from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model


def _latent_attention(b: Block, x: Tensor) -> Tensor:
    """Multi-head latent attention: one narrow latent for keys and values of all heads, and one shared rotary key."""
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
    """Keys and values of every head: values are a view of the product, keys are concatenated with the rotary part."""
    tape, model, rows = b.tape, b.model, b.rows
    heads = model.num_attention_heads
    kv = b.linear("self_attn.kv_b_proj", kv)
    k_pass, v = op.split(
        tape, kv, [rows * heads * model.qk_nope_head_dim, rows * heads * model.v_head_dim]
    )
    k_rot = op.expand(tape, k_rot, rows * heads * model.qk_rope_head_dim)
    return op.filled(tape, [k_pass, k_rot], kv.width), v


def _mixture(routing: Callable[[Block, Tensor], Routing]) -> Callable[[Block, Tensor], Tensor]:
    def mixture(b: Block, x: Tensor) -> Tensor:
        """The chosen experts, then the shared experts."""
        chosen = with_recorded_scores(b, routing(b, x))
        residuals = x
        x = grouped_experts(b, x, chosen, "mlp")
        return op.add(b.tape, x, shared_experts(b, residuals))

    return mixture


def shared_experts(b: Block, x: Tensor) -> Tensor:
    """Llama's MLP, for every token."""
    if b.kernels.mlp:
        gate = b.linear("mlp.shared_experts.gate_proj", x)
        up = b.linear("mlp.shared_experts.up_proj", x)
        return b.linear("mlp.shared_experts.down_proj", fused.gated(b.tape, gate, up))
    return unfused_gated_mlp(b, x, "mlp.shared_experts")


def _softmax_routing(b: Block, x: Tensor) -> Routing:
    """DeepSeek V2: softmax over all experts, within the best groups if configured, then the k largest."""
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


def sigmoid_routing(b: Block, x: Tensor, name: str = "mlp.gate") -> Routing:
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


def _best_groups(b: Block) -> Tensor:
    """Of every token and expert whether its group is among the best; the groups' own few numbers are left out."""
    b.tape.operation = "best groups of experts"
    return b.tape.new(b.rows * b.model.num_experts, 1)


def _latent_tree(model: Model) -> Tree:
    """Queries, keys and values through narrow projections."""
    hidden, rank, bias = model.hidden_size, model.kv_lora_rank, model.attention_bias
    heads, rope = model.num_attention_heads, model.qk_rope_head_dim
    keys_and_values = heads * (model.qk_nope_head_dim + model.v_head_dim)
    queries: dict[str, Module] = {"q_proj": parts.linear(hidden, model.query_size)}
    if model.q_lora_rank:
        queries = {
            "q_a_proj": parts.linear(hidden, model.q_lora_rank, bias),
            "q_a_layernorm": Norm("", model.q_lora_rank),
            "q_b_proj": parts.linear(model.q_lora_rank, model.query_size),
        }
    return tree(
        "@Attention",
        **queries,
        kv_a_proj_with_mqa=parts.linear(hidden, rank + rope, bias),
        kv_a_layernorm=Norm("", rank),
        kv_b_proj=parts.linear(rank, keys_and_values),
        o_proj=parts.linear(model.value_size, hidden, bias),
    )


def correction_bias(model: Model, width: Width = Width.FLOAT32) -> TreeTensor:
    """One number per expert, which only affects the router's choice."""
    return TreeTensor("e_score_correction_bias", model.num_experts, width)


def _mixture_tree(
    model: Model, *, class_name: str = "@MoE", corrects: Width | None = Width.FLOAT32
) -> Tree:
    """Experts, router and shared experts; ``corrects``: width of the router's correction bias, if it has one."""
    buffers = [] if corrects is None else [correction_bias(model, corrects)]
    return tree(
        class_name,
        experts=experts_tree(model, QWEN_NAMES),
        gate=with_buffers(router(model, QWEN_NAMES), *buffers),
        shared_experts=shared_experts_tree(model),
    )


def shared_experts_tree(model: Model) -> Tree:
    """The shared experts, whose linears are absent if the config has none."""
    width = model.shared_expert_intermediate_size
    if not width:
        return tree("@MLP", gate_proj=LEAF, up_proj=LEAF, down_proj=LEAF, act_fn=LEAF)
    return shadowed(gated_mlp_tree(model, width))


def _dense_tree(model: Model) -> Tree:
    return shadowed(gated_mlp_tree(model))


LATENT_ATTENTION = ModuleClass("self_attn", _latent_tree, _latent_attention)
"""Multi-head latent attention."""
DENSE_MLP = ModuleClass("mlp", _dense_tree, gated_mlp)
"""The MLP of a layer without experts."""
_V2 = ModuleClass(
    "mlp", partial(_mixture_tree, class_name="@Moe", corrects=None), _mixture(_softmax_routing)
)
MIXTURE = ModuleClass("mlp", _mixture_tree, _mixture(sigmoid_routing))
"""Experts and shared experts: GLM-4.5 and, but for a dtype, DeepSeek V3."""
_V3 = MIXTURE._replace(tree=partial(_mixture_tree, corrects=Width.WEIGHT))


_KERNELS = Kernels(rotary=False, experts=True)


DEEPSEEK_UNREAD: Mapping[Why, str] = {
    Why.NUMBERS: "qk_head_dim routed_scaling_factor topk_group",
    Why.OFF: """
        attention_bias attention_dropout first_k_dense_replace n_group n_shared_experts norm_topk_prob
        output_router_logits topk_method""",
    Why.UNREAD: f"aux_loss_alpha ep_size moe_layer_freq scoring_func seq_aux {NEXT_TOKENS}",
}


def _latent_v2(read: Config, fields: Fields) -> Fields:
    return latent_attention(read, fields, LATENT_WIDTHS)


def _latent_v3(read: Config, fields: Fields) -> Fields:
    check_interleaved(read)
    return latent_attention(read, fields, LATENT_WIDTHS)


LATENT_WIDTHS = (1536, 512, 128, 64, 128)


def check_interleaved(read: Config) -> None:
    """Refuse what only other rotary embeddings have."""
    if not read.flag("rope_interleave", default=True):
        raise read.refused("rope_interleave", "true")


def _groups(read: Config) -> int:
    grouped = read.text("topk_method", default="greedy") == "group_limited_greedy"
    return read.whole("n_group") if grouped else 0


FAMILIES = (
    Family(
        model_type="deepseek_v2",
        config=ConfigClass(
            head_dim=128,
            biases=attention_biases(has_mlp_key=True),
            experts=ExpertKeys(
                have_own_width=True,
                shared_width=several_shared("n_shared_experts", 2),
                groups=_groups,
                layer_types=first_dense(0),
            ),
            own=_latent_v2,
        ),
        prefix="DeepseekV2",
        layer=decoder_layer(LATENT_ATTENTION, _V2),
        others={DENSE: decoder_layer(LATENT_ATTENTION, DENSE_MLP)},
        rotary=Rotary.COMPLEX,
        liger=_KERNELS,
        unread=DEEPSEEK_UNREAD,
        merges_experts=True,
    ),
    Family(
        model_type="deepseek_v3",
        config=ConfigClass(
            head_dim=128,
            experts=ExpertKeys(
                have_own_width=True,
                shared_width=several_shared("n_shared_experts", 1),
                normed=True,
                groups=expert_groups(8),
                layer_types=first_dense(3),
            ),
            own=_latent_v3,
            aliases=("kimi_k2",),
        ),
        prefix="DeepseekV3",
        layer=decoder_layer(LATENT_ATTENTION, _V3),
        others={DENSE: decoder_layer(LATENT_ATTENTION, DENSE_MLP)},
        rotary=Rotary.SPLIT_PAIRS,
        liger=_KERNELS,
        unread=DEEPSEEK_UNREAD,
        merges_experts=True,
    ),
)
