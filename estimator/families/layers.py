"""Attention, MLPs and layers that several families share, as in transformers 5.23, models/*/modeling_*.py.

Each has its modules and its forward. Local names are those of the source, because they determine how long each tensor
lives; a seemingly unused ``residual`` keeps memory alive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.family import ModuleClass
from estimator.families.modules import LEAF, Linear, Norm, Tree, tree
from estimator.families.registry import family_of
from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.tape import Tensor
from estimator.values.specs import Model

Forward = Callable[[Block, Tensor], Tensor]
Pair = tuple[str, str]
BEFORE: Pair = ("input_layernorm", "post_attention_layernorm")
"""Names of Llama's norms, of what attention reads and of what the MLP reads."""


def decoder_layer(
    attention: ModuleClass,
    mlp: ModuleClass,
    *,
    class_name: str = "@DecoderLayer",
    before: Pair = BEFORE,
    after: Pair = ("", ""),
    bias: bool = False,
    order: str = "",
) -> ModuleClass:
    """A layer of attention and an MLP, each between norms, each added to what it read.

    ``before`` and ``after``: the norms of what each reads and of what it adds; empty: there is none. ``order``: of all
    modules in the class; empty: attention, MLP, norms.
    """
    norms = [name for both in zip(before, after, strict=True) for name in both if name]
    pieces: dict[str, parts.Piece] = {part.name: part.tree for part in (attention, mlp)}
    pieces |= dict.fromkeys(norms, parts.biased_norm if bias else parts.norm)
    ordered = {name: pieces[name] for name in order.split() or pieces}
    assert ordered.keys() == pieces.keys(), f"{order} is not the order of {', '.join(pieces)}"

    def layer(b: Block, x: Tensor) -> Tensor:
        """The input is kept beside attention, and their sum beside the MLP."""
        x = _added(b, x, attention.forward, before[0], after[0], drops=False)
        return _added(b, x, mlp.forward, before[1], after[1], drops=True)

    return ModuleClass("", parts.made(class_name, **ordered), layer)


def _added(b: Block, x: Tensor, part: Forward, before: str, after: str, *, drops: bool) -> Tensor:
    residual = x
    if b.has(before):
        x = b.norm(before, x)
    x = part(b, x)
    if b.has(after):
        x = b.norm(after, x)
    if drops:
        x = op.dropout(b.tape, x, b.model.resid_pdrop)
    return op.add(b.tape, residual, _times_multiplier(b, x))


def _times_multiplier(b: Block, x: Tensor) -> Tensor:
    """Granite multiplies residual branches by a constant."""
    return op.scale(b.tape, x) if family_of(b.model).multiplies_residual else x


# -- attention -------------------------------------------------------------------------------------------------


def separate_attention(b: Block, x: Tensor, *, output: str = "o_proj") -> Tensor:
    """Llama and most others: three projections, rotary, attention, output."""
    q = _head_norm(b, b.linear("self_attn.q_proj", x), "q_norm", b.model.num_attention_heads)
    k = _head_norm(b, b.linear("self_attn.k_proj", x), "k_norm", b.model.num_key_value_heads)
    v = b.values_by_heads(b.linear("self_attn.v_proj", x))
    if b.model.clip_qkv:  # modeling_olmo.py and modeling_olmoe.py: `clamp_`
        q, k, v = (op.clamp_in_place(b.tape, tensor) for tensor in (q, k, v))
    q, k = b.rotate(q, k)
    if family_of(b.model).scales_queries:
        q = _scaled_by_position(b, q)
    out = b.attend(q, k, v, head_major=joins_parts(b.model))
    return b.linear(f"self_attn.{output}", out)


def dropped_attention(b: Block, x: Tensor) -> Tensor:
    """The same with dropout of its output (Seed-OSS, StarCoder 2), while its input is alive."""
    return op.dropout(b.tape, separate_attention(b, x), b.model.resid_pdrop)


def _scaled_by_position(b: Block, q: Tensor) -> Tensor:
    """Ministral 3: queries times a factor per position, ``get_llama_4_attn_scale``."""
    b.tape.operation = "scale by position"
    return op.multiply(
        b.tape, q, b.tape.new(b.setup.batch.max_length, q.width), "scale by position"
    )


def _head_norm(b: Block, x: Tensor, name: str, heads: int) -> Tensor:
    """The norm of queries or keys, if the family has one: over each head, or (OLMo 2) over all heads."""
    name = f"self_attn.{name}"
    if name not in b.norms:
        return b.by_heads(x)
    over_all = b.norms[name][0].elements > b.model.head_dim
    return b.norm(name, x, groups=1 if over_all else heads)


def late_norm_attention(
    b: Block,
    x: Tensor,
    names: Pair = ("q_norm", "k_norm"),
    *,
    block: str = "self_attn",
    output: str = "o_proj",
    keeps_parts: bool = True,
) -> Tensor:
    """Gemma 3, Cohere, Phi, towers: the three projections first, then the norms of each head of queries and keys."""
    q = b.linear(f"{block}.q_proj", x)
    k = b.linear(f"{block}.k_proj", x)
    v = b.linear(f"{block}.v_proj", x)
    if f"{block}.{names[0]}" in b.norms:
        q = b.norm(f"{block}.{names[0]}", q, groups=b.model.num_attention_heads)
        k = b.norm(f"{block}.{names[1]}", k, groups=b.model.num_key_value_heads)
    parts = kept_parts(b, q, k) if keeps_parts else []
    q, k = b.rotate(q, k, parts)
    return b.linear(f"{block}.{output}", b.attend(q, k, v, head_major=joins_parts(b.model)))


def joins_parts(model: Model) -> bool:
    """Whether the class joins the rotated part of each head with the rest, even where there is no rest.

    A joined tensor is laid out head by head, and so is what attention makes of it.
    Source: transformers 5.23, models/*/modeling_*.py, ``apply_rotary_pos_emb`` (``torch.cat([q_embed, q_pass])``).
    """
    return family_of(model).config.partial_rotary_factor is not None


def kept_parts(b: Block, q: Tensor, k: Tensor) -> list[Tensor]:
    """Phi and StableLM rotate part of each head in the attention's forward, so these parts live until it returns."""
    return [q, k] if joins_parts(b.model) else []


def fused_attention(
    b: Block,
    x: Tensor,
    fused: str,
    output: str,
    *,
    by_slices: bool = False,
    head_major: bool = False,
) -> Tensor:
    """One projection for q, k and v. Its parts are views, so the whole lives as long as any part."""
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


def attention_tree(model: Model) -> Tree:
    """Four projections."""
    return tree("@Attention", **parts.projections(model))


def normed_tree(model: Model) -> Tree:
    """The same with norms over each head of queries and keys."""
    names = "q_proj k_proj v_proj o_proj q_norm k_norm"
    return tree("@Attention", **parts.attention(model, names))


def widely_normed_tree(model: Model) -> Tree:
    """The same with a weight for every head: OLMo 2 normalises across the heads, Cohere within each."""
    norms = {"q_norm": Norm("", model.query_size), "k_norm": Norm("", model.key_value_size)}
    return tree("@Attention", **parts.projections(model), **norms)


ATTENTION = ModuleClass("self_attn", attention_tree, dropped_attention)
"""Llama's."""
NORMED_ATTENTION = ModuleClass("self_attn", normed_tree, dropped_attention)
"""The same with norms of queries and keys, head by head (Qwen3)."""
WIDELY_NORMED_ATTENTION = ModuleClass("self_attn", widely_normed_tree, dropped_attention)
"""The same with norms over all heads (OLMo 2)."""


# -- MLP -------------------------------------------------------------------------------------------------------


def gated_mlp(b: Block, x: Tensor) -> Tensor:
    """Llama's MLP: gate and up projections, the gate through the activation, and their product through the down one."""
    if b.kernels.mlp:
        return b.linear(
            "mlp.down_proj",
            fused.gated(b.tape, b.linear("mlp.gate_proj", x), b.linear("mlp.up_proj", x)),
        )
    return unfused_gated_mlp(b, x)


def unfused_gated_mlp(
    b: Block,
    x: Tensor,
    block: str = "mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Tensor:
    """The same without Liger's kernel, in any block."""
    gate, up, down = (f"{block}.{name}" for name in names)
    return b.linear(
        down, op.multiply(b.tape, b.activation(b.linear(gate, x)), b.linear(up, x), "gate × up")
    )


def gated_mlp_tree(
    model: Model,
    width: int = 0,
    *,
    class_name: str = "@MLP",
    act: str = "act_fn",
    bias: bool | None = None,
) -> Tree:
    """Llama's MLP: gate, up and down; ``bias``: None: as the model says."""
    hidden, width = model.hidden_size, width or model.intermediate_size
    bias = model.mlp_bias if bias is None else bias
    return tree(
        class_name,
        gate_proj=parts.linear(hidden, width, bias),
        up_proj=parts.linear(hidden, width, bias),
        down_proj=parts.linear(width, hidden, bias),
        **{act: LEAF},
    )


def shadowed(mlp: Tree) -> Tree:
    """An MLP whose linears have the former names of experts' linears."""
    return replace(
        mlp,
        children=tuple(
            (name, replace(child, weights=replace(child.weights, shadowed=True)))
            if isinstance(child.weights, Linear)
            else (name, child)
            for name, child in mlp.children
        ),
    )


def fused_gated_mlp(b: Block, x: Tensor) -> Tensor:
    """Llama's MLP with gate and up as one product, whose halves are views."""
    both = b.linear("mlp.gate_up_proj", x)
    half = both.elements // 2
    gate, up = op.split(b.tape, both, [half, half])
    if b.kernels.mlp:
        return b.linear("mlp.down_proj", fused.gated(b.tape, gate, up))
    return b.linear("mlp.down_proj", op.multiply(b.tape, up, b.activation(gate), "gate × up"))


def fused_gated_tree(model: Model) -> Tree:
    """Its modules."""
    hidden, width = model.hidden_size, model.intermediate_size
    return tree(
        "@MLP",
        gate_up_proj=parts.linear(hidden, 2 * width),
        down_proj=parts.linear(width, hidden),
        activation_fn=LEAF,
    )


def plain_mlp(
    up: str = "up_proj",
    down: str = "down_proj",
    order: str = "up down act_fn",
    *,
    name: str = "mlp",
    class_name: str = "@MLP",
    conv1d: bool = False,
) -> ModuleClass:
    """An MLP of two matrices; ``order``: of the matrices and of modules without weights, in the class's own order."""

    def mlp_tree(model: Model) -> Tree:
        first, second = parts.up_and_down(model, conv1d=conv1d)
        named: dict[str, tuple[str, Linear | Tree]] = {"up": (up, first), "down": (down, second)}
        return tree(class_name, **dict(named.get(one, (one, LEAF)) for one in order.split()))

    def forward(b: Block, x: Tensor) -> Tensor:
        """Up, activation, down."""
        hidden = b.linear(f"{name}.{up}", x)
        hidden = b.activation(hidden)
        return b.linear(f"{name}.{down}", hidden)

    return ModuleClass(name, mlp_tree, forward)


GATED_MLP = ModuleClass("mlp", gated_mlp_tree, gated_mlp)
"""Llama's."""
FUSED_GATED_MLP = ModuleClass("mlp", fused_gated_tree, fused_gated_mlp)
"""The same with gate and up fused into one matrix (Phi-3, GLM)."""
