"""Each family's decoder layer as the short program it is in transformers 5.23, models/*/modeling_*.py.

A name that is bound here keeps its tensor alive exactly as long as the same name does there; so what looks like an
idle ``residual`` is memory.
"""

from __future__ import annotations

from estimator.families.activations import bloom_gelu
from estimator.families.block import Block, NormKind
from estimator.families.experts import mixture
from estimator.families.own_attention import (
    bloom_attention,
    falcon_attention,
    gptj_attention,
    mpt_attention,
)
from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.tape import Tensor

# -- attention -------------------------------------------------------------------------------------------------


def _separate_attention(
    b: Block, x: Tensor, *, block: str = "self_attn", output: str = "o_proj"
) -> Tensor:
    """Llama and most others: three projections, rotary, attention, output."""
    q = _head_norm(b, b.linear(f"{block}.q_proj", x), "q_norm", b.model.num_attention_heads)
    k = _head_norm(b, b.linear(f"{block}.k_proj", x), "k_norm", b.model.num_key_value_heads)
    v = b.linear(f"{block}.v_proj", x)
    if b.model.clip_qkv:  # modeling_olmo.py and modeling_olmoe.py: `clamp_`
        q, k, v = (op.clamp_in_place(b.tape, it) for it in (q, k, v))
    q, k = b.rotate(q, k)
    if b.model.model_type == "ministral3":
        q = _scaled_by_position(b, q)
    out = b.attend(q, k, v, head_major=b.model.partial_rotary_factor < 1)
    return b.linear(f"{block}.{output}", out)


def _scaled_by_position(b: Block, q: Tensor) -> Tensor:
    """Ministral 3: queries times a number for each position, ``get_llama_4_attn_scale``."""
    b.tape.operation = "scale by position"
    return op.multiply(b.tape, q, b.tape.new(b.setup.max_length, q.width), "scale by position")


def _head_norm(b: Block, x: Tensor, name: str, heads: int) -> Tensor:
    """The norm of queries or keys, where the family has one: over each head, or (OLMo 2) over all."""
    name = f"self_attn.{name}"
    if name not in b.norms:
        return x
    over_all = b.norms[name][0].elements > b.model.head_dim
    return b.norm(name, x, groups=1 if over_all else heads)


def late_norm_attention(
    b: Block,
    x: Tensor,
    names: tuple[str, str] = ("q_norm", "k_norm"),
    *,
    output: str = "o_proj",
    keeps_parts: bool = True,
) -> Tensor:
    """Gemma 3, Cohere, Phi, GLM-4.5: the three projections first, then the norms of each head of queries and keys."""
    q = b.linear("self_attn.q_proj", x)
    k = b.linear("self_attn.k_proj", x)
    v = b.linear("self_attn.v_proj", x)
    if f"self_attn.{names[0]}" in b.norms:
        q = b.norm(f"self_attn.{names[0]}", q, groups=b.model.num_attention_heads)
        k = b.norm(f"self_attn.{names[1]}", k, groups=b.model.num_key_value_heads)
    parts = _kept_parts(b, q, k) if keeps_parts else []
    q, k = b.rotate(q, k, parts)
    is_partial = b.model.partial_rotary_factor < 1
    return b.linear(f"self_attn.{output}", b.attend(q, k, v, head_major=is_partial))


def _kept_parts(b: Block, q: Tensor, k: Tensor) -> list[Tensor]:
    """Phi and StableLM turn a share of each head in the attention's own forward: its parts live as long as that."""
    return [q, k] if b.model.partial_rotary_factor < 1 else []


def _split_norm_attention(b: Block, x: Tensor) -> Tensor:
    """StableLM: a norm of its own for every head of queries and keys, whose outputs are joined again."""
    q = b.linear("self_attn.q_proj", x)
    k = b.linear("self_attn.k_proj", x)
    v = b.linear("self_attn.v_proj", x)
    if b.model.qk_norm:
        q = _normed_one_by_one(b, q, "self_attn.q_layernorm", b.model.num_attention_heads)
        k = _normed_one_by_one(b, k, "self_attn.k_layernorm", b.model.num_key_value_heads)
    parts = _kept_parts(b, q, k)
    q, k = b.rotate(q, k, parts)
    return b.linear("self_attn.o_proj", b.attend(q, k, v, head_major=bool(parts)))


def _normed_one_by_one(b: Block, x: Tensor, name: str, heads: int) -> Tensor:
    parts = op.split(b.tape, x, [b.rows * b.model.head_dim] * heads)
    return op.concatenate(
        b.tape, [b.norm(f"{name}.norms.{head}", part) for head, part in enumerate(parts)]
    )


def _fused_attention(
    b: Block,
    x: Tensor,
    fused: str,
    output: str,
    *,
    by_slices: bool = False,
    head_major: bool = False,
) -> Tensor:
    """One projection for q, k and v, whose parts are views: the whole stays while any part does."""
    model, rows = b.model, b.rows
    sizes = [rows * model.query_size, rows * model.key_value_size, rows * model.key_value_size]
    qkv = b.linear(fused, x)
    q, k, v = (
        [op.part(b.tape, qkv, size) for size in sizes]
        if by_slices
        else op.split(b.tape, qkv, sizes)
    )
    q, k = b.rotate(q, k)
    out = b.attend(q, k, v, head_major=head_major)
    return b.linear(output, out)


# -- MLP -------------------------------------------------------------------------------------------------------


def gated_mlp(b: Block, x: Tensor) -> Tensor:
    """Llama's MLP: two projections up, one of them through the activation, and their product down."""
    if b.kernels.mlp:
        return b.linear(
            "mlp.down_proj",
            fused.gated(b.tape, b.linear("mlp.gate_proj", x), b.linear("mlp.up_proj", x)),
        )
    return b.linear(
        "mlp.down_proj",
        op.multiply(
            b.tape,
            b.activation(b.linear("mlp.gate_proj", x)),
            b.linear("mlp.up_proj", x),
            "gate × up",
        ),
    )


def _fused_gated_mlp(b: Block, x: Tensor) -> Tensor:
    both = b.linear("mlp.gate_up_proj", x)
    half = both.elements // 2
    gate, up = op.split(b.tape, both, [half, half])
    if b.kernels.mlp:
        return b.linear("mlp.down_proj", fused.gated(b.tape, gate, up))
    return b.linear("mlp.down_proj", op.multiply(b.tape, up, b.activation(gate), "gate × up"))


def _plain_mlp(b: Block, x: Tensor, up: str, down: str) -> Tensor:
    hidden = b.linear(up, x)
    hidden = b.activation(hidden)
    return b.linear(down, hidden)


# -- layers ----------------------------------------------------------------------------------------------------


def llama(b: Block, x: Tensor) -> Tensor:
    """Norm, attention, add; norm, MLP or experts, add. Llama, Mistral, Qwen2, Qwen3, Mixtral, Granite and many more."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = op.dropout(b.tape, _separate_attention(b, x), b.model.resid_pdrop)  # Seed-OSS
    x = op.add(b.tape, residual, _times_multiplier(b, x))
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = _mlp_or_experts(b, x)
    x = op.dropout(b.tape, x, b.model.resid_pdrop)
    return op.add(b.tape, residual, _times_multiplier(b, x))


def _mlp_or_experts(b: Block, x: Tensor) -> Tensor:
    return mixture(b, x) if b.model.num_experts else gated_mlp(b, x)


def _times_multiplier(b: Block, x: Tensor) -> Tensor:
    """Granite multiplies what it adds to the residual by a number."""
    return op.scale(b.tape, x) if b.model.model_type.startswith("granite") else x


def arcee(b: Block, x: Tensor) -> Tensor:
    """Llama with an MLP of two matrices: Arcee, Nemotron."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = _separate_attention(b, x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = _plain_mlp(b, x, "mlp.up_proj", "mlp.down_proj")
    return op.add(b.tape, residual, x)


def apertus(b: Block, x: Tensor) -> Tensor:
    """Arcee with norms of its own names and the activation xIELU."""
    residual = x
    x = b.norm("attention_layernorm", x)
    x = _separate_attention(b, x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("feedforward_layernorm", x)
    x = _plain_mlp(b, x, "mlp.up_proj", "mlp.down_proj")
    return op.add(b.tape, residual, x)


def gemma2(b: Block, x: Tensor) -> Tensor:
    """Four norms: before and after attention, before and after the MLP."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = late_norm_attention(b, x) if b.has("self_attn.q_norm") else _separate_attention(b, x)
    x = b.norm("post_attention_layernorm", x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("pre_feedforward_layernorm", x)
    x = gated_mlp(b, x)
    x = b.norm("post_feedforward_layernorm", x)
    return op.add(b.tape, residual, x)


def olmo2(b: Block, x: Tensor) -> Tensor:
    """No norm before: attention, norm, add; MLP, norm, add. OLMo 2 and 3, EXAONE 4."""
    residual = x
    x = _separate_attention(b, x)
    x = b.norm("post_attention_layernorm", x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = gated_mlp(b, x)
    x = b.norm("post_feedforward_layernorm", x)
    return op.add(b.tape, residual, x)


def phi3(b: Block, x: Tensor) -> Tensor:
    """Llama with one matrix for q, k, v and one for gate and up; slices are views of them."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = _fused_attention(
        b, x, "self_attn.qkv_proj", "self_attn.o_proj", by_slices=True, head_major=True
    )
    x = op.add(b.tape, residual, op.dropout(b.tape, x, b.model.resid_pdrop))
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = _fused_gated_mlp(b, x)
    return op.add(b.tape, residual, op.dropout(b.tape, x, b.model.resid_pdrop))


def glm(b: Block, x: Tensor) -> Tensor:
    """Llama with a fused gate and up; GLM-4 normalises what it adds as well."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = _separate_attention(b, x)
    if b.has("post_self_attn_layernorm"):
        x = b.norm("post_self_attn_layernorm", x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = _fused_gated_mlp(b, x)
    if b.has("post_mlp_layernorm"):
        x = b.norm("post_mlp_layernorm", x)
    return op.add(b.tape, residual, x)


def gpt2(b: Block, x: Tensor) -> Tensor:
    """LayerNorm kernels, one fused qkv, dropouts after attention and MLP. GPT-2 and gpt_bigcode."""
    residual = x
    x = b.norm("ln_1", x)
    attended = _fused_attention(b, x, "attn.c_attn", "attn.c_proj")
    attended = op.dropout(b.tape, attended, b.model.resid_pdrop)
    x = op.add(b.tape, attended, residual)
    residual = x
    x = b.norm("ln_2", x)
    hidden = _plain_mlp(b, x, "mlp.c_fc", "mlp.c_proj")
    hidden = op.dropout(b.tape, hidden, b.model.resid_pdrop)
    return op.add(b.tape, residual, hidden)


def gpt_neox(b: Block, x: Tensor) -> Tensor:
    """Attention and MLP read two norms of the same input, or follow each other where the config says so."""
    fused, output = "attention.query_key_value", "attention.dense"
    attended = _fused_attention(b, b.norm("input_layernorm", x), fused, output, head_major=True)
    attended = op.dropout(b.tape, attended, b.model.resid_pdrop)
    if b.model.parallel_residual:
        hidden = _neox_mlp(b, b.norm("post_attention_layernorm", x))
        hidden = op.dropout(b.tape, hidden, b.model.resid_pdrop)
        return op.add(b.tape, op.add(b.tape, hidden, attended), x)
    attended = op.add(b.tape, attended, x)
    hidden = _neox_mlp(b, b.norm("post_attention_layernorm", attended))
    hidden = op.dropout(b.tape, hidden, b.model.resid_pdrop)
    return op.add(b.tape, hidden, attended)


def _neox_mlp(b: Block, x: Tensor) -> Tensor:
    return _plain_mlp(b, x, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")


def falcon(b: Block, x: Tensor) -> Tensor:
    """Attention and MLP side by side on one norm (7B) or two (40B, 180B); one after the other in RefinedWeb."""
    fused, output = "self_attention.query_key_value", "self_attention.dense"
    up, down = "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"
    residual = x
    if b.has("ln_attn"):
        normed, mlp_input = b.norm("ln_attn", x), b.norm("ln_mlp", x)
    else:
        normed = b.norm("input_layernorm", x)
        mlp_input = normed
    attended = falcon_attention(b, normed, fused, output)
    if b.has("post_attention_layernorm"):
        # `dropout_add(attention_output, residual, self.config.attention_dropout)`
        dropped = op.dropout(b.tape, attended, b.model.attn_pdrop)
        residual = op.add(b.tape, residual, dropped)
        del dropped
        mlp_input = b.norm("post_attention_layernorm", residual)
        hidden = _plain_mlp(b, mlp_input, up, down)
    else:
        hidden = op.add(b.tape, _plain_mlp(b, mlp_input, up, down), attended)
    return op.add(b.tape, residual, op.dropout(b.tape, hidden, b.model.resid_pdrop))


def cohere(b: Block, x: Tensor) -> Tensor:
    """One norm, then attention and a gated MLP side by side: Cohere and Cohere 2."""
    residual = x
    x = b.norm("input_layernorm", x)
    attended = late_norm_attention(b, x)
    hidden = gated_mlp(b, x)
    return op.add(b.tape, op.add(b.tape, residual, attended), hidden)


def phi(b: Block, x: Tensor) -> Tensor:
    """Phi 1 and 2: one LayerNorm, then attention and an MLP of two matrices side by side."""
    residual = x
    x = b.norm("input_layernorm", x)
    attended = late_norm_attention(b, x, ("q_layernorm", "k_layernorm"), output="dense")
    attended = op.dropout(b.tape, attended, b.model.resid_pdrop)
    hidden = op.dropout(b.tape, _plain_mlp(b, x, "mlp.fc1", "mlp.fc2"), b.model.resid_pdrop)
    return op.add(b.tape, op.add(b.tape, attended, hidden), residual)


def gptj(b: Block, x: Tensor) -> Tensor:
    """GPT-J: one LayerNorm, attention and MLP side by side; its own attention in eager products."""
    residual = x
    x = b.norm("ln_1", x)
    attended = gptj_attention(b, x)
    hidden = op.dropout(b.tape, _plain_mlp(b, x, "mlp.fc_in", "mlp.fc_out"), b.model.resid_pdrop)
    return op.add(b.tape, op.add(b.tape, attended, hidden), residual)


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


def starcoder2(b: Block, x: Tensor) -> Tensor:
    """Llama with LayerNorms, biases and an MLP of two matrices."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = op.dropout(b.tape, _separate_attention(b, x), b.model.resid_pdrop)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = _plain_mlp(b, x, "mlp.c_fc", "mlp.c_proj")
    x = op.dropout(b.tape, x, b.model.resid_pdrop)
    return op.add(b.tape, residual, x)


def bloom(b: Block, x: Tensor) -> Tensor:
    """LayerNorms, fused qkv, ALiBi instead of rotary, dropouts before each add."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = bloom_attention(b, x, residual)
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = b.linear("mlp.dense_4h_to_h", bloom_gelu(b.tape, b.linear("mlp.dense_h_to_4h", x)))
    return op.add(b.tape, residual, op.dropout(b.tape, x, b.model.resid_pdrop))


def mpt(b: Block, x: Tensor) -> Tensor:
    """LayerNorms without bias, fused qkv, ALiBi, no biases at all."""
    residual = x
    x = b.norm("norm_1", x)
    attended = mpt_attention(b, x)
    x = op.add(b.tape, op.dropout(b.tape, attended, b.model.resid_pdrop), residual)
    residual = x
    x = b.norm("norm_2", x)
    x = _plain_mlp(b, x, "ffn.up_proj", "ffn.down_proj")
    return op.add(b.tape, op.dropout(b.tape, x, b.model.resid_pdrop), residual)


def opt(b: Block, x: Tensor) -> Tensor:
    """LayerNorms before (or, OPT 350M, after) attention and MLP; learned positions."""
    before = b.model.do_layer_norm_before
    residual = x
    if before:
        x = b.norm("self_attn_layer_norm", x)
    x = _separate_attention(b, x, output="out_proj")
    x = op.add(b.tape, residual, op.dropout(b.tape, x, b.model.resid_pdrop))
    if not before:
        x = b.norm("self_attn_layer_norm", x)
    residual = x
    if before:
        x = b.norm("final_layer_norm", x)
    x = b.linear("fc1", x)
    x = b.activation(x)
    x = b.linear("fc2", x)
    x = op.add(b.tape, residual, op.dropout(b.tape, x, b.model.resid_pdrop))
    return x if before else b.norm("final_layer_norm", x)


def hunyuan(b: Block, x: Tensor) -> Tensor:
    """Hunyuan: Llama whose queries and keys are normalised after the rotation."""
    residual = x
    x = b.norm("input_layernorm", x)
    x = _late_rotated_attention(b, x)
    x = op.add(b.tape, residual, x)
    residual = x
    x = b.norm("post_attention_layernorm", x)
    x = gated_mlp(b, x)
    return op.add(b.tape, residual, x)


def _late_rotated_attention(b: Block, x: Tensor) -> Tensor:
    q = b.linear("self_attn.q_proj", x)
    k = b.linear("self_attn.k_proj", x)
    v = b.linear("self_attn.v_proj", x)
    q, k = b.rotate(q, k)
    q = b.norm(
        "self_attn.query_layernorm", q, groups=b.model.num_attention_heads, kind=NormKind.RMS
    )
    k = b.norm("self_attn.key_layernorm", k, groups=b.model.num_key_value_heads, kind=NormKind.RMS)
    out = b.attend(q, k, v)
    return b.linear("self_attn.o_proj", out)
