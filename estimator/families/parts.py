"""Parts of module trees that several families share: attention, MLPs, experts, norms, the modules around the layers.

Source: transformers 5.23, ``models/*/modeling_*.py``, each class's ``__init__``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from estimator.families.modules import (
    LAYERS,
    LEAF,
    Bare,
    Embedding,
    Linear,
    Norm,
    OwnParameter,
    Tree,
    TreeTensor,
    Width,
    tree,
    with_buffers,
)
from estimator.values.refusals import InputError
from estimator.values.specs import Model

Former = tuple[str, str, str, str]
"""Former names of router, gate, up and down."""


def linear(in_features: int, out_features: int, bias: bool = False) -> Linear:
    """A linear, which its place in the tree names."""
    return Linear("", in_features, out_features, bias)


def norm(model: Model, *, bias: bool = False) -> Norm:
    """A norm over the hidden states."""
    weight = not model.norms_without_weight
    return Norm("", model.hidden_size, weight, bias and weight)


def head_norm(model: Model, *, weight: bool = True, bias: bool = False) -> Norm:
    """A norm over each head, with one weight shared by all heads."""
    return Norm("", model.head_dim, weight, bias)


# --- attention ----------------------------------------------------------------------------------


def projections(
    model: Model, order: str = "qkvo", output: str = "o_proj", *, bias: bool, output_bias: bool
) -> Mapping[str, Linear]:
    """Query, key, value and output projections, in the class's order."""
    hidden, keys = model.hidden_size, model.key_value_size
    named = {
        "q": ("q_proj", linear(hidden, model.query_size, bias)),
        "k": ("k_proj", linear(hidden, keys, bias)),
        "v": ("v_proj", linear(hidden, keys, bias)),
        "o": (output, linear(model.query_size, hidden, output_bias)),
    }
    return dict(named[letter] for letter in order)


def configured_projections(
    model: Model, order: str = "qkvo", output: str = "o_proj"
) -> Mapping[str, Linear]:
    """The same with biases if the config says so."""
    return projections(
        model, order, output, bias=model.attention_bias, output_bias=model.attention_output_bias
    )


def attention(model: Model, **more: Norm | OwnParameter | None) -> Tree:
    """Four projections, with biases if the config says so."""
    return tree("@Attention", **configured_projections(model), **more)


def normed_attention(model: Model) -> Tree:
    """The same with norms over each head of queries and keys."""
    return attention(model, q_norm=head_norm(model), k_norm=head_norm(model))


def widely_normed_attention(model: Model) -> Tree:
    """The same with a weight for every head: OLMo 2 normalises across the heads, Cohere within each."""
    queries, keys = Norm("", model.query_size), Norm("", model.key_value_size)
    return attention(model, q_norm=queries, k_norm=keys)


def fused_projections(
    model: Model, *, bias: bool, output_bias: bool, conv1d: bool = False
) -> tuple[Linear, Linear]:
    """A fused query-key-value projection, and the output projection."""
    width = model.query_size + 2 * model.key_value_size
    return (
        Linear("", model.hidden_size, width, bias, conv1d),
        Linear("", model.query_size, model.hidden_size, output_bias, conv1d),
    )


# --- MLPs ---------------------------------------------------------------------------------------


def gated_mlp(
    model: Model,
    width: int | None = None,
    *,
    bias: bool = False,
    class_name: str = "@MLP",
    act: str = "act_fn",
) -> Tree:
    """Llama's MLP: gate, up and down."""
    hidden, width = model.hidden_size, width or model.intermediate_size
    return tree(
        class_name,
        gate_proj=linear(hidden, width, bias),
        up_proj=linear(hidden, width, bias),
        down_proj=linear(width, hidden, bias),
        **{act: LEAF},
    )


def fused_gated_mlp(model: Model) -> Tree:
    """The same with gate and up fused into one matrix."""
    hidden, width = model.hidden_size, model.intermediate_size
    return tree(
        "@MLP",
        gate_up_proj=linear(hidden, 2 * width),
        down_proj=linear(width, hidden),
        activation_fn=LEAF,
    )


def up_and_down(
    model: Model, width: int | None = None, *, bias: bool, conv1d: bool = False
) -> tuple[Linear, Linear]:
    """The two matrices of an MLP without a gate."""
    hidden, width = model.hidden_size, width or model.intermediate_size
    return Linear("", hidden, width, bias, conv1d), Linear("", width, hidden, bias, conv1d)


def plain_mlp(model: Model, width: int | None = None, *, bias: bool) -> Tree:
    """An MLP of two matrices."""
    up, down = up_and_down(model, width, bias=bias)
    return tree("@MLP", up_proj=up, down_proj=down, act_fn=LEAF)


# --- experts ------------------------------------------------------------------------------------


def router(model: Model, former: Former | None = None) -> Bare:
    """The router's matrix."""
    names = former[:1] if former else ()
    return Bare("", model.hidden_size, model.num_experts, former_names=names)


def stacks(
    model: Model, former: Former | None = None, *, transposed: bool = False
) -> Mapping[str, Bare]:
    """Two stacks of experts: gates fused with ups, and downs.

    ``former``: names that PEFT still accepts.
    Source: transformers 5.23, models/mixtral/modeling_mixtral.py, ``MixtralExperts``.
    """
    hidden, width, experts = model.hidden_size, model.moe_intermediate_size, model.num_experts
    gates, downs = (former[1:3], former[3:]) if former else ((), ())
    return {
        "gate_up_proj": Bare(
            "", hidden, 2 * width, experts, former_names=gates, transposed=transposed
        ),
        "down_proj": Bare("", width, hidden, experts, former_names=downs, transposed=transposed),
    }


def experts(
    model: Model,
    former: Former | None = None,
    *,
    class_name: str = "@Experts",
    transposed: bool = False,
) -> Tree:
    """The module that holds both stacks."""
    held = {
        name: OwnParameter(stack)
        for name, stack in stacks(model, former, transposed=transposed).items()
    }
    return tree(class_name, **held, act_fn=LEAF)


QWEN_NAMES = ("gate", "gate_proj", "up_proj", "down_proj")
"""Former names of router, gate, up and down as linears, which PEFT still accepts: 0.21,
utils/transformers_weight_conversion.py, ``_MOE_TARGET_MODULE_MAPPING``, for the model types that transformers 5.23,
conversion_mapping.py, ``_MODEL_TO_CONVERSION_PATTERN``, maps to "qwen2_moe" (which itself is not)."""


def sparse(model: Model, former: Former | None = None) -> Tree:
    """A mixture of experts (Mixtral)."""
    return tree("@SparseMoeBlock", gate=router(model, former), experts=experts(model, former))


def sparse_with_shared(model: Model, former: Former | None = None) -> Tree:
    """The same with a shared expert and its own gate (Qwen2-MoE)."""
    shared = gated_mlp(model, model.shared_expert_intermediate_size)
    return tree(
        "@SparseMoeBlock",
        gate=router(model, former),
        experts=experts(model, former),
        shared_expert=shadowed(shared) if former else shared,
        shared_expert_gate=linear(model.hidden_size, 1),
    )


def mixture(
    model: Model, *buffers: TreeTensor, class_name: str = "@MoE", gate: Bare | None = None
) -> Tree:
    """Experts first, then the router with these buffers, and shared experts, if the config has any (DeepSeek)."""
    gate = gate or router(model, QWEN_NAMES)
    return tree(
        class_name,
        experts=experts(model, QWEN_NAMES),
        gate=with_buffers(gate, *buffers),
        shared_experts=shared_experts(model),
    )


def shared_experts(model: Model) -> Tree:
    """The shared experts (DeepSeek), whose linears are absent if the config has none."""
    width = model.shared_expert_intermediate_size
    if not width:
        return tree("@MLP", gate_proj=LEAF, up_proj=LEAF, down_proj=LEAF, act_fn=LEAF)
    return shadowed(gated_mlp(model, width, bias=model.mlp_bias))


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


def correction_bias(model: Model, width: Width = Width.FLOAT32) -> TreeTensor:
    """One number per expert, which only affects the router's choice."""
    return TreeTensor("e_score_correction_bias", model.num_experts, width)


# --- state spaces -------------------------------------------------------------------------------


def mamba(model: Model, class_name: str, *buffers: TreeTensor, unadaptable: bool = False) -> Tree:
    """Mamba 2's mixer: three parameters per head, a convolution, and two projections around the scan."""
    sizes = model.state_space
    assert sizes is not None
    output = linear(sizes.width, model.hidden_size, sizes.out_bias)
    return tree(
        class_name,
        *buffers,
        dt_bias=OwnParameter(Norm("", sizes.heads)),
        A_log=OwnParameter(Norm("", sizes.heads)),
        D=OwnParameter(Norm("", sizes.heads)),
        act=LEAF,
        conv1d=Norm("", sizes.conv_width, bias=sizes.conv_bias, taps=sizes.conv_kernel),
        in_proj=linear(model.hidden_size, sizes.projected_width, sizes.in_bias),
        norm=Norm("", sizes.width) if sizes.is_normed else LEAF,
        out_proj=replace(output, unadaptable=unadaptable),
    )


# --- around the layers --------------------------------------------------------------------------


def head(model: Model, *, width: int | None = None, bias: bool = False) -> Linear | Tree:
    """The head. A tied one has no weight of its own."""
    if model.tie_word_embeddings:
        return LEAF
    return Linear("", width or model.hidden_size, model.vocab_size, bias)


def tokens(model: Model, width: int | None = None) -> Embedding:
    """The token embedding."""
    return Embedding("", model.vocab_size, width or model.hidden_size)


def learned_positions(model: Model, offset: int = 0) -> Embedding:
    """The position embedding."""
    rows = model.learned_positions or (
        model.max_position_embeddings and model.max_position_embeddings + offset
    )
    if not rows:
        raise InputError(f"{model.model_type} has learned positions; give max_position_embeddings.")
    return Embedding("", rows, model.hidden_size)


def embed_scale() -> TreeTensor:
    """The constant that an embedding is multiplied by."""
    return TreeTensor("embed_scale", 1, Width.WEIGHT)


def rotary(model: Model, copies: int = 2) -> Tree:
    """Rotary frequencies; ``copies``: each in two buffers.

    Source: transformers 5.23, each ``RotaryEmbedding.__init__`` of models/<model_type>/modeling_<model_type>.py.
    """
    width = model.qk_rope_head_dim or int(model.head_dim * model.partial_rotary_factor)
    return with_buffers(LEAF, *(TreeTensor("inv_freq", (width + 1) // 2, Width.FLOAT32),) * copies)


def rotary_by_kind(model: Model) -> Tree:
    """Frequencies for each kind of layer (Gemma 3, OLMo 3)."""
    return rotary(model, 2 * max(1, len(set(model.layer_types))))


def decoder(
    model: Model,
    *,
    class_name: str = "@Model",
    embedding: Tree | Embedding | None = None,
    final_norm: Norm | None = None,
    rotary_emb: Tree | None = None,
    head_bias: bool = False,
) -> Tree:
    """Llama's: embedding, layers, final norm, rotary frequencies, head."""
    return tree(
        model=tree(
            class_name,
            embed_tokens=embedding or tokens(model),
            layers=LAYERS,
            norm=final_norm or norm(model),
            rotary_emb=rotary_emb or rotary(model),
        ),
        lm_head=head(model, bias=head_bias),
    )


def with_biased_norm(model: Model) -> Tree:
    """The same with a LayerNorm at the end."""
    return decoder(model, final_norm=norm(model, bias=True))


def scaled_decoder(model: Model) -> Tree:
    """The same with a scaled embedding (Gemma)."""
    return decoder(model, embedding=with_buffers(tokens(model), embed_scale()))


def decoder_layer(
    attention: Callable[[Model], Tree], mlp: Callable[[Model], Tree], *, bias: bool = False
) -> Callable[[Model], Tree]:
    """Llama's layer with this attention and MLP: norm, attention, norm, MLP."""

    def layer(model: Model) -> Tree:
        return tree(
            "@DecoderLayer",
            self_attn=attention(model),
            mlp=mlp(model),
            input_layernorm=norm(model, bias=bias),
            post_attention_layernorm=norm(model, bias=bias),
        )

    return layer
