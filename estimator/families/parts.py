"""Pieces of module trees that several families share: projections, norms, what is around the layers.

A linear has a bias if the model says so, which ``ConfigClass.biases`` reads, also where the class fixes it.

Source: transformers 5.23, ``models/*/modeling_*.py``, each class's ``__init__``.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.families.modules import (
    LAYERS,
    LEAF,
    Embedding,
    Linear,
    Module,
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

PieceOf = Callable[[Model], Tree | Module | None]
"""Makes a module of a model; None: the model does not have it."""
Piece = Tree | Module | OwnParameter | PieceOf
TreeOf = Callable[[Model], Tree]
"""Makes a module tree of a model."""


def made(class_name: str = "", /, *buffers: TreeTensor, **children: Piece) -> TreeOf:
    """``modules.tree`` for any model: children that depend on the model are functions of it."""

    def of(model: Model) -> Tree:
        given = {
            name: child(model) if callable(child) else child for name, child in children.items()
        }
        return tree(class_name, *buffers, **given)

    return of


def linear(in_features: int, out_features: int, bias: bool = False) -> Linear:
    """A linear, which its place in the tree names."""
    return Linear("", in_features, out_features, bias)


def norm(model: Model, *, bias: bool = False) -> Norm:
    """A norm over the hidden states."""
    weight = not model.norms_without_weight
    return Norm("", model.hidden_size, weight, bias and weight)


def biased_norm(model: Model) -> Norm:
    """A LayerNorm over the hidden states."""
    return norm(model, bias=True)


def head_norm(model: Model, *, weight: bool = True, bias: bool = False) -> Norm:
    """A norm over each head, with one weight shared by all heads."""
    return Norm("", model.head_dim, weight, bias)


def head_norms(
    model: Model, *names: str, weight: bool = True, bias: bool = False
) -> dict[str, Norm]:
    """The same under several names."""
    return {name: head_norm(model, weight=weight, bias=bias) for name in names}


def projections(model: Model, order: str = "qkvo", last: str = "o_proj") -> dict[str, Linear]:
    """Query, key, value and output projections, in the class's order; ``last``: the output's name."""
    hidden, keys, bias = model.hidden_size, model.key_value_size, model.attention_bias
    named = {
        "q": ("q_proj", linear(hidden, model.query_size, bias)),
        "k": ("k_proj", linear(hidden, keys, bias)),
        "v": ("v_proj", linear(hidden, keys, bias)),
        "o": (last, output(model)),
    }
    return dict(named[letter] for letter in order)


def attention(model: Model, order: str) -> dict[str, Linear | Norm]:
    """Projections and norms of heads by name, in the class's order; the norm of values has no weight (Gemma)."""
    linears = projections(model)
    return {
        name: linears.get(name) or head_norm(model, weight=name != "v_norm")
        for name in order.split()
    }


def fused_qkv(model: Model, *, conv1d: bool = False) -> Linear:
    """A fused query-key-value projection."""
    width = model.query_size + 2 * model.key_value_size
    return Linear("", model.hidden_size, width, model.attention_bias, conv1d)


def output(model: Model, *, conv1d: bool = False) -> Linear:
    """Attention's output projection."""
    return Linear("", model.query_size, model.hidden_size, model.attention_output_bias, conv1d)


def up_and_down(model: Model, width: int = 0, *, conv1d: bool = False) -> tuple[Linear, Linear]:
    """The two matrices of an MLP without a gate."""
    hidden, width, bias = model.hidden_size, width or model.intermediate_size, model.mlp_bias
    return Linear("", hidden, width, bias, conv1d), Linear("", width, hidden, bias, conv1d)


# --- around the layers --------------------------------------------------------------------------


def tokens(model: Model, width: int = 0) -> Embedding:
    """The token embedding."""
    return Embedding("", model.vocab_size, width or model.hidden_size)


def scaled(embedding: Embedding) -> Tree:
    """An embedding with the constant that it is multiplied by."""
    return with_buffers(embedding, TreeTensor("embed_scale", 1, Width.WEIGHT))


def scaled_tokens(model: Model) -> Tree:
    """The token embedding, scaled (Gemma)."""
    return scaled(tokens(model))


def learned_positions(model: Model, offset: int = 0) -> Embedding:
    """The position embedding."""
    rows = model.learned_positions or (
        model.max_position_embeddings and model.max_position_embeddings + offset
    )
    if not rows:
        raise InputError(f"{model.model_type} has learned positions; give max_position_embeddings.")
    return Embedding("", rows, model.hidden_size)


def frequencies(*sizes: int) -> Tree:
    """A rotary embedding: frequencies, each of them in two buffers.

    Source: transformers 5.23, each ``RotaryEmbedding.__init__`` of models/<model_type>/modeling_<model_type>.py.
    """
    both = (TreeTensor("inv_freq", size, Width.FLOAT32) for size in sizes for _ in range(2))
    return with_buffers(LEAF, *both)


def rotary(model: Model, kinds: int = 1) -> Tree:
    """Rotary frequencies, for so many kinds of layers."""
    width = model.qk_rope_head_dim or int(model.head_dim * model.partial_rotary_factor)
    return frequencies(*[(width + 1) // 2] * kinds)


def rotary_by_kind(model: Model) -> Tree:
    """Frequencies for each kind of layer (Gemma 3, OLMo 3)."""
    return rotary(model, max(1, len(set(model.layer_types))))


def causal_lm(
    base: str, class_name: str = "@Model", /, *buffers: TreeTensor, **children: Piece
) -> TreeOf:
    """A base model of this name, and the head; a tied head has no weight of its own."""
    base_model = made(class_name, *buffers, **children)

    def root(model: Model) -> Tree:
        width = model.word_embed_proj_dim or model.hidden_size
        head = Linear("", width, model.vocab_size, model.lm_head_bias)
        head_or_tied = LEAF if model.tie_word_embeddings else head
        return tree(**{base: base_model(model)}, lm_head=head_or_tied)

    return root


def decoder(
    *,
    class_name: str = "@Model",
    embedding: PieceOf = tokens,
    final_norm: PieceOf = norm,
    rotary_emb: PieceOf = rotary,
) -> TreeOf:
    """Llama's: embedding, layers, final norm, rotary frequencies, head."""
    return causal_lm(
        "model",
        class_name,
        embed_tokens=embedding,
        layers=LAYERS,
        norm=final_norm,
        rotary_emb=rotary_emb,
    )
