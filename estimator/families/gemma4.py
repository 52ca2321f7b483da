"""Gemma 4: an embedding for every layer, keys and values that the last layers share, an MLP with experts beside it.

Source: transformers 5.23, models/gemma4/modeling_gemma4.py. A name that is bound here keeps its tensor alive exactly as
long as the same name does there.
"""

from __future__ import annotations

from estimator.families.block import Block
from estimator.families.experts import Routing, grouped_experts
from estimator.families.layer_kinds import KEEPING
from estimator.families.layers import gated_mlp
from estimator.families.rotary import turned
from estimator.tape import operators as op
from estimator.tape.tape import Tensor


def gemma4(b: Block, x: Tensor) -> Tensor:
    """Gemma 3's layer; then the layer's own embedding through a gate; and all times a number that is no parameter."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = shared_attention(b, x)
    x = b.norm("post_attention_layernorm", x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("pre_feedforward_layernorm", x)
    x = gated_mlp(b, x)
    if b.stacks:
        first = b.norm("post_feedforward_layernorm_1", x)
        routing = _routing(b, residual)
        b.hold(routing.logits)
        second = b.norm("pre_feedforward_layernorm_2", residual)
        second = grouped_experts(b, second, routing, "")
        second = b.norm("post_feedforward_layernorm_2", second)
        x = op.add(b.tape, first, second)
    x = b.norm("post_feedforward_layernorm", x)
    x = op.add(b.tape, residual, x)
    if b.layer_input is not None:
        residual = x
        x = b.linear("per_layer_input_gate", x)
        x = b.activation(x)
        x = op.multiply(b.tape, x, b.layer_input, "gate × layer's embedding")
        x = b.linear("per_layer_projection", x)
        x = b.norm("post_per_layer_input_norm", x)
        x = op.add(b.tape, residual, x)
    return op.scale_in_place(b.tape, x, by_tensor=True)


def shared_attention(b: Block, x: Tensor) -> Tensor:
    """Queries always; keys and values of its own, or those that an earlier layer has laid down."""
    tape, model, tables = b.tape, b.model, b.rotary_tables
    assert tables is not None
    key_value_heads = model.num_key_value_heads
    q = b.linear("self_attn.q_proj", x)
    q = b.norm("self_attn.q_norm", q, groups=model.num_attention_heads)
    q = turned(tape, q, tables)
    if b.has("self_attn.k_proj"):
        k = b.linear("self_attn.k_proj", x)
        v = b.linear("self_attn.v_proj", x) if b.has("self_attn.v_proj") else k
        k = b.norm("self_attn.k_norm", k, groups=key_value_heads)
        k = turned(tape, k, tables)
        v = b.norm("self_attn.v_norm", v, groups=key_value_heads)
    else:
        k, v = b.shared_states[b.is_windowed]
    if b.sharing == KEEPING:
        b.shared_states[b.is_windowed] = k, v
    out = b.attend(q, k, v)
    return b.linear("self_attn.o_proj", out)


def _routing(b: Block, x: Tensor) -> Routing:
    """Softmax of a normalised and scaled token; the k largest, divided by their sum, times a number for each expert."""
    tape, chosen = b.tape, b.rows * b.model.num_experts_per_tok
    x = b.norm("router.norm", x)
    x = op.scale(tape, op.multiply(tape, x, b.norms["router.scale"][0], "router's scale"))
    scores = b.linear("router.proj", x)
    probabilities = op.softmax(tape, op.cast(tape, scores, 4))
    shares, indices = op.top_k(tape, probabilities, chosen)
    # divided in place, so that autograd keeps a copy of what was there
    shares = op.multiply(tape, shares, op.mean(tape, shares, b.rows, "sum of shares"), "shares")
    scale = b.norms["router.per_expert_scale"][0]
    of_experts = op.gather(tape, scale, indices, chosen, "scale by expert")
    shares = op.multiply(tape, shares, of_experts, "shares")
    del scores, of_experts
    return Routing(probabilities, shares, indices)


def layer_inputs(outer: Block, ids: Tensor, embedded: Tensor) -> Tensor:
    """All layers' embeddings of all tokens, T · L · width: by the table, and by a projection of the tokens' own.

    Source: ``get_per_layer_inputs`` and ``project_per_layer_inputs``.
    """
    tape, model = outer.tape, outer.model
    layers, width = model.num_hidden_layers, model.hidden_size_per_layer_input
    table = outer.embeddings["embed_tokens_per_layer"]
    found = outer.within(
        table.key, ids, lambda ids: op.embedding(tape, ids, table, layers * width, outer.rows)
    )
    by_table = op.scale(tape, found)
    del found
    projected = op.scale(tape, outer.linear("per_layer_model_projection", embedded))
    projected = outer.norm("per_layer_projection_norm", projected, groups=layers)
    return op.scale(tape, op.add(tape, projected, by_table))
